"""Scratch: memory in which chunks are applied to the parent's bytes, to see that they lead to what was read.

A publish applies its chunks to the head's own spare slot. A transition made later, between versions that are not
to be touched, is checked here instead, one job at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..protocol.codec.chunk import apply_chunk
from ..protocol.errors import BaseMismatchError, CodecError
from .mapped import Bytes, RegionTable
from .verify import Block

STRADDLE: Final = 8
"""An element that begins in a block may end this many bytes behind it."""


class Scratch:
    """The bytes of some consecutive blocks of a new version. Put the parent's in with `fill` where it has any."""

    def __init__(self, blocks: Sequence[Block], table: RegionTable) -> None:
        self._table = table
        self._starts: list[tuple[int, int]] = []  # (file, first byte) of each run of blocks in one file
        self._runs: list[Bytes] = []
        ends: dict[int, int] = {}
        for file, offset, size in blocks:
            ends[file] = offset + size
            if not self._starts or self._starts[-1][0] != file:
                self._starts.append((file, offset))
        self._runs = [np.zeros(ends[file] - offset + STRADDLE, np.uint8) for file, offset in self._starts]

    def begin(self, file: int, offset: int, data: Bytes) -> None:
        """Say what a block holds before its first whole element, which the block before brings."""
        self._find(file, offset, min(STRADDLE, len(data)))[:] = data[:STRADDLE]

    def fill(self, region: int, offset: int, data: Bytes) -> None:
        """Put in the parent's bytes of a region."""
        self._resolve(region, offset, len(data))[:] = data

    def try_apply(self, contents: bytes) -> bool:
        """Apply a chunk's contents; False when they were made against other bytes. Raises CodecError."""
        try:
            apply_chunk(contents, self._resolve)
        except BaseMismatchError:
            return False
        return True

    def region(self, number: int, offset: int, size: int) -> Bytes:
        """Bytes of a region as they are now."""
        return self._resolve(number, offset, size)

    def _resolve(self, region: int, offset: int, size: int) -> Bytes:
        return self._find(*self._table.place(region, offset, size), size)

    def _find(self, file: int, offset: int, size: int) -> Bytes:
        at = bisect_right(self._starts, (file, offset)) - 1
        if at >= 0 and self._starts[at][0] == file:
            begin = offset - self._starts[at][1]
            if begin + size <= len(self._runs[at]):
                return self._runs[at][begin : begin + size]
        raise CodecError(f"a chunk writes bytes {offset} to {offset + size} of file {file}, outside its job")
