"""What one training step does to served weights: measured, and as the model of rounding boundaries predicts it.

The model: a served value has neighbours `spacing` apart, its master lies anywhere between two rounding boundaries with
equal chance, and an update of size u crosses one with probability min(1, u / spacing). So the expected share of changed
values is the mean of that over all weights. It knows nothing of scales that move.

What an optimizer can do about it at a given RMS of its updates: spread them differently (`Update.shape`), and make them
larger or smaller where the spacing is wide (`Prediction.together`: the prediction over that for the same updates dealt
to other weights of the same matrix).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import codec_data
import numpy as np

from patchswarm.protocol.codec.chunk import CodecOptions, Span, encode_spans
from patchswarm.protocol.elements import Kind
from patchswarm.protocol.stillness import bound_bytes

FORMS = ("BF16", "F8_E4M3", "INT4")
CHUNK_BYTES = 4 << 20

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Served:
    """What a step changes in some tensors as they are served. Scales count in the sizes, not in the elements."""

    elements: int
    changed: int
    scales: int
    scales_changed: int
    full_bytes: int
    patch_bytes: int
    bound_bytes: float

    @property
    def share(self) -> float:
        """Share of the elements that changed."""
        return self.changed / self.elements


@dataclass(frozen=True)
class Update:
    """The update of some FP32 weights in one step."""

    rms: float
    weight_rms: float
    mean: float
    """Mean of its absolute values."""

    @property
    def shape(self) -> float:
        """Mean over RMS: 1 when all have the same size, 0.80 for a Gaussian."""
        return self.mean / self.rms if self.rms else 0.0


@dataclass(frozen=True)
class Prediction:
    """What the model of rounding boundaries expects of an update."""

    share: float
    dealt: float
    """The share expected when each matrix's updates are dealt to its weights in reverse order."""

    @property
    def together(self) -> float:
        """1 when updates do not know where the spacing is wide."""
        return self.share / self.dealt if self.dealt else 1.0


def is_hidden(name: str, values: np.ndarray) -> bool:
    """Whether a weight is a hidden matrix: what Muon trains by the usual recipe."""
    return values.ndim == 2 and name.startswith("encoder.")


def served(before: codec_data.View, after: codec_data.View, chosen: Callable[[str], bool]) -> Served:
    """Compare and encode the tensors whose names are `chosen`, scales with their weights."""
    tensors = [each for each in codec_data.between(before, after) if chosen(each.name.removesuffix("_scale"))]
    bound = 0.0
    counts = {True: [0, 0], False: [0, 0]}
    for kind in dict.fromkeys(each.kind for each in tensors):
        part, _ = bound_bytes(kind, [(each.old, each.new) for each in tensors if each.kind is kind])
        bound += part
    for each in tensors:
        count = counts[each.name.endswith("_scale")]
        old, new = (_elements(each.kind, data) for data in (each.old, each.new))
        count[0] += old.size
        count[1] += int(np.count_nonzero(old != new))
    spans = [Span(number, each.kind, 0, each.old, each.new) for number, each in enumerate(tensors)]
    elements, changed = counts[False]
    scales, scales_changed = counts[True]
    return Served(
        elements,
        changed,
        scales,
        scales_changed,
        full_bytes=sum(each.new.size for each in tensors),
        patch_bytes=sum(len(chunk.data) for chunk in encode_spans(spans, CodecOptions(), CHUNK_BYTES)),
        bound_bytes=bound,
    )


def _elements(kind: Kind, data: np.ndarray) -> np.ndarray:
    if kind is Kind.I4:
        return np.concatenate([data & 15, data >> 4])
    return data.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[{Kind.F8_E4M3: 1, Kind.F32: 4}.get(kind, 2)])


def spacing(values: np.ndarray, form: str) -> np.ndarray:
    """Distance from each weight's served value to the next one, (rows, columns) float32."""
    if form == "BF16":
        return np.asarray(_power_of_two(values) * np.float32(2**-7))
    if form == "F8_E4M3":
        scale = _block_maximum(values) / np.float32(448)
        steps = np.maximum(_power_of_two(values / scale), np.float32(2**-6)) * np.float32(2**-3)
        return np.asarray(steps * scale)
    groups = values.reshape(-1, 32)
    largest = np.abs(groups).max(axis=1, keepdims=True) / np.float32(7)
    return np.broadcast_to(largest, groups.shape).reshape(values.shape)


def _power_of_two(values: np.ndarray) -> np.ndarray:
    """The largest power of two that is not above |value|; at least FP32's smallest normal number."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0x7F800000)
    return np.asarray(np.maximum(bits, np.uint32(1 << 23)).view(np.float32))


def _block_maximum(values: np.ndarray) -> np.ndarray:
    """The largest |value| of each block of 128 x 128, at every place of it."""
    rows, columns = values.shape
    out = np.empty_like(values)
    for row in range(0, rows, 128):
        for column in range(0, columns, 128):
            block = values[row : row + 128, column : column + 128]
            out[row : row + 128, column : column + 128] = max(float(np.abs(block).max()), 1e-12)
    return out


def update_of(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Update:
    """The update between (before, after) weights."""
    squares = weights = total = count = 0.0
    for before, after in pairs:
        moved = (after - before).astype(np.float64)
        squares += float(np.sum(moved**2))
        weights += float(np.sum(before.astype(np.float64) ** 2))
        total += float(np.sum(np.abs(moved)))
        count += before.size
    return Update((squares / count) ** 0.5, (weights / count) ** 0.5, total / count)


def predict(pairs: Iterable[tuple[np.ndarray, np.ndarray]], form: str) -> Prediction:
    """What the model expects of the update between (before, after) matrices served in `form`."""
    share = dealt = count = 0.0
    for before, after in pairs:
        between = spacing(before, form)
        moved = np.abs(after - before)
        share += float(np.sum(np.minimum(moved / between, 1), dtype=np.float64))
        dealt += float(np.sum(np.minimum(moved[::-1, ::-1] / between, 1), dtype=np.float64))
        count += before.size
    return Prediction(share / count, dealt / count)
