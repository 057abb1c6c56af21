"""Encoding, step one: find what changed and how far apart, band by band, in one pass over old and new values.

Elements fall into bands by their old value, which both ends know. Gaps are counted in elements of the event's own band,
so a band of values that hardly ever move costs the others nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .bits import LANES, differ64, helper, highest_bit, kernel, popcount
from .tiles import NOWHERE, ROW, TILE, WORDS, differ_tail, differ_tile, list_places

BAND_SHIFT: Final = 28  # gaps are below 2^28: a record covers at most 2^25 elements


@kernel
def scan_plain(old: Any, new: Any, seen: Any, marks: Any, values: Any, found: Any) -> Any:
    """Events of one piece when there is one band: no look at the unchanged values.

    `old`, `new` (n,) of one unsigned dtype. `seen` (1, 2) int64: elements before this piece and rank after the last
    event, carried from piece to piece of a record. Writes from index `found` on to `marks` (room,) uint32, band << 28
    | gap, and `values` (room, 2), old and new; returns the new count, or -1 when they are full. Two streams of output,
    not more: a processor follows only so many.
    """
    zero = np.uint64(0)
    one = np.uint64(1)
    n = old.size
    at = np.uint64(found)
    before = seen[0, 0]
    after = seen[0, 1]
    words = np.empty(WORDS, np.uint64)
    places = np.empty(TILE + LANES, np.uint16)
    for base in range(0, n, TILE):
        tile = min(TILE, n - base)
        whole = tile // LANES
        for q in range(whole):
            words[q] = differ64(old, new, base + q * LANES)
        if whole * LANES < tile:
            words[whole] = differ_tail(old, new, base, tile)
        count = list_places(words, (tile + LANES - 1) // LANES, places)
        if np.int64(at) + count > marks.size:
            return -1
        j = np.uint64(0)
        while j < np.uint64(count):
            i = np.uint64(base) + np.uint64(places[j])
            rank = before + np.int64(i)
            marks[at] = rank - after
            after = rank + 1
            values[at, zero] = old[i]
            values[at, one] = new[i]
            at += one
            j += one
    seen[0, 0] = before + n
    seen[0, 1] = after
    return np.int64(at)


@kernel
def scan_bands(
    old: Any, new: Any, mask: Any, low: Any, shift: Any, cuts: Any, seen: Any, marks: Any, values: Any, found: Any
) -> Any:
    """As `scan_plain` with the bands of `band_tile`: `seen` is (bands, 2) and counts each band's own elements."""
    zero = np.uint64(0)
    one = np.uint64(1)
    n = old.size
    number = cuts.size
    at = found
    words = np.empty(WORDS, np.uint64)
    places = np.empty(TILE + LANES, np.uint16)
    levels = np.empty(TILE, np.uint8)
    flags = np.empty(number * WORDS, np.uint64)
    counts = np.full(number * ROW, NOWHERE, np.uint16)
    band_of = np.zeros(256, np.uint8)
    for c in range(number):
        band_of[cuts[c] :] = c
    for base in range(0, n, TILE):
        tile = min(TILE, n - base)
        differ_tile(old, new, base, tile, mask, low, shift, cuts, levels, flags, counts, words)
        last = (tile + LANES - 1) // LANES
        count = list_places(words, last, places)
        if at + count > marks.size:
            return -1
        start = np.uint64(base)
        j = np.uint64(0)
        # unsigned indices: numba then leaves out the question whether they count from the end
        while j < np.uint64(count):
            place = np.uint64(places[j])
            band = np.uint64(band_of[levels[place]])
            q = place >> np.uint64(6)
            below = (one << (place & np.uint64(63))) - one
            inside = popcount(flags[band * np.uint64(WORDS) + q] & below)
            rank = seen[band, zero] + np.int64(counts[band * np.uint64(ROW) + q]) + inside
            to = np.uint64(at) + j
            marks[to] = (rank - seen[band, one]) | (np.int64(band) << BAND_SHIFT)
            seen[band, one] = rank + 1
            values[to, zero] = old[start + place]
            values[to, one] = new[start + place]
            j += one
        at += count
        for c in range(number):
            seen[c, 0] += np.int64(counts[c * ROW + last])
    return at


@kernel
def arrange(
    marks: Any,
    values: Any,
    flip: Any,
    step_shift: Any,
    counts: Any,
    gaps: Any,
    steps: Any,
    olds: Any,
    news: Any,
    gap_counts: Any,
    step_counts: Any,
) -> None:
    """Sort the events of one record by band, keeping their order, and turn values into steps.

    `marks` (k,) and `values` (k, 2) as scanned. Fills `counts` (bands,) int64, `gaps` (k,) uint32, and `steps`, `olds`
    and `news` (k,) of the elements' dtype; adds to the histograms `gap_counts` (bands, 64) and `step_counts` (bands,
    128) int64.
    """
    k = marks.size
    n = counts.size
    size = values.itemsize
    counts[:] = 0
    for j in range(k):
        counts[np.int64(marks[j]) >> BAND_SHIFT] += 1
    place = np.zeros(n, np.int64)
    for c in range(1, n):
        place[c] = place[c - 1] + counts[c - 1]
    for j in range(k):
        mark = np.int64(marks[j])
        band = mark >> BAND_SHIFT
        gap = mark & ((1 << BAND_SHIFT) - 1)
        to = place[band]
        place[band] = to + 1
        old = values[j, 0]
        new = values[j, 1]
        step = step_between(old, new, flip, step_shift, size)
        gaps[to] = gap
        steps[to] = step
        olds[to] = old
        news[to] = new
        gap_counts[band, gap_bucket(gap)] += 1
        step_counts[band, step_class(step)] += 1


@helper
def ordered(value: Any, flip: Any, size: Any) -> Any:
    """The value's place in the order of its kind, as int64 of which the low 8 * size bits count."""
    sign = (np.int64(value) << np.int64(64 - 8 * size)) >> np.int64(63)
    return np.int64(value) ^ (np.int64(flip) & sign)


@helper
def step_between(old: Any, new: Any, flip: Any, step_shift: Any, size: Any) -> Any:
    """Signed steps from old to new, wrapped to the element's width (`size` bytes)."""
    away = np.int64(64 - 8 * size)
    return ((ordered(new, flip, size) - ordered(old, flip, size)) << away) >> (away + step_shift)


@helper
def gap_bucket(gap: Any) -> Any:
    """Bucket of a gap below 2^32: see tables."""
    s = np.uint64(gap + 2)
    nb = highest_bit(s) - 1
    return 2 * nb + np.int64((s >> np.uint64(nb)) & np.uint64(1))


@helper
def step_class(step: Any) -> Any:
    """Class of a step that is not zero: see tables."""
    negative = np.int64(step < 0)
    return 2 * highest_bit(np.uint64((step ^ -negative) + negative)) + negative
