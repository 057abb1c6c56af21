"""Bit-level building blocks of the kernels: 64 elements as one machine word of flags, and looking into such words.

The intrinsics are written in LLVM's generic vector form (compare 64 lanes, read the flags as one integer), so every
target compiles them with its own widest instructions and all give the same bytes. Nothing here names a processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64  # elements per word of flags

_I64 = ir.IntType(64)


def _load_lanes(builder: Any, context: Any, array_type: Any, array: Any, index: Any) -> Any:
    """64 elements of `array` from `index` on, as one vector; the caller keeps index + 64 within the array."""
    element = ir.IntType(array_type.dtype.bitwidth)
    struct = cgutils.create_struct_proxy(array_type)(context, builder, array)
    address = builder.gep(struct.data, [index])
    pointer = builder.bitcast(address, ir.VectorType(element, LANES).as_pointer())
    return builder.load(pointer, align=array_type.dtype.bitwidth // 8)


def _splat(builder: Any, value: Any) -> Any:
    """`value` in all 64 lanes."""
    vector = ir.VectorType(value.type, LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)


@intrinsic
def differ64(typing_context: Any, old: Any, new: Any, index: Any) -> Any:
    """uint64 with bit t set where old[index + t] != new[index + t]; both arrays hold index + 64 elements or more."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left = _load_lanes(builder, context, signature.args[0], args[0], args[2])
        right = _load_lanes(builder, context, signature.args[1], args[1], args[2])
        return builder.bitcast(builder.icmp_unsigned("!=", left, right), _I64)

    return types.uint64(old, new, types.int64), generate


@intrinsic
def within64(typing_context: Any, values: Any, index: Any, mask: Any, low: Any, size: Any) -> Any:
    """uint64 with bit t set where ((values[index + t] & mask) - low) mod 2^w < size: membership of a cyclic interval.

    `mask`, `low` and `size` have the element type; `values` holds index + 64 elements or more.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = _load_lanes(builder, context, signature.args[0], args[0], args[1])
        value = builder.and_(value, _splat(builder, args[2]))
        value = builder.sub(value, _splat(builder, args[3]))
        return builder.bitcast(builder.icmp_unsigned("<", value, _splat(builder, args[4])), _I64)

    element = values.dtype
    return types.uint64(values, types.int64, element, element, element), generate


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """Number of set bits of a uint64, as int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


@intrinsic
def lowest_bit(typing_context: Any, word: Any) -> Any:
    """Index of the lowest set bit of a uint64 that is not zero, as int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def highest_bit(typing_context: Any, word: Any) -> Any:
    """Index of the highest set bit of a uint64 that is not zero, as int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sub(ir.Constant(_I64, 63), builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1)))

    return types.int64(types.uint64), generate


@intrinsic
def load_word(typing_context: Any, data: Any, offset: Any) -> Any:
    """Eight bytes of a uint8 array from byte `offset` on, little-endian, as uint64; the caller keeps them inside."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        address = builder.gep(struct.data, [args[1]])
        return builder.load(builder.bitcast(address, _I64.as_pointer()), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic
def store_word(typing_context: Any, data: Any, offset: Any, word: Any) -> Any:
    """Write a uint64 to a uint8 array from byte `offset` on, little-endian; the caller keeps the eight bytes inside."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        address = builder.gep(struct.data, [args[1]])
        builder.store(args[2], builder.bitcast(address, _I64.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), generate


@njit(nogil=True, inline="always")
def select64(word: np.uint64, rank: int) -> int:
    """Position of the set bit of `word` that has exactly `rank` set bits below it; `word` has more than `rank` bits.

    Halves the word six times (Vigna, Broadword implementation of rank/select queries, 2008, in its branch-free form).
    """
    place = np.int64(0)
    for step in (32, 16, 8, 4, 2, 1):
        below = popcount(word & ((np.uint64(1) << np.uint64(step)) - np.uint64(1)))
        up = np.int64(rank >= below)
        rank -= below * up
        shift = up * step
        word >>= np.uint64(shift)
        place += shift
    return place
