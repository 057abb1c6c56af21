"""Element kinds: how the codec looks at the bytes of a region.

A kind fixes the element's width and the order in which values are neighbours. The numbers are part of the
chunk and layout formats and never change meaning.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    """Element kind of a region. Values are wire format."""

    BYTES = 0  # opaque: headers, gaps, side files, dtypes without an order of their own
    BOOL = 1
    U8 = 2
    I8 = 3
    F8_E4M3 = 4
    F8_E5M2 = 5
    F8_E8M0 = 6
    F4 = 7  # E2M1, two to a byte, low nibble first
    I4 = 8  # two to a byte, low nibble first
    U16 = 9
    I16 = 10
    F16 = 11
    BF16 = 12
    U32 = 13
    I32 = 14
    F32 = 15
    U64 = 16
    I64 = 17
    F64 = 18


# Bits per element. Source: the safetensors format description (dtype list) and OCP MX v1.0 for F4 and E8M0.
BITS: Final[dict[Kind, int]] = {
    Kind.BYTES: 8,
    Kind.BOOL: 8,
    Kind.U8: 8,
    Kind.I8: 8,
    Kind.F8_E4M3: 8,
    Kind.F8_E5M2: 8,
    Kind.F8_E8M0: 8,
    Kind.F4: 4,
    Kind.I4: 4,
    Kind.U16: 16,
    Kind.I16: 16,
    Kind.F16: 16,
    Kind.BF16: 16,
    Kind.U32: 32,
    Kind.I32: 32,
    Kind.F32: 32,
    Kind.U64: 64,
    Kind.I64: 64,
    Kind.F64: 64,
}

# Bits of exponent and of mantissa of the floating kinds; sign is one bit above them except for E8M0, which has none.
FLOAT_FIELDS: Final[dict[Kind, tuple[int, int]]] = {
    Kind.F4: (2, 1),
    Kind.F8_E4M3: (4, 3),
    Kind.F8_E5M2: (5, 2),
    Kind.F8_E8M0: (8, 0),
    Kind.F16: (5, 10),
    Kind.BF16: (8, 7),
    Kind.F32: (8, 23),
    Kind.F64: (11, 52),
}

# safetensors dtype names to kinds. A complex number is two floats; dtypes without an order of their own
# (F6_E2M3, F6_E3M2 and whatever comes later) are opaque bytes: still exact, only larger.
SAFETENSORS_KINDS: Final[dict[str, Kind]] = {
    "BOOL": Kind.BOOL,
    "F4": Kind.F4,
    "U8": Kind.U8,
    "I8": Kind.I8,
    "F8_E4M3": Kind.F8_E4M3,
    "F8_E5M2": Kind.F8_E5M2,
    "F8_E8M0": Kind.F8_E8M0,
    "U16": Kind.U16,
    "I16": Kind.I16,
    "F16": Kind.F16,
    "BF16": Kind.BF16,
    "U32": Kind.U32,
    "I32": Kind.I32,
    "F32": Kind.F32,
    "C64": Kind.F32,
    "U64": Kind.U64,
    "I64": Kind.I64,
    "F64": Kind.F64,
}


def width_bytes(kind: Kind) -> int:
    """Bytes that the smallest addressable unit of `kind` takes: 1, 2, 4 or 8 (a byte for the packed kinds)."""
    return max(1, BITS[kind] // 8)
