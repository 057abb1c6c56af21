"""The order of values: how each element kind maps to integers whose distance is counted in steps (ULPs).

A float's bits, read as sign and magnitude, map to a monotone two's complement integer by flipping the magnitude bits
of negative values: ``y = x ^ (flip if x has its sign bit else 0)``. The map is its own inverse and a bijection over
all bit patterns, so NaN payloads, infinities and both zeros survive. Integers (and E8M0, which has no sign) are their
own order: flip is 0 and the step is the wrapping difference. Packed nibbles are handled one to a byte, in its upper
half.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..elements import BITS, FLOAT_FIELDS, Kind
from .bits import kernel

_SIGNED = frozenset({Kind.I4, Kind.I8, Kind.I16, Kind.I32, Kind.I64})
LEVELS = 256  # classes of the old value that band cuts may fall between


@dataclass(frozen=True, slots=True)
class Order:
    """Constants of one kind for the kernels; the numpy scalars have the dtype of the kernel's elements."""

    dtype: np.dtype[Any]  # unsigned elements the kernels see: uint8 (also for nibbles), uint16, uint32, uint64
    flip: Any  # bits flipped when the sign bit is set
    key_mask: Any  # bits of a value that decide its band: the magnitude of a float, all of an integer
    key_low: Any  # key of level 0
    level_shift: Any  # level = ((value & key_mask) - key_low) >> level_shift, below 256
    step_shift: int  # steps are multiples of 1 << step_shift: 4 for nibbles, else 0
    step_bits: int  # significant bits of a step: the element's width


@cache
def order_of(kind: Kind) -> Order:
    """The constants of `kind`.

    A level is an exponent where exponents have at most eight bits and a finer magnitude where there is room.
    """
    bits = BITS[kind]
    packed = bits < 8
    width = 8 if packed else bits
    dtype = np.dtype(f"u{width // 8}")
    full = (1 << width) - 1 if not packed else 0xF0
    sign = 1 << (width - 1)
    if kind in FLOAT_FIELDS and kind is not Kind.F8_E8M0:
        magnitude = full & ~sign
        flip, mask, low = magnitude, magnitude, 0
        level_shift = max(4 if packed else 0, width - 9)
    else:
        flip, mask = 0, full
        low = sign if kind in _SIGNED else 0
        level_shift = 4 if packed else width - 8
    scalar = dtype.type
    return Order(
        dtype,
        scalar(flip),
        scalar(mask),
        scalar(low),
        scalar(level_shift),
        4 if packed else 0,
        bits,
    )


@kernel
def spread_nibbles(packed: Any, out: Any) -> None:
    """Bytes (n,) to elements `out` (2n,), low nibble first, each in the upper half of its byte."""
    for i in range(packed.size):
        byte = np.int64(packed[i])
        out[2 * i] = (byte << 4) & 0xF0
        out[2 * i + 1] = byte & 0xF0


@kernel
def join_nibbles(elements: Any, out: Any) -> None:
    """Inverse of `spread_nibbles`: elements (2n,) to bytes `out` (n,)."""
    for i in range(out.size):
        out[i] = (np.int64(elements[2 * i]) >> 4) | np.int64(elements[2 * i + 1])


def frozen(values: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: kernels are compiled for inputs of that one type."""
    out = values.view()
    out.flags.writeable = False
    return out


def unpack_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes (n,) uint8 to elements (2n,) uint8, low nibble first, each in the upper half of its byte."""
    out = np.empty(packed.size * 2, np.uint8)
    spread_nibbles(frozen(packed), out)
    return out


def pack_nibbles(elements: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Inverse of `unpack_nibbles`: elements (2n,) to bytes (n,)."""
    out = np.empty(elements.size // 2, np.uint8)
    join_nibbles(frozen(elements), out)
    return out
