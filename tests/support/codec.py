"""A slot in memory and data to encode, shared by the codec's tests."""

from __future__ import annotations

import numpy as np

from patchswarm.protocol.codec.chunk import Span
from patchswarm.protocol.elements import BITS, Kind
from patchswarm.protocol.errors import CodecError


class Slot:
    """Regions in memory behind the `resolve` that chunks are applied through."""

    def __init__(self, regions: dict[int, np.ndarray]) -> None:
        self.regions = regions

    def resolve(self, region: int, offset: int, size: int) -> np.ndarray:
        data = self.regions.get(region)
        if data is None or offset + size > data.size:
            raise CodecError(f"region {region} has no bytes {offset} to {offset + size}")
        return data[offset : offset + size]


def random_bytes(kind: Kind, elements: int, seed: int) -> np.ndarray:
    """Bytes of `elements` elements: Gaussian weights where the kind has them, else uniform bits."""
    rng = np.random.default_rng(seed)
    if kind in (Kind.BF16, Kind.F16, Kind.F32, Kind.F64):
        weights = rng.standard_normal(elements) * 0.02
        if kind is Kind.BF16:
            return (weights.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        dtype = {Kind.F16: np.float16, Kind.F32: np.float32, Kind.F64: np.float64}[kind]
        return weights.astype(dtype).view(np.uint8)
    return rng.integers(0, 256, elements * BITS[kind] // 8, dtype=np.uint8)


def changed_copy(kind: Kind, data: np.ndarray, share: float, seed: int) -> np.ndarray:
    """The bytes with about `share` of the elements a few units in the last place away."""
    rng = np.random.default_rng(seed)
    new = data.copy()
    if BITS[kind] == 4:
        low, high = new & 15, new >> 4
        low = np.where(rng.random(low.size) < share, (low + rng.integers(1, 3, low.size)) & 15, low)
        high = np.where(rng.random(high.size) < share, (high + rng.integers(1, 3, high.size)) & 15, high)
        return (low | high << 4).astype(np.uint8)
    values = np.ascontiguousarray(new).view(f"u{BITS[kind] // 8}")
    moves = np.flatnonzero(rng.random(values.size) < share)
    steps = rng.choice([1, 1, 1, 1, 2, 5], moves.size).astype(values.dtype)
    up = rng.random(moves.size) < 0.5
    values[moves] = np.where(up, values[moves] + steps, values[moves] - steps)
    return values.view(np.uint8)


def spans_of(kind: Kind, before: dict[int, np.ndarray], after: dict[int, np.ndarray], cut: int = 4 << 20) -> list[Span]:
    """Regions as spans of at most `cut` bytes."""
    return [
        Span(region, kind, at, before[region][at : at + cut], after[region][at : at + cut])
        for region in after
        for at in range(0, after[region].size, cut)
    ]
