"""Decoding a sparse record, step two: find the elements that ranks speak of, and move them.

Bands and ranks rest on values as they were before the record: a tile is sorted into bands before any of its elements
is written, and no two events meet in one element. Places come from set bits of a word of flags inside the piece, so no
content of a stream can lead outside it. Finding a place takes no branch: the word by comparing 64 running counts with
the rank at once, the bit by `select64`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .bits import LANES, atleast64, helper, kernel, popcount, prefetch, select64
from .scan import ordered
from .tiles import NOWHERE, ROW, TILE, WORDS, band_tile

AHEAD: Final = 32  # events between asking for a value and using it


@helper
def moved(value: Any, step: Any, flip: Any, step_shift: Any, size: Any) -> Any:
    """The value `step` steps further, wrapping at the element's width (`size` bytes); bits above it are noise."""
    return ordered(ordered(value, flip, size) + (np.int64(step) << step_shift), flip, size)


@kernel
def locate_plain(
    values: Any,
    target: Any,
    flip: Any,
    step_shift: Any,
    seen: Any,
    cursor: Any,
    ranks: Any,
    steps: Any,
    news: Any,
) -> None:
    """Find the events of one piece when there is one band, and write them to `target` unless that is empty.

    `values` (n,) unsigned: the old elements, of which `target` may be the same memory. `seen` and `cursor` (1,) int64:
    elements before this piece and events found, carried from piece to piece. For each event found fills `news`, and
    puts the index within the piece in place of its rank (uint32) and the old value in place of its step: fewer streams
    of memory.
    """
    n = values.size
    size = values.itemsize
    write = target.size == n
    before = seen[0]
    first = cursor[0]
    last = first
    end = ranks.size
    while last < end and np.int64(ranks[last]) - before < n:
        last += 1
    for j in range(first, last):
        prefetch(values, np.int64(ranks[min(j + AHEAD, last - 1)]) - before)
        place = np.int64(ranks[j]) - before
        value = values[place]
        new = moved(value, steps[j], flip, step_shift, size)
        ranks[j] = place
        steps[j] = value
        news[j] = new
        if write:
            target[place] = new
    cursor[0] = last
    seen[0] = before + n


@kernel
def locate_bands(
    values: Any,
    target: Any,
    mask: Any,
    low: Any,
    shift: Any,
    cuts: Any,
    flip: Any,
    step_shift: Any,
    seen: Any,
    cursor: Any,
    ends: Any,
    ranks: Any,
    steps: Any,
    news: Any,
) -> None:
    """As `locate_plain` with the bands of `band_tile`; band c has the events from `cursor[c]` up to `ends[c]`."""
    n = values.size
    size = values.itemsize
    write = target.size == n
    number = cuts.size
    levels = np.empty(TILE, np.uint8)
    flags = np.empty(number * WORDS, np.uint64)
    counts = np.full(number * ROW, NOWHERE, np.uint16)
    one = np.uint64(1)
    six = np.uint64(6)
    for base in range(0, n, TILE):
        tile = min(TILE, n - base)
        band_tile(values, base, tile, mask, low, shift, cuts, levels, flags, counts)
        words = (tile + LANES - 1) // LANES
        for c in range(number):
            row = c * ROW
            before = np.uint64(seen[c])
            inside = np.uint64(counts[row + words])
            seen[c] += np.int64(inside)
            # indices are unsigned: numba then leaves out the question whether they count from the end
            first = np.uint64(row)
            flag = np.uint64(c * WORDS)
            j = np.uint64(cursor[c])
            end = np.uint64(ends[c])
            while j < end:
                rank = np.uint64(ranks[j]) - before
                if rank >= inside:
                    break
                q = np.uint64(LANES - popcount(atleast64(counts, row + 1, np.uint16(rank + one))))
                bit = select64(flags[flag + q], rank - np.uint64(counts[first + q]))
                place = np.uint64(base) + (q << six) + bit
                value = values[place]
                new = moved(value, steps[j], flip, step_shift, size)
                ranks[j] = place
                steps[j] = value
                news[j] = new
                if write:
                    target[place] = new
                j += one
            cursor[c] = np.int64(j)


@kernel
def put_values(values: Any, places: Any, put: Any, first: Any, last: Any) -> None:
    """values[places[j]] = put[j] for j in first..last-1; a place outside `values` is left out."""
    for j in range(first, last):
        place = np.int64(places[j])
        if place < values.size:
            values[place] = put[j]
