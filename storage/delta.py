"""Deltas: which elements of which tensors differ between two versions, written as one safetensors file.

For each tensor `NAME` that differs: `NAME.indices`, element numbers in row-major order, rising (int32, or int64 where
the tensor has more than 2^31 - 1 elements), and `NAME.values`, the new elements in the tensor's own dtype. Elements of
dtypes whose width is no whole number of bytes (F4, F6) are addressed by the byte: indices count bytes, values are U8.
The file's `__metadata__` has the caller's words and, as JSON under "tensors", dtype and shape of every tensor named.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from ..protocol.layout import Layout, Role
from .errors import LoadInFullError, NoSpaceError, StorageError
from .mapped import MappedFiles

MAX_HEADER_BYTES: Final = 100_000_000
"""What the safetensors library reads."""
_TILE_BYTES: Final = 8 * 1024 * 1024
_COPY_BYTES: Final = 1 << 30
_INT32_ELEMENTS: Final = 2**31 - 1

# Bytes of an element by safetensors dtype; what is not here is addressed by the byte.
_WIDTHS: Final = {"F16": 2, "BF16": 2, "U16": 2, "I16": 2, "F32": 4, "U32": 4, "I32": 4} | dict.fromkeys(
    ("F64", "U64", "I64", "C64"), 8
)
_OWN_BYTE: Final = frozenset({"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"})


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of both versions."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    old: int
    """Its region in the old layout."""
    new: int
    """Its region in the new one."""

    @property
    def width(self) -> int:
        """Bytes of what an index counts."""
        return _WIDTHS.get(self.dtype, 1)

    @property
    def values_dtype(self) -> str:
        """The dtype of its values in a delta."""
        return self.dtype if self.dtype in _WIDTHS or self.dtype in _OWN_BYTE else "U8"

    @property
    def index_width(self) -> int:
        """Bytes of one of its indices."""
        return 4 if self.size_bytes // self.width <= _INT32_ELEMENTS else 8


@dataclass(frozen=True, slots=True)
class Change:
    """Changed elements of one tensor: `positions` (k,) int64, rising; `values` (k,) unsigned, of its width."""

    tensor: int
    positions: NDArray[np.int64]
    values: NDArray[Any]


Work = Callable[[], Sequence[Change]]
"""Finds the changes of one stretch of the old version. Stretches follow each other in the order of its tensors."""


def common_tensors(old: Layout, new: Layout) -> list[Tensor]:
    """The tensors of two versions, in the order of the old one.

    They may stand in other places and files, and what is no tensor may differ. Raises LoadInFullError when a name,
    dtype or shape does, or when a name is not unique.
    """
    before, after = _by_name(old), _by_name(new)
    for name in before.keys() ^ after.keys():
        where = "gone from" if name in before else "new in"
        raise LoadInFullError(f"tensor {name!r} is {where} the later version: load it in full")
    tensors = []
    for name, (number, dtype, shape, size) in before.items():
        there, later_dtype, later_shape, _ = after[name]
        if (dtype, shape) != (later_dtype, later_shape):
            raise LoadInFullError(
                f"tensor {name!r} was {dtype} {list(shape)} and is {later_dtype} {list(later_shape)}: load in full"
            )
        tensors.append(Tensor(name, dtype, shape, size, number, there))
    return tensors


def _by_name(layout: Layout) -> dict[str, tuple[int, str, tuple[int, ...], int]]:
    found: dict[str, tuple[int, str, tuple[int, ...], int]] = {}
    for placed in layout.placed():
        region = placed.region
        if region.role is not Role.TENSOR:
            continue
        if region.name in found:
            raise LoadInFullError(f"tensor {region.name!r} is in more than one file: load in full")
        found[region.name] = (placed.number, region.dtype, region.shape, region.size)
    return found


def compare(tensors: Sequence[Tensor], old: MappedFiles, new: MappedFiles) -> Iterator[Work]:
    """Work that holds the bytes of two slots against each other, both held as long as it is done."""
    for number, tensor in enumerate(tensors):
        for first in range(0, tensor.size_bytes, _TILE_BYTES):
            yield _tile_work(number, tensor, first, min(_TILE_BYTES, tensor.size_bytes - first), old, new)


def _tile_work(number: int, tensor: Tensor, first: int, size: int, old: MappedFiles, new: MappedFiles) -> Work:
    def work() -> Sequence[Change]:
        before, after = old.region(tensor.old, first, size), new.region(tensor.new, first, size)
        return changes_of(number, tensor, first, before, after)

    return work


def changes_of(
    number: int, tensor: Tensor, first: int, before: NDArray[np.uint8], after: NDArray[np.uint8]
) -> list[Change]:
    """The elements that differ in a range of a tensor that begins at byte `first`, compared as integers."""
    kind = np.dtype(f"u{tensor.width}")
    elements = after.view(kind)
    places = np.flatnonzero(before.view(kind) != elements)
    if not places.size:
        return []
    return [Change(number, places.astype(np.int64, copy=False) + first // tensor.width, elements[places])]


@dataclass(slots=True)
class _Spools:
    """Unlinked files that collect what the delta is put together from, each of entries of one width."""

    folder: Path
    limit_bytes: int
    open: dict[tuple[str, int], IO[bytes]] = field(default_factory=dict)
    written: int = 0

    def add(self, what: str, data: NDArray[Any]) -> None:
        key = (what, data.dtype.itemsize)
        if key not in self.open:
            self.open[key] = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 -- closed by `close`
        self.written += data.nbytes
        if self.written > self.limit_bytes:
            raise LoadInFullError("so much has changed that a delta is larger than the version: load it in full")
        self.open[key].write(np.ascontiguousarray(data).data.cast("B") if data.size else b"")

    def close(self) -> None:
        for spool in self.open.values():
            spool.close()


def write_delta(
    tensors: Sequence[Tensor], works: Iterable[Work], folder: Path, words: Mapping[str, str], threads: int
) -> IO[bytes]:
    """Do `works` and return the delta, an unlinked file in `folder`, positioned anywhere.

    Memory stays bounded; `folder` takes twice the delta for a moment. The widest entries come first, so that all are
    aligned. Raises LoadInFullError, NoSpaceError, and what the works raise.
    """
    spools = _Spools(folder, max(sum(tensor.size_bytes for tensor in tensors), 1 << 16))
    counts = [0] * len(tensors)
    try:
        for changes in _in_order(works, threads):
            for change in changes:
                tensor = tensors[change.tensor]
                counts[change.tensor] += change.positions.size
                spools.add("indices", change.positions.astype(f"<i{tensor.index_width}", copy=False))
                spools.add("values", change.values)
        return _assemble(tensors, counts, spools, folder, words)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"no space left in {folder} for a delta: free some, or load in full") from error
        raise StorageError(f"{folder}: a delta cannot be written: {error.strerror}") from error
    finally:
        spools.close()


def _in_order(works: Iterable[Work], threads: int) -> Iterator[Sequence[Change]]:
    """Results in the order of the works, of which a few are under way at a time."""
    source = iter(works)
    running: deque[Future[Sequence[Change]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="delta") as pool:
        try:
            for work in itertools.chain(source, [None] * 2 * threads):
                if work is not None:
                    running.append(pool.submit(work))
                if running and (work is None or len(running) > 2 * threads):
                    yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


def _assemble(
    tensors: Sequence[Tensor], counts: Sequence[int], spools: _Spools, folder: Path, words: Mapping[str, str]
) -> IO[bytes]:
    """Header, then the spools one after the other."""
    header: dict[str, Any] = {}
    order = sorted(spools.open, key=lambda key: (-key[1], key[0]))
    at = {}
    end = 0
    for key in order:
        at[key] = end
        end += spools.open[key].tell()
    changed: dict[str, tuple[str, tuple[int, ...]]] = {}
    for tensor, count in zip(tensors, counts, strict=True):
        if not count:
            continue
        changed[tensor.name] = (tensor.dtype, tensor.shape)
        index_dtype = "I32" if tensor.index_width == 4 else "I64"
        for what, dtype, width in (
            ("indices", index_dtype, tensor.index_width),
            ("values", tensor.values_dtype, tensor.width),
        ):
            begin = at[what, width]
            at[what, width] = begin + count * width
            header[f"{tensor.name}.{what}"] = {
                "dtype": dtype,
                "shape": [count],
                "data_offsets": [begin, at[what, width]],
            }
    metadata = {**words, "tensors": json.dumps(changed, ensure_ascii=False, separators=(",", ":"))}
    text = json.dumps({"__metadata__": metadata, **header}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise LoadInFullError(f"{len(changed)} tensors have changed, more than a delta's header can list: load in full")
    out = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- the caller's
    try:
        out.write(len(text).to_bytes(8, "little") + text)
        out.flush()
        for key in order:
            spools.open[key].flush()
            _append(out.fileno(), spools.open[key].fileno())
    except BaseException:
        out.close()
        raise
    return out


def _append(out: int, source: int) -> None:
    """Copy all of a file behind what is in another, within the kernel."""
    offset = 0
    while sent := os.sendfile(out, source, offset, _COPY_BYTES):
        offset += sent
