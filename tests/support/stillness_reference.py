"""The counts and the size bound of `protocol/stillness.py`, one element at a time, written from their definition."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from patchswarm.protocol.elements import BITS, FLOAT_FIELDS, Kind


def elements(kind: Kind, data: np.ndarray) -> list[int]:
    """Bytes to the elements' bits."""
    if BITS[kind] == 4:
        return [nibble for byte in data.tolist() for nibble in (byte & 15, byte >> 4)]
    return data.view(f"u{BITS[kind] // 8}").tolist()


def context(kind: Kind, bits: int) -> int:
    """A float's exponent field; the upper eight bits of an integer."""
    if kind in FLOAT_FIELDS:
        exponent, mantissa = FLOAT_FIELDS[kind]
        return (bits >> mantissa) & ((1 << exponent) - 1)
    return bits >> max(0, BITS[kind] - 8)


def step(kind: Kind, old: int, new: int) -> int:
    """Signed distance in the order of values, as far as the element's width tells it."""
    width = BITS[kind]

    def place(bits: int) -> int:
        if kind in FLOAT_FIELDS and kind is not Kind.F8_E8M0 and bits >> (width - 1):
            return -1 - (bits - (1 << (width - 1)))  # -0 is one step below +0
        return bits

    distance = (place(new) - place(old)) % (1 << width)
    return distance - (1 << width) if distance >> (width - 1) else distance


def counts(kind: Kind, old: np.ndarray, new: np.ndarray) -> tuple[Counter, Counter, Counter]:
    """Elements by context, changed elements by context, and changed elements by (context, step)."""
    pairs = list(zip(elements(kind, old), elements(kind, new), strict=True))
    moved = [(context(kind, a), step(kind, a, b)) for a, b in pairs if a != b]
    return Counter(context(kind, a) for a, _ in pairs), Counter(at for at, _ in moved), Counter(moved)


def bound_bytes(kind: Kind, tensors: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The bound of several tensors of one kind."""
    bits = 0.0
    steps: dict[int, Counter] = {}
    for old, new in tensors:
        present, changed, moved = counts(kind, old, new)
        for at, n in present.items():
            bits += _entropy([changed[at], n - changed[at]])
        for (at, distance), n in moved.items():
            steps.setdefault(at, Counter())[min(max(distance, -20), 20)] += n
    return (bits + sum(_entropy(list(row.values())) for row in steps.values())) / 8


def _entropy(parts: list[int]) -> float:
    """Bits to say in which order the parts of a whole come."""
    whole = sum(parts)
    return sum(n * math.log2(whole / n) for n in parts if n)
