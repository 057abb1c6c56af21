"""Where to cut old values into bands: counts per level from a sample, then the best cuts by dynamic programming.

Small values move far more often than large ones (one rounding step is a larger part of an update), so the rate of
change falls by half per exponent. Cuts are the ones that minimise the entropy of "which elements of each band
changed".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .bits import helper, kernel
from .order import LEVELS

SAMPLE_WINDOW: Final = 1024  # elements looked at in a row
MOST_TABLES: Final = 3  # per element kind and call
TABLE_BITS: Final = 200  # what one more band costs in its table, roughly


@kernel
def sample_levels(
    old: Any, new: Any, mask: Any, low: Any, level_shift: Any, stride: Any, phase: Any, present: Any, changed: Any
) -> None:
    """Count elements per level in windows of 1024, one every `stride` windows from window `phase` on.

    Adds to `present` and `changed` (256,) int64.
    """
    n = old.size
    size = old.itemsize
    bits = np.int64(-1) if size == 8 else (np.int64(1) << np.int64(8 * size)) - np.int64(1)
    for base in range(phase * SAMPLE_WINDOW, n, stride * SAMPLE_WINDOW):
        for i in range(base, min(n, base + SAMPLE_WINDOW)):
            value = old[i]
            key = (np.int64(value & mask) - np.int64(low)) & bits
            level = np.int64(np.uint64(key) >> np.uint64(level_shift)) & 255
            present[level] += 1
            if value != new[i]:
                changed[level] += 1


@helper
def _entropy(total: Any, part: Any) -> Any:
    """Bits to say which `part` of `total` elements changed."""
    if part <= 0 or part >= total:
        return 0.0
    return -(part * np.log2(part / total) + (total - part) * np.log2(1.0 - part / total))


@kernel
def best_cuts(present: Any, changed: Any, most: Any, cuts: Any) -> Any:
    """Choose at most `most` bands; fills `cuts` (bands - 1,) with the levels they start at and returns their number.

    `present`, `changed` (256,) float64: elements and changed elements per level of the whole input.
    """
    levels = np.empty(LEVELS + 1, np.int64)
    m = 0
    for i in range(LEVELS):
        if present[i] > 0:
            levels[m] = i
            m += 1
    if m == 0:
        return 0
    total = np.zeros(m + 1)
    part = np.zeros(m + 1)
    for i in range(m):
        total[i + 1] = total[i] + present[levels[i]]
        part[i + 1] = part[i] + changed[levels[i]]
    cost = np.full((most + 1, m + 1), np.inf)
    start = np.zeros((most + 1, m + 1), np.int64)
    cost[0, 0] = 0.0
    for b in range(1, most + 1):
        for j in range(1, m + 1):
            for i in range(j):
                if cost[b - 1, i] < np.inf:
                    here = cost[b - 1, i] + _entropy(total[j] - total[i], part[j] - part[i])
                    if here < cost[b, j]:
                        cost[b, j] = here
                        start[b, j] = i
    chosen = 1
    for b in range(2, most + 1):
        if cost[b, m] + b * TABLE_BITS < cost[chosen, m] + chosen * TABLE_BITS:
            chosen = b
    j = m
    for b in range(chosen, 1, -1):
        j = start[b, j]
        cuts[b - 2] = levels[j]
    return chosen - 1


def alike(present: NDArray[np.int64], changed: NDArray[np.int64], scale: float, bands: int) -> list[NDArray[np.int64]]:
    """Records (r, 256), as sampled, put into at most three groups whose members change at like rates.

    A record's rate is compared with what its levels would make it at the common rates (an embedding that is mostly at
    rest among busy layers). Groups part where the bits saved, Poisson's log-likelihood, pay for another table.
    """
    rates = changed.sum(axis=0) / np.maximum(1, present.sum(axis=0))
    expected = present @ rates
    counted = changed.sum(axis=1).astype(np.float64)
    order = np.argsort(counted / np.maximum(expected, 1e-9), kind="stable")
    groups = [order]
    price = 8.0 + bands * TABLE_BITS / scale
    while len(groups) < MOST_TABLES:
        parts = [_best_part(counted[group], expected[group]) for group in groups]
        best = max(range(len(groups)), key=lambda i: parts[i][0])
        gain, cut = parts[best]
        if gain <= price:
            break
        groups[best : best + 1] = [groups[best][:cut], groups[best][cut:]]
    return [np.sort(group) for group in groups if group.size]


def _best_part(counted: NDArray[np.float64], expected: NDArray[np.float64]) -> tuple[float, int]:
    """Bits saved by giving the first `cut` records and the rest a rate of their own, and the best such cut."""
    left_counted, left_expected = np.cumsum(counted)[:-1], np.cumsum(expected)[:-1]
    if left_counted.size == 0:
        return 0.0, 0

    def fit(count: NDArray[np.float64] | float, expect: NDArray[np.float64] | float) -> NDArray[np.float64]:
        return np.asarray(count * np.log2(np.maximum(count, 1e-9) / np.maximum(expect, 1e-9)))

    total_counted, total_expected = float(counted.sum()), float(expected.sum())
    gains = fit(left_counted, left_expected) + fit(total_counted - left_counted, total_expected - left_expected)
    cut = int(np.argmax(gains))
    return float(gains[cut] - fit(total_counted, total_expected)), cut + 1


def plan_cuts(present: NDArray[np.int64], changed: NDArray[np.int64], elements: int, bands: int) -> NDArray[np.uint8]:
    """Levels (bands,) uint8, from 0, rising, at which bands start, for `elements` elements sampled as counted."""
    seen = int(present.sum())
    if bands <= 1 or seen == 0 or int(changed.sum()) < 16:
        return np.zeros(1, np.uint8)
    scale = elements / seen
    cuts = np.empty(bands, np.int64)
    found = best_cuts(present * scale, changed * scale, bands, cuts)
    return np.concatenate([np.zeros(1, np.uint8), cuts[:found].astype(np.uint8)])
