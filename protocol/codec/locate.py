"""Decoding a sparse record, steps two and three: find the elements that ranks speak of, then write them.

Locating reads the old values only: bands, ranks and checksums all rest on values as they were, and nothing is written
before every check of the record has passed. Positions come from set bits of a word of flags inside the piece, so no
content of a stream can lead outside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .bits import LANES, popcount, select64
from .scan import TILE, TILE_WORDS, band_flags, ordered


@njit(nogil=True, cache=True)
def locate_plain(
    values: Any,
    flip: Any,
    step_shift: int,
    seen: Any,
    cursor: Any,
    ranks: Any,
    steps: Any,
    places: Any,
    olds: Any,
    news: Any,
) -> None:
    """Find the events of one piece when there is one band.

    `values` (n,) unsigned: the old elements. `seen` and `cursor` (1,) int64: elements before this piece and events found,
    carried from piece to piece. For each event found fills `places` (index within the piece, uint32), `olds` and `news`.
    """
    n = values.size
    size = values.itemsize
    j = cursor[0]
    before = seen[0]
    while j < ranks.size and np.int64(ranks[j]) - before < n:
        place = np.int64(ranks[j]) - before
        places[j] = place
        value = values[place]
        olds[j] = value
        news[j] = moved(value, steps[j], flip, step_shift, size)
        j += 1
    cursor[0] = j
    seen[0] = before + n


@njit(nogil=True, cache=True)
def locate_bands(
    values: Any,
    mask: Any,
    lows: Any,
    sizes: Any,
    flip: Any,
    step_shift: int,
    seen: Any,
    cursor: Any,
    ends: Any,
    ranks: Any,
    steps: Any,
    places: Any,
    olds: Any,
    news: Any,
) -> None:
    """As `locate_plain` with `lows.size` bands; the events of band c are those from `cursor[c]` up to `ends[c]`."""
    n = values.size
    size = values.itemsize
    count = lows.size
    flags = np.empty((count, TILE_WORDS), np.uint64)
    for base in range(0, n, TILE):
        tile = min(TILE, n - base)
        band_flags(values, base, tile, mask, lows, sizes, flags)
        words = (tile + LANES - 1) // LANES
        for c in range(count):
            j = cursor[c]
            end = ends[c]
            before = seen[c]
            for q in range(words):
                word = flags[c, q]
                inside = popcount(word)
                while j < end and np.int64(ranks[j]) - before < inside:
                    place = base + q * LANES + select64(word, np.int64(ranks[j]) - before)
                    places[j] = place
                    value = values[place]
                    olds[j] = value
                    news[j] = moved(value, steps[j], flip, step_shift, size)
                    j += 1
                before += inside
            cursor[c] = j
            seen[c] = before


@njit(nogil=True, inline="always")
def moved(value: Any, step: int, flip: Any, step_shift: int, size: int) -> int:
    """The value `step` steps further, wrapping at the element's width (`size` bytes); bits above it are noise."""
    place = ordered(value, flip, size) + (step << step_shift)
    if place & (np.int64(1) << np.int64(8 * size - 1)):
        place ^= np.int64(flip)
    return place


@njit(nogil=True, cache=True)
def write_values(values: Any, places: Any, news: Any, first: int, last: int) -> None:
    """values[places[j]] = news[j] for j in first..last-1; a place outside `values` is left out."""
    for j in range(first, last):
        place = np.int64(places[j])
        if place < values.size:
            values[place] = news[j]
