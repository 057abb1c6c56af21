"""Tiles: the bands of a few thousand elements at a time, as words of flags and running counts that stay in the L1 cache.

Both ends walk a piece tile by tile. An element's level is the top of its old value (a float's exponent); a band is a range
of levels. How a piece is cut into tiles never shows in a chunk's bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .bits import LANES, helper, kernel, level64, popcount, within64

TILE: Final = 4096  # elements; a count of them fits uint16
WORDS: Final = TILE // LANES
ROW: Final = WORDS + 8  # entries of one band's running counts, the first of them 0


@helper
def key_bits(values: Any) -> Any:
    """All bits of one element of `values`, as int64 (-1 for eight bytes)."""
    if values.itemsize == 8:
        return np.int64(-1)
    return (np.int64(1) << np.int64(8 * values.itemsize)) - np.int64(1)


@kernel
def band_tile(
    values: Any, base: Any, size: Any, mask: Any, low: Any, shift: Any, cuts: Any, levels: Any, flags: Any, counts: Any
) -> None:
    """Sort the elements values[base : base + size], at most TILE, into the bands that start at levels `cuts`.

    `values` (n,) unsigned, `mask`, `low` and `shift` of its dtype; `cuts` (bands,) uint8 with cuts[0] = 0. Fills `levels`
    (4096,) uint8; `flags` (bands * 64,) uint64: bit t of flags[64 c + q] for element 64 q + t in band c; `counts`
    (bands * 72,) uint16: counts[72 c + q] elements of band c lie before word q; 65535 after the last word.
    """
    whole = size // LANES
    for q in range(whole):
        level64(values, base + q * LANES, mask, low, shift, levels, q * LANES)
    left = size - whole * LANES
    if left:
        bits = key_bits(values)
        for t in range(whole * LANES, size):
            key = (np.int64(values[base + t] & mask) - np.int64(low)) & bits
            levels[t] = np.uint64(key) >> np.uint64(shift)
    valid = (np.uint64(1) << np.uint64(left)) - np.uint64(1)
    bands = cuts.size
    for c in range(bands):
        start = cuts[c]
        length = np.uint8((cuts[c + 1] if c + 1 < bands else 256) - start)
        row = c * ROW
        count = np.int64(0)
        counts[row] = 0
        for q in range(whole):
            word = within64(levels, q * LANES, np.uint8(255), start, length)
            flags[c * WORDS + q] = word
            count += popcount(word)
            counts[row + q + 1] = count
        words = whole
        if left:
            word = within64(levels, whole * LANES, np.uint8(255), start, length) & valid
            flags[c * WORDS + whole] = word
            count += popcount(word)
            words += 1
            counts[row + words] = count
        for q in range(words + 1, WORDS + 1):
            counts[row + q] = 65535
