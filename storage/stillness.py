"""One pass over two checkpoint directories: how much changed, where, by how far, and what a patch between them takes.

Both are read once, tile by tile, so memory stays the same whatever they hold. The patch is really encoded, with the
codec that a publish uses; only the cut into chunks may differ from it by a few bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from ..protocol.codec.chunk import CodecOptions, Span, encode_spans
from ..protocol.elements import SAFETENSORS_KINDS, Kind
from ..protocol.layout import Placed, Role, match_regions
from ..protocol.seal import TAG_BYTES
from ..protocol.stillness import DISTANCES, Counts, Tally, exponent_of
from .checkpoint import Source
from .diff import MAX_CONTENTS
from .errors import NotComparableError

TILE_BYTES: Final = 4 * 1024 * 1024
CALL_BYTES: Final = 32 * 1024 * 1024
"""Input of one call of the encoder: about what a publish gives to one job."""

_LAYER: Final = re.compile(r"(?<![^./])\d+(?![^./])")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in the elements of one dtype or of one group of tensors."""

    name: str
    tensors: int
    elements: int
    changed: int
    changed_fraction: float


class ExponentPart(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in the elements of one dtype whose old value begins with 2^`exponent`.

    The lowest exponent also holds zeros and subnormal values, the highest infinities and NaNs where the dtype has them.
    """

    dtype: str
    exponent: int
    elements: int
    changed: int
    changed_fraction: float


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """Changed elements that moved `least` to `most` steps in ULP order (integers: by that difference)."""

    least: int
    most: int
    changed: int


class Stillness(msgspec.Struct, frozen=True, kw_only=True):
    """What two versions of a checkpoint have in common. A complex number counts as two elements."""

    elements: int
    changed: int
    changed_fraction: float
    full_bytes: int
    """The whole new version, side files included."""
    patch_bytes: int
    """All chunks that lead to it, sealed."""
    tensor_patch_bytes: int
    """Those of them that the tensors take."""
    bound_bytes: float
    """What the tensors take at least: which elements changed given tensor and exponent, by how much given exponent."""
    bound_reached: float
    """`bound_bytes` over `tensor_patch_bytes`, 1 when nothing changed."""
    dtypes: list[Part]
    groups: list[Part]
    """By name, layer numbers replaced by `*`; in the order of the checkpoint."""
    exponents: list[ExponentPart]
    distances: list[Distance]


def group_of(name: str) -> str:
    """The group of a tensor: its name with every part that is a number replaced by `*`."""
    return _LAYER.sub("*", name)


def dtype_name(dtype: str, kind: Kind) -> str:
    """A tensor's dtype, and how the codec looks at it where that is something else."""
    return dtype if SAFETENSORS_KINDS.get(dtype, Kind.BYTES) is kind or dtype == "C64" else f"{dtype} as {kind.name}"


def compare_checkpoints(
    old: Source, new: Source, *, codec: CodecOptions, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> Stillness:
    """Compare two scanned checkpoints. `progress(done, total)` gets bytes of the new one.

    Raises NotComparableError when their tensors are not the same, SourceChangedError when files change meanwhile.
    """
    match = _matching(old, new)
    tensors = _Encoder(codec)
    others = _Encoder(codec)
    seen = _Seen()
    total, done = new.layout.size, 0
    places = list(old.layout.placed())
    for placed in new.layout.placed():
        region = placed.region
        is_tensor = region.role is Role.TENSOR
        counts = Counts(region.kind) if is_tensor else None
        source = places[match[placed.number]] if match[placed.number] >= 0 else None
        for first in range(0, region.size, TILE_BYTES):
            size = min(TILE_BYTES, region.size - first)
            after = new.read(placed.file, placed.offset + first, size)
            before = old.read(source.file, source.offset + first, size) if source is not None else None
            if counts is not None and before is not None:
                counts.see(before, after)
            (tensors if is_tensor else others).add(Span(placed.number, region.kind, first, before, after))
            done += size
            progress(done, total)
        if counts is not None:
            seen.add(placed, counts)
    old.check_unchanged()
    new.check_unchanged()
    return seen.result(total, tensors.finish(), others.finish())


def _matching(old: Source, new: Source) -> list[int]:
    """For each region of the new layout, the old one's it is compared with. Raises NotComparableError."""
    match = match_regions(old.layout, new.layout)
    after = [placed for placed in new.layout.placed() if placed.region.role is Role.TENSOR]
    before = [placed for placed in old.layout.placed() if placed.region.role is Role.TENSOR]
    for source, has in ((old, before), (new, after)):
        if not has:
            raise NotComparableError(f"{source.directory} has no tensors: give a directory with safetensors files")
    known = {placed.region.name: placed for placed in before}
    for placed in after:
        if match[placed.number] < 0:
            raise _apart(old, new, placed.region.name, known.get(placed.region.name), placed)
    gone = known.keys() - {placed.region.name for placed in after}
    if gone:
        raise _apart(old, new, min(gone), known[min(gone)], None)
    return match


def _apart(old: Source, new: Source, name: str, before: Placed | None, after: Placed | None) -> NotComparableError:
    """What is wrong with a tensor that is not the same in both."""
    if before is None:
        what = f"is in {new.directory} and not in {old.directory}"
    elif after is None:
        what = f"is in {old.directory} and not in {new.directory}"
    else:
        what = f"is {_form(before)} in {old.directory} and {_form(after)} in {new.directory}"
    return NotComparableError(f"tensor {name!r} {what}: give two versions of the same model in the same dtypes")


def _form(placed: Placed) -> str:
    return f"{placed.region.dtype} {list(placed.region.shape)}"


class _Encoder:
    """Encodes spans as they come and keeps the size of what came out."""

    def __init__(self, codec: CodecOptions) -> None:
        self._codec = codec
        self._spans: list[Span] = []
        self._waiting = 0
        self._sealed_bytes = 0

    def add(self, span: Span) -> None:
        """Take one more span; the arrays in it are held until their call is full."""
        self._spans.append(span)
        self._waiting += span.new.size
        if self._waiting >= CALL_BYTES:
            self._encode()

    def finish(self) -> int:
        """Bytes of all chunks, sealed."""
        self._encode()
        return self._sealed_bytes

    def _encode(self) -> None:
        for chunk in encode_spans(self._spans, self._codec, MAX_CONTENTS):
            self._sealed_bytes += len(chunk.data) + TAG_BYTES
        self._spans, self._waiting = [], 0


@dataclass(slots=True)
class _Sum:
    tensors: int = 0
    elements: int = 0
    changed: int = 0

    def add(self, elements: int, changed: int) -> None:
        self.tensors += 1
        self.elements += elements
        self.changed += changed

    def part(self, name: str) -> Part:
        return Part(
            name=name,
            tensors=self.tensors,
            elements=self.elements,
            changed=self.changed,
            changed_fraction=_fraction(self.changed, self.elements),
        )


@dataclass(slots=True)
class _Seen:
    """Tensors seen so far: sums by group, and a tally for each dtype and kind."""

    groups: dict[str, _Sum] = field(default_factory=dict)
    dtypes: dict[str, _Sum] = field(default_factory=dict)
    tallies: dict[tuple[str, Kind], Tally] = field(default_factory=dict)

    def add(self, placed: Placed, counts: Counts) -> None:
        """Add a tensor that was seen to its end."""
        region = placed.region
        dtype = dtype_name(region.dtype, region.kind)
        elements, changed = int(counts.present.sum()), int(counts.changed.sum())
        self.groups.setdefault(group_of(region.name), _Sum()).add(elements, changed)
        self.dtypes.setdefault(dtype, _Sum()).add(elements, changed)
        self.tallies.setdefault((dtype, region.kind), Tally(region.kind)).add(counts)

    def result(self, full_bytes: int, tensor_patch_bytes: int, other_patch_bytes: int) -> Stillness:
        """All of it, put together."""
        elements = sum(part.elements for part in self.dtypes.values())
        changed = sum(part.changed for part in self.dtypes.values())
        bound = sum(tally.bound_bytes for tally in self.tallies.values())
        return Stillness(
            elements=elements,
            changed=changed,
            changed_fraction=_fraction(changed, elements),
            full_bytes=full_bytes,
            patch_bytes=tensor_patch_bytes + other_patch_bytes,
            tensor_patch_bytes=tensor_patch_bytes,
            bound_bytes=bound,
            bound_reached=bound / tensor_patch_bytes if tensor_patch_bytes else 1.0,
            dtypes=[part.part(name) for name, part in self.dtypes.items()],
            groups=[part.part(name) for name, part in self.groups.items()],
            exponents=[part for (dtype, _), tally in self.tallies.items() for part in _exponents(dtype, tally.whole)],
            distances=_distances(self.tallies.values()),
        )


def _exponents(dtype: str, counts: Counts) -> Iterator[ExponentPart]:
    for context in np.flatnonzero(counts.present).tolist():
        exponent = exponent_of(counts.kind, context)
        if exponent is not None:
            elements, changed = int(counts.present[context]), int(counts.changed[context])
            yield ExponentPart(
                dtype=dtype,
                exponent=exponent,
                elements=elements,
                changed=changed,
                changed_fraction=_fraction(changed, elements),
            )


def _distances(tallies: Iterable[Tally]) -> list[Distance]:
    """Up to the furthest that anything moved."""
    counts = np.zeros(DISTANCES, np.int64)
    for tally in tallies:
        counts += tally.whole.distances
    far = int(np.flatnonzero(counts).max(initial=-1)) + 1
    return [
        Distance(least=2 ** (c - 1) + 1 if c else 1, most=2**c, changed=count)
        for c, count in enumerate(counts[:far].tolist())
    ]


def _fraction(changed: int, elements: int) -> float:
    return changed / elements if elements else 0.0
