"""Encoding, step one: find what changed and how far apart, band by band, in one pass over old and new values.

Elements fall into bands by their old value, which both ends know. Gaps are counted in elements of the event's own band,
so a band of values that hardly ever move costs the others nothing. Work goes in tiles whose flags stay in the L1 cache.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from .bits import LANES, differ64, highest_bit, lowest_bit, popcount, within64
from .tables import GAP_BUCKETS, STEP_CLASSES

TILE: Final = 4096  # elements
TILE_WORDS: Final = TILE // LANES


@njit(nogil=True, cache=True)
def band_flags(values: Any, base: int, count: int, mask: Any, lows: Any, sizes: Any, flags: Any) -> None:
    """Fill flags[c, q] with the members of band c among elements base + 64 q .. of a tile of `count` elements.

    `values` (n,) unsigned; band c is the cyclic interval of masked values from lows[c] on, sizes[c] long; the last band is
    the rest. `flags` (bands, 64) uint64.
    """
    last = lows.size - 1
    whole = count // LANES
    for q in range(whole):
        rest = ~np.uint64(0)
        for c in range(last):
            word = within64(values, base + q * LANES, mask, lows[c], sizes[c])
            flags[c, q] = word
            rest &= ~word
        flags[last, q] = rest
    left = count - whole * LANES
    if left:
        at = base + whole * LANES
        for c in range(last + 1):
            flags[c, whole] = np.uint64(0)
        for t in range(left):
            band = last
            for c in range(last):
                key = (np.int64(values[at + t] & mask) - np.int64(lows[c])) & np.int64(full_mask(values))
                if np.uint64(key) < np.uint64(sizes[c]):
                    band = c
            flags[band, whole] |= np.uint64(1) << np.uint64(t)


@njit(nogil=True, inline="always")
def full_mask(values: Any) -> int:
    """All bits of one element of `values`, as int64 (-1 for eight bytes)."""
    if values.itemsize == 8:
        return np.int64(-1)
    return (np.int64(1) << np.int64(8 * values.itemsize)) - np.int64(1)


@njit(nogil=True, inline="always")
def differ_word(old: Any, new: Any, base: int, count: int) -> np.uint64:
    """Flags of the elements that differ among the `count` <= 64 ones from `base` on."""
    if count >= LANES:
        return differ64(old, new, base)
    word = np.uint64(0)
    for t in range(count):
        if old[base + t] != new[base + t]:
            word |= np.uint64(1) << np.uint64(t)
    return word


@njit(nogil=True, cache=True)
def scan_plain(old: Any, new: Any, seen: Any, gaps: Any, olds: Any, news: Any, found: int) -> int:
    """Events of one piece when there is one band: no look at the unchanged values.

    `old`, `new` (n,) of one unsigned dtype. `seen` (1, 2) int64: elements before this piece and rank after the last event,
    carried from piece to piece of a record. Appends from index `found` on to `gaps` uint32, `olds` and `news`; returns the
    new count, or -1 when they are full.
    """
    one = np.uint64(1)
    n = old.size
    at = found
    before = seen[0, 0]
    after = seen[0, 1]
    room = gaps.size
    for base in range(0, n, LANES):
        word = differ_word(old, new, base, n - base)
        if word:
            if at + LANES > room:
                return -1
            while word:
                i = base + lowest_bit(word)
                word &= word - one
                gaps[at] = before + i - after
                after = before + i + 1
                olds[at] = old[i]
                news[at] = new[i]
                at += 1
    seen[0, 0] = before + n
    seen[0, 1] = after
    return at


@njit(nogil=True, cache=True)
def scan_bands(
    old: Any,
    new: Any,
    mask: Any,
    lows: Any,
    sizes: Any,
    seen: Any,
    bands: Any,
    gaps: Any,
    olds: Any,
    news: Any,
    found: int,
) -> int:
    """As `scan_plain` with `lows.size` bands: `seen` is (bands, 2) and counts each band's own elements; fills `bands`."""
    one = np.uint64(1)
    n = old.size
    count = lows.size
    at = found
    room = gaps.size
    flags = np.empty((count, TILE_WORDS), np.uint64)
    for base in range(0, n, TILE):
        size = min(TILE, n - base)
        band_flags(old, base, size, mask, lows, sizes, flags)
        for q in range((size + LANES - 1) // LANES):
            start = base + q * LANES
            word = differ_word(old, new, start, n - start)
            if word:
                if at + LANES > room:
                    return -1
                while word:
                    low = word & (~word + one)
                    i = start + lowest_bit(word)
                    word ^= low
                    band = np.int64(0)
                    while not flags[band, q] & low:
                        band += 1
                    rank = seen[band, 0] + popcount(flags[band, q] & (low - one))
                    bands[at] = band
                    gaps[at] = rank - seen[band, 1]
                    seen[band, 1] = rank + 1
                    olds[at] = old[i]
                    news[at] = new[i]
                    at += 1
            for c in range(count):
                seen[c, 0] += popcount(flags[c, q])
    return at


@njit(nogil=True, cache=True)
def arrange(
    bands: Any,
    gaps: Any,
    olds: Any,
    news: Any,
    flip: Any,
    step_shift: int,
    counts: Any,
    out_gaps: Any,
    out_steps: Any,
    out_olds: Any,
    out_news: Any,
    gap_counts: Any,
    step_counts: Any,
) -> None:
    """Sort the events of one record by band, keeping their order, and turn values into steps.

    Fills `counts` (bands,) int64 and the `out_` arrays (k,): gaps uint32, steps int64, values; adds to the histograms
    `gap_counts` (bands, 64) and `step_counts` (bands, 128) int64.
    """
    k = bands.size
    n = counts.size
    counts[:] = 0
    for j in range(k):
        counts[bands[j]] += 1
    place = np.zeros(n, np.int64)
    for c in range(1, n):
        place[c] = place[c - 1] + counts[c - 1]
    for j in range(k):
        band = bands[j]
        to = place[band]
        place[band] = to + 1
        gap = gaps[j]
        step = step_between(olds[j], news[j], flip, step_shift, olds.itemsize)
        out_gaps[to] = gap
        out_steps[to] = step
        out_olds[to] = olds[j]
        out_news[to] = news[j]
        gap_counts[band, gap_bucket(np.int64(gap))] += 1
        step_counts[band, step_class(step)] += 1


@njit(nogil=True, inline="always")
def ordered(value: Any, flip: Any, size: int) -> int:
    """The value's place in the order of its kind, as int64 of which the low 8 * size bits count."""
    place = np.int64(value)
    if place & (np.int64(1) << np.int64(8 * size - 1)):
        place ^= np.int64(flip)
    return place


@njit(nogil=True, inline="always")
def step_between(old: Any, new: Any, flip: Any, step_shift: int, size: int) -> int:
    """Signed steps from old to new, wrapped to the element's width (`size` bytes)."""
    away = np.int64(64 - 8 * size)
    return ((ordered(new, flip, size) - ordered(old, flip, size)) << away) >> (away + step_shift)


@njit(nogil=True, inline="always")
def gap_bucket(gap: int) -> int:
    """Bucket of a gap below 2^32: see tables."""
    s = np.uint64(gap + 2)
    nb = highest_bit(s) - 1
    return 2 * nb + np.int64((s >> np.uint64(nb)) & np.uint64(1))


@njit(nogil=True, inline="always")
def step_class(step: int) -> int:
    """Class of a step that is not zero: see tables."""
    if step < 0:
        return 2 * highest_bit(np.uint64(-step)) + 1
    return 2 * highest_bit(np.uint64(step))


assert GAP_BUCKETS == 64
assert STEP_CLASSES == 128
