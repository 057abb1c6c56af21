"""Tiles: the bands of a few thousand elements at a time, as words of flags and running counts in the L1 cache.

Both ends walk a piece tile by tile. An element's level is the top of its old value (a float's exponent); a band is a
range of levels. How a piece is cut into tiles never shows in a chunk's bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .bits import LANES, atleast64, differ64, helper, kernel, level64, lowest_bit, popcount, prefetch64, running_counts

NOWHERE: Final = 65535
TILE: Final = 4096  # elements; a count of them fits uint16
WORDS: Final = TILE // LANES
AHEAD: Final = TILE  # elements between asking for a cache line and reading it
ROW: Final = LANES + 8  # entries of one band's running counts, the first of them 0


@helper
def key_bits(values: Any) -> Any:
    """All bits of one element of `values`, as int64 (-1 for eight bytes)."""
    if values.itemsize == 8:
        return np.int64(-1)
    return (np.int64(1) << np.int64(8 * values.itemsize)) - np.int64(1)


@helper
def flag_bands(levels: Any, q: Any, cuts: Any, flags: Any) -> None:
    """Flags of the 64 elements of word q in every band."""
    above = ~np.uint64(0)
    last = cuts.size - 1
    for c in range(last):
        here = atleast64(levels, q * LANES, cuts[c + 1])
        flags[c * WORDS + q] = above & ~here
        above = here
    flags[last * WORDS + q] = above


@kernel
def band_tail(
    values: Any, base: Any, size: Any, mask: Any, low: Any, shift: Any, cuts: Any, levels: Any, flags: Any
) -> None:
    """Levels and flags of the last, incomplete word of a tile, one element at a time."""
    start = size // LANES * LANES
    bits = key_bits(values)
    for c in range(cuts.size):
        flags[c * WORDS + start // LANES] = 0
    for t in range(start, size):
        key = (np.int64(values[base + t] & mask) - np.int64(low)) & bits
        level = np.int64(np.uint64(key) >> np.uint64(shift)) & 255
        levels[t] = level
        band = 0
        while band + 1 < cuts.size and np.int64(cuts[band + 1]) <= level:
            band += 1
        flags[band * WORDS + start // LANES] |= np.uint64(1) << np.uint64(t - start)


@kernel
def count_bands(flags: Any, bands: Any, words: Any, counts: Any) -> None:
    """counts[72 c + q] (uint16): elements of band c before word q of a tile of `words` words; 65535 after the last."""
    if words == WORDS:
        for c in range(bands):
            counts[c * ROW] = 0
            running_counts(flags, c * WORDS, counts, c * ROW + 1)
        return
    for c in range(bands):
        count = np.int64(0)
        row = c * ROW
        counts[row] = 0
        for q in range(words):
            count += popcount(flags[c * WORDS + q])
            counts[row + q + 1] = count
        for q in range(words + 1, WORDS + 1):
            counts[row + q] = NOWHERE


@kernel
def band_tile(
    values: Any,
    base: Any,
    size: Any,
    mask: Any,
    low: Any,
    shift: Any,
    cuts: Any,
    levels: Any,
    flags: Any,
    counts: Any,
) -> None:
    """Sort the elements values[base : base + size], at most TILE, into the bands that start at levels `cuts`.

    `values` (n,) unsigned, `mask`, `low` and `shift` of its dtype; `cuts` (bands,) uint8 with cuts[0] = 0. Fills
    `levels` (4096,) uint8; `flags` (bands * 64,) uint64: bit t of flags[64 c + q] for element 64 q + t in band c;
    `counts` (bands * 72,) uint16 by `count_bands`. One loop reads memory and does all the work on it: a processor's
    read-ahead follows a steady stream, not bursts.
    """
    whole = size // LANES
    for q in range(whole):
        prefetch64(values, base + q * LANES + AHEAD)
        level64(values, base + q * LANES, mask, low, shift, levels, q * LANES)
        flag_bands(levels, q, cuts, flags)
    words = whole
    if whole * LANES < size:
        band_tail(values, base, size, mask, low, shift, cuts, levels, flags)
        words += 1
    count_bands(flags, cuts.size, words, counts)


@kernel
def differ_tile(
    old: Any,
    new: Any,
    base: Any,
    size: Any,
    mask: Any,
    low: Any,
    shift: Any,
    cuts: Any,
    levels: Any,
    flags: Any,
    counts: Any,
    words: Any,
) -> None:
    """`band_tile` of `old`, and bit t of words[q] (64,) uint64 where element 64 q + t differs from `new`'s."""
    whole = size // LANES
    for q in range(whole):
        prefetch64(old, base + q * LANES + AHEAD)
        prefetch64(new, base + q * LANES + AHEAD)
        words[q] = differ64(old, new, base + q * LANES)
        level64(old, base + q * LANES, mask, low, shift, levels, q * LANES)
        flag_bands(levels, q, cuts, flags)
    last = whole
    if whole * LANES < size:
        words[whole] = differ_tail(old, new, base, size)
        band_tail(old, base, size, mask, low, shift, cuts, levels, flags)
        last += 1
    count_bands(flags, cuts.size, last, counts)


@kernel
def differ_tail(old: Any, new: Any, base: Any, size: Any) -> Any:
    """Flags of the differing elements of a tile's last, incomplete word."""
    word = np.uint64(0)
    start = size // LANES * LANES
    for t in range(start, size):
        word |= np.uint64(old[base + t] != new[base + t]) << np.uint64(t - start)
    return word


@kernel
def list_places(words: Any, count: Any, places: Any) -> Any:
    """Places (4096 + 64,) uint16 of the set bits of words[:count]; returns how many."""
    one = np.uint64(1)
    found = np.uint64(0)
    for q in range(count):
        word = words[q]
        start = q * LANES
        # two places are written whether or not they exist: most words hold fewer, and no branch is there to guess wrong
        places[found] = start + lowest_bit(word)
        more = word & (word - one)
        places[found + one] = start + lowest_bit(more)
        more &= more - one
        at = found + one + one
        while more:
            places[at] = start + lowest_bit(more)
            more &= more - one
            at += one
        found += np.uint64(popcount(word))
    return np.int64(found)
