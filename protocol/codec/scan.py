"""Encoding, step one: find what changed and how far apart, band by band, in one pass over old and new values.

Elements fall into bands by their old value, which both ends know. Gaps are counted in elements of the event's own band,
so a band of values that hardly ever move costs the others nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .bits import LANES, differ64, helper, highest_bit, kernel, lowest_bit, popcount
from .tiles import ROW, TILE, WORDS, band_tile


@kernel
def differing(old: Any, new: Any, base: Any, size: Any, words: Any, places: Any) -> Any:
    """Places within the tile old[base : base + size] where new differs, to `places` (4096 + 64,) uint16; their number.

    `words` (64,) uint64 is scratch.
    """
    one = np.uint64(1)
    whole = size // LANES
    for q in range(whole):
        words[q] = differ64(old, new, base + q * LANES)
    last = whole
    if whole * LANES < size:
        word = np.uint64(0)
        for t in range(size - whole * LANES):
            i = base + whole * LANES + t
            word |= np.uint64(old[i] != new[i]) << np.uint64(t)
        words[whole] = word
        last += 1
    found = np.int64(0)
    for q in range(last):
        word = words[q]
        start = q * LANES
        # two places are written whether or not they exist: most words hold fewer, and no branch is there to guess wrong
        places[found] = start + lowest_bit(word)
        more = word & (word - one)
        places[found + 1] = start + lowest_bit(more)
        more &= more - one
        at = found + 2
        while more:
            places[at] = start + lowest_bit(more)
            more &= more - one
            at += 1
        found += popcount(word)
    return found


@kernel
def scan_plain(old: Any, new: Any, seen: Any, gaps: Any, olds: Any, news: Any, found: Any) -> Any:
    """Events of one piece when there is one band: no look at the unchanged values.

    `old`, `new` (n,) of one unsigned dtype. `seen` (1, 2) int64: elements before this piece and rank after the last event,
    carried from piece to piece of a record. Appends from index `found` on to `gaps` uint32, `olds` and `news`; returns the
    new count, or -1 when they are full.
    """
    n = old.size
    at = found
    before = seen[0, 0]
    after = seen[0, 1]
    room = gaps.size
    words = np.empty(WORDS, np.uint64)
    places = np.empty(TILE + LANES, np.uint16)
    for base in range(0, n, TILE):
        count = differing(old, new, base, min(TILE, n - base), words, places)
        if at + count > room:
            return -1
        for j in range(count):
            i = base + np.int64(places[j])
            gaps[at + j] = before + i - after
            after = before + i + 1
            olds[at + j] = old[i]
            news[at + j] = new[i]
        at += count
    seen[0, 0] = before + n
    seen[0, 1] = after
    return at


@kernel
def scan_bands(
    old: Any,
    new: Any,
    mask: Any,
    low: Any,
    shift: Any,
    cuts: Any,
    seen: Any,
    bands: Any,
    gaps: Any,
    olds: Any,
    news: Any,
    found: Any,
) -> Any:
    """As `scan_plain` with the bands of `band_tile`: `seen` is (bands, 2) and counts each band's own elements.

    Fills `bands` uint8 too.
    """
    one = np.uint64(1)
    n = old.size
    number = cuts.size
    at = found
    room = gaps.size
    words = np.empty(WORDS, np.uint64)
    places = np.empty(TILE + LANES, np.uint16)
    levels = np.empty(TILE, np.uint8)
    flags = np.empty(number * WORDS, np.uint64)
    counts = np.empty(number * ROW, np.uint16)
    band_of = np.zeros(256, np.uint8)
    for c in range(number):
        band_of[cuts[c] :] = c
    for base in range(0, n, TILE):
        size = min(TILE, n - base)
        count = differing(old, new, base, size, words, places)
        if at + count > room:
            return -1
        band_tile(old, base, size, mask, low, shift, cuts, levels, flags, counts)
        for j in range(count):
            place = np.int64(places[j])
            band = np.int64(band_of[levels[place]])
            q = place >> 6
            below = (one << np.uint64(place & 63)) - one
            rank = seen[band, 0] + np.int64(counts[band * ROW + q]) + popcount(flags[band * WORDS + q] & below)
            bands[at + j] = band
            gaps[at + j] = rank - seen[band, 1]
            seen[band, 1] = rank + 1
            olds[at + j] = old[base + place]
            news[at + j] = new[base + place]
        at += count
        last = (size + LANES - 1) // LANES
        for c in range(number):
            seen[c, 0] += np.int64(counts[c * ROW + last])
    return at


@kernel
def arrange(
    bands: Any,
    gaps: Any,
    olds: Any,
    news: Any,
    flip: Any,
    step_shift: Any,
    counts: Any,
    out_gaps: Any,
    out_steps: Any,
    out_olds: Any,
    out_news: Any,
    gap_counts: Any,
    step_counts: Any,
) -> None:
    """Sort the events of one record by band, keeping their order, and turn values into steps.

    Fills `counts` (bands,) int64 and the `out_` arrays (k,): gaps uint32, steps and values of the elements' dtype; adds to
    the histograms `gap_counts` (bands, 64) and `step_counts` (bands, 128) int64.
    """
    k = bands.size
    n = counts.size
    size = olds.itemsize
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
        step = step_between(olds[j], news[j], flip, step_shift, size)
        out_gaps[to] = gap
        out_steps[to] = step
        out_olds[to] = olds[j]
        out_news[to] = news[j]
        gap_counts[band, gap_bucket(np.int64(gap))] += 1
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
