"""What goes into the encoder and what comes out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..elements import Kind


@dataclass(frozen=True, slots=True)
class Span:
    """One contiguous, element-aligned run of bytes of one region.

    `region` is the region's number in the layout of the version the transition leads to (u32), `offset` the bytes from
    the region's start (a multiple of the element's width, u64). `new` is contiguous uint8, of whole elements and any
    length, possibly unaligned in memory; `old` the same bytes in the parent version, None when there is nothing to
    compare with.
    """

    region: int
    kind: Kind
    offset: int
    old: NDArray[np.uint8] | None
    new: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """How to trade size against speed.

    `bands` from 1 (fastest) over 4 to 12 (smallest); `fast_dense` takes lz4 instead of zstd for dense records, for
    links that are faster than a processor compresses; `zstd_level` is that of dense records.
    """

    bands: int = 4
    fast_dense: bool = False
    zstd_level: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.bands <= 16:
            raise ValueError(f"bands must be 1 to 16, not {self.bands}")


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A chunk's plaintext and what it holds.

    `elements` lie in the ranges its records cover, `changed` of them differ from the parent (all, without one);
    `raw_bytes` are covered; `payload_bytes` of `data` are entropy-coded events or planes, the rest is framing.
    """

    data: bytes
    elements: int
    changed: int
    raw_bytes: int
    payload_bytes: int
    records: int
