"""How still a model is: which elements of a tensor changed, by how much, and the size that no codec goes below.

The bound is an empirical entropy: for each tensor and each exponent of the old value (integers: each old value) the
bits that say which elements changed, and for each exponent the bits that say the step in ULP order. No table, header
or checksum is counted. Memory depends on the element kinds only, never on the size of what is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .codec.bits import helper, kernel
from .codec.order import frozen, order_of, unpack_nibbles
from .elements import BITS, FLOAT_FIELDS, Kind

STEP_LIMIT: Final = 20
"""The bound counts all larger steps in one direction as one."""

DISTANCES: Final = 64
"""Classes of distances: class c holds those above 2^(c - 1) and up to 2^c; class 0 is a distance of 1."""

# Exponents that the formats' fields are read against. Sources: IEEE 754, OCP OFP8 v1.0, OCP MX v1.0.
_BIAS: Final[dict[Kind, int]] = {
    Kind.F4: 1,
    Kind.F8_E4M3: 7,
    Kind.F8_E5M2: 15,
    Kind.F8_E8M0: 127,
    Kind.F16: 15,
    Kind.BF16: 127,
    Kind.F32: 127,
    Kind.F64: 1023,
}


@dataclass(frozen=True, slots=True)
class _Context:
    """How a kind's old value becomes its context: `(value >> shift) & (number - 1)`."""

    shift: int
    number: int


@cache
def _context(kind: Kind) -> _Context:
    low = 4 if BITS[kind] == 4 else 0  # nibbles stand in the upper half of their byte
    if kind in FLOAT_FIELDS:
        exponent, mantissa = FLOAT_FIELDS[kind]
        return _Context(mantissa + low, 1 << exponent)
    bits = min(8, BITS[kind])
    return _Context(BITS[kind] - bits + low, 1 << bits)


def exponent_of(kind: Kind, context: int) -> int | None:
    """The power of two that values of a context begin with; None for kinds without an exponent.

    The lowest also holds zeros and subnormal values, the highest, where the format has them, infinities and NaNs.
    """
    return context - _BIAS[kind] if kind in _BIAS else None


class Counts:
    """What changed in one tensor, seen piece by piece, in any order.

    `present` and `changed` are (contexts,) int64: elements, and changed elements, by context of the old value; `steps`
    (contexts, 41) int64 counts changed elements by step, clipped to ±20; `distances` (64,) int64 by size of the step.
    """

    def __init__(self, kind: Kind) -> None:
        context = _context(kind)
        self.kind = kind
        self.present = np.zeros(context.number, np.int64)
        self.changed = np.zeros(context.number, np.int64)
        self.steps = np.zeros((context.number, 2 * STEP_LIMIT + 1), np.int64)
        self.distances = np.zeros(DISTANCES, np.int64)

    def see(self, old: NDArray[np.uint8], new: NDArray[np.uint8]) -> None:
        """Add a range of the tensor: bytes of whole elements, equally many, contiguous."""
        if old.size != new.size or old.size * 8 % max(8, BITS[self.kind]):
            raise ValueError(f"{old.size} and {new.size} bytes are no range of {self.kind.name} elements")
        order, context = order_of(self.kind), _context(self.kind)
        if BITS[self.kind] == 4:
            old, new = unpack_nibbles(old), unpack_nibbles(new)
        count_changes(
            frozen(old.view(order.dtype)), frozen(new.view(order.dtype)), order.flip, BITS[self.kind],
            context.shift, self.present, self.changed, self.steps, self.distances,
        )  # fmt: skip


class Tally:
    """The counts of many tensors of one kind, taken together in `whole`, and the bound that they add up to."""

    def __init__(self, kind: Kind) -> None:
        self.whole = Counts(kind)
        self._mask_bits = 0.0

    def add(self, tensor: Counts) -> None:
        """Add a tensor that was seen to its end."""
        self._mask_bits += _mask_bits(tensor.present, tensor.changed)
        self.whole.present += tensor.present
        self.whole.changed += tensor.changed
        self.whole.steps += tensor.steps
        self.whole.distances += tensor.distances

    @property
    def bound_bytes(self) -> float:
        """Bytes to say which elements changed, given tensor and old exponent, and their steps, given the exponent."""
        return (self._mask_bits + _step_bits(self.whole.steps)) / 8


def bound_bytes(kind: Kind, tensors: Iterable[tuple[NDArray[np.uint8], NDArray[np.uint8]]]) -> tuple[float, int]:
    """Bytes of the bound, and the number of changed elements, of (old, new) bytes of tensors of one kind."""
    tally = Tally(kind)
    for old, new in tensors:
        counts = Counts(kind)
        counts.see(old, new)
        tally.add(counts)
    return tally.bound_bytes, int(tally.whole.changed.sum())


def _mask_bits(present: NDArray[np.int64], changed: NDArray[np.int64]) -> float:
    inside = (changed > 0) & (changed < present)
    n, k = present[inside].astype(float), changed[inside].astype(float)
    return -float(np.sum(k * np.log2(k / n) + (n - k) * np.log2(1 - k / n)))


def _step_bits(steps: NDArray[np.int64]) -> float:
    counts, rows = steps[steps > 0].astype(float), steps.sum(axis=1).astype(float)
    rows = rows[rows > 0]
    return float(np.sum(rows * np.log2(rows)) - np.sum(counts * np.log2(counts)))


@helper
def _place(value: Any, lift: Any, flip: Any) -> Any:
    """An element's place in ULP order, in the uppermost bits of 64."""
    place = np.uint64(value) << np.uint64(lift)
    if place >> np.uint64(63):
        place ^= np.uint64(flip) << np.uint64(lift)
    return place


@helper
def _class_of(step: Any) -> Any:
    """The class of a step's size."""
    size = np.uint64(step) if step >= 0 else np.uint64(0) - np.uint64(step)
    found = 0
    while (np.uint64(1) << np.uint64(found)) < size:
        found += 1
    return found


@kernel
def count_changes(
    old: Any, new: Any, flip: Any, bits: Any, shift: Any, present: Any, changed: Any, steps: Any, distances: Any
) -> None:
    """Add the elements of `old`, and those of them that differ in `new`, to the counts of a tensor.

    `flip` as in `codec.order.Order`; `bits` are those of an element; `shift` leads to its context.
    """
    lift = 64 - 8 * old.itemsize
    last = np.uint64(present.size - 1)
    # Neighbours often share a context: counted in four rows, no addition waits for the one before it.
    rows = np.zeros((4, present.size), np.int64)
    for i in range(old.size):
        context = np.int64((np.uint64(old[i]) >> np.uint64(shift)) & last)
        rows[i & 3, context] += 1
        if old[i] != new[i]:
            moved = np.int64(_place(new[i], lift, flip) - _place(old[i], lift, flip))  # wraps as elements do
            step: Any = moved >> np.int64(64 - bits)
            clipped: Any = min(max(step, -STEP_LIMIT), STEP_LIMIT)
            changed[context] += 1
            steps[context, clipped + STEP_LIMIT] += 1
            distances[_class_of(step)] += 1
    for row in range(4):
        for place in range(present.size):
            present[place] += rows[row, place]
