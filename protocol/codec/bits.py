"""Bit-level building blocks of the kernels: 64 elements as one machine word of flags, and looking into such words.

The intrinsics are written in LLVM's generic vector form (compare 64 lanes, read the flags as one integer), so every
target compiles them with its own widest instructions and all give the same bytes. One names a processor's own
instruction, `select64`, and has a portable twin that gives the same answers.
"""

# ruff: noqa: ARG001 - numba calls an intrinsic with arguments of which it only needs the types
from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils as numba_cgutils
from numba.core import config as numba_config
from numba.core.caching import FunctionCache as NumbaCache
from numba.extending import intrinsic as numba_intrinsic

LANES = 64  # elements per word of flags

# mypy has nothing to say about compiled code: kernels are Any, the functions around them are typed
intrinsic: Any = numba_intrinsic
cgutils: Any = numba_cgutils
FunctionCache: Any = NumbaCache
_CONFIG: Any = numba_config
helper: Any = njit(nogil=True, inline="always")

_I64 = ir.IntType(64)


def _digest_of_sources() -> str:
    """Of every file that a kernel may take code from."""
    digest = hashlib.sha256()
    for source in sorted(files(__package__).iterdir(), key=lambda each: each.name):
        if source.name.endswith(".py"):
            digest.update(source.read_bytes())
    return digest.hexdigest()


_SOURCES = _digest_of_sources()


class _KernelCache(FunctionCache):  # type: ignore[misc, unused-ignore]
    """Machine code on disk that is outdated once any file of this package changes: numba's own looks at one only."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), _SOURCES)


def kernel(function: Any) -> Any:
    """Decorator of a function to be compiled, without the interpreter's lock, and kept on disk."""
    dispatcher: Any = njit(nogil=True)(function)
    dispatcher._cache = _KernelCache(function)  # noqa: SLF001 - what njit(cache=True) does, with our cache
    return dispatcher


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
def atleast64(typing_context: Any, values: Any, index: Any, least: Any) -> Any:
    """uint64 with bit t set where values[index + t] >= least, which has the element type, for 64 elements."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = _load_lanes(builder, context, signature.args[0], args[0], args[1])
        return builder.bitcast(builder.icmp_unsigned(">=", value, _splat(builder, args[2])), _I64)

    return types.uint64(values, types.int64, values.dtype), generate


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """Number of set bits of a uint64, as int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


@intrinsic
def running_counts(typing_context: Any, words: Any, index: Any, counts: Any, at: Any) -> Any:
    """counts[at + t] (uint16) = set bits of words[index] to words[index + t], for 64 words; both arrays hold them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = _load_lanes(builder, context, signature.args[0], args[0], args[1])
        lanes = ir.VectorType(ir.IntType(16), LANES)
        kind = ir.FunctionType(words.type, [words.type])
        ones = cgutils.get_or_insert_function(builder.module, kind, f"llvm.ctpop.v{LANES}i64")
        wide = builder.trunc(builder.call(ones, [words]), lanes)
        zeros = ir.Constant(lanes, [0] * LANES)
        step = 1
        while step < LANES:  # to each lane the one `step` below it
            lower = [LANES + lane - step if lane >= step else lane for lane in range(LANES)]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), lower)
            wide = builder.add(wide, builder.shuffle_vector(zeros, wide, mask))
            step *= 2
        struct = cgutils.create_struct_proxy(signature.args[2])(context, builder, args[2])
        address = builder.gep(struct.data, [args[3]])
        builder.store(wide, builder.bitcast(address, lanes.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(words, types.int64, counts, types.int64), generate


@intrinsic
def lowest_bit(typing_context: Any, word: Any) -> Any:
    """Index of the lowest set bit of a uint64, as int64; 64 for zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

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


@intrinsic
def prefetch(typing_context: Any, values: Any, index: Any) -> Any:
    """Ask for the cache line of values[index]; an index outside the array is harmless."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        address = builder.bitcast(builder.gep(struct.data, [args[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(values, types.int64), generate


@intrinsic
def prefetch64(typing_context: Any, values: Any, index: Any) -> Any:
    """Ask for 64 elements from `index` on: a processor's own read-ahead stops at every page."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        size = signature.args[0].dtype.bitwidth // 8
        i32 = ir.IntType(32)
        for line in range(0, LANES * size, 64):
            offset = builder.add(args[1], ir.Constant(_I64, line // size))
            address = builder.bitcast(builder.gep(struct.data, [offset]), ir.IntType(8).as_pointer())
            kind = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            builder.call(function, [address, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(values, types.int64), generate


@intrinsic
def level64(typing_context: Any, values: Any, index: Any, mask: Any, low: Any, shift: Any, out: Any, at: Any) -> Any:
    """out[at + t] = (((values[index + t] & mask) - low) mod 2^w) >> shift, as uint8, for 64 elements.

    `mask`, `low` and `shift` have the element type; both arrays are long enough.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = _load_lanes(builder, context, signature.args[0], args[0], args[1])
        value = builder.and_(value, _splat(builder, args[2]))
        value = builder.sub(value, _splat(builder, args[3]))
        value = builder.lshr(value, _splat(builder, args[4]))
        lanes = ir.VectorType(ir.IntType(8), LANES)
        if value.type != lanes:
            value = builder.trunc(value, lanes)
        struct = cgutils.create_struct_proxy(signature.args[5])(context, builder, args[5])
        address = builder.gep(struct.data, [args[6]])
        builder.store(value, builder.bitcast(address, lanes.as_pointer()), align=1)
        return context.get_dummy_value()

    element = values.dtype
    return types.void(values, types.int64, element, element, element, out, types.int64), generate


@intrinsic
def plane64(typing_context: Any, values: Any, index: Any, turn: Any, shift: Any, out: Any, at: Any) -> Any:
    """out[at + t] = the low byte of (values[index + t] rotated left by `turn` bits) >> shift, for 64 elements."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = _load_lanes(builder, context, signature.args[0], args[0], args[1])
        element = value.type.element
        turn = _splat(builder, builder.trunc(args[2], element) if element != _I64 else args[2])
        shift = _splat(builder, builder.trunc(args[3], element) if element != _I64 else args[3])
        kind = ir.FunctionType(value.type, [value.type] * 3)
        rotate = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fshl.v{LANES}i{element.width}")
        value = builder.lshr(builder.call(rotate, [value, value, turn]), shift)
        lanes = ir.VectorType(ir.IntType(8), LANES)
        if value.type != lanes:
            value = builder.trunc(value, lanes)
        struct = cgutils.create_struct_proxy(signature.args[4])(context, builder, args[4])
        address = builder.gep(struct.data, [args[5]])
        builder.store(value, builder.bitcast(address, lanes.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(values, types.int64, types.int64, types.int64, out, types.int64), generate


def _byte_table() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Position of the set bit with `rank` set bits below it in `byte`, at [rank * 256 + byte]."""
    table = np.zeros(2048, np.uint8)
    for byte in range(256):
        places = [bit for bit in range(8) if byte >> bit & 1]
        for rank, place in enumerate(places):
            table[rank * 256 + byte] = place
    return table


_IN_BYTE = _byte_table()


@helper
def select64_portable(word: Any, rank: Any) -> Any:
    """Position (uint64) of the set bit of `word` that has exactly `rank` set bits below it, both uint64.

    `word` has more than `rank` set bits. Prefix sums of the bytes' bit counts by multiplication, all eight compared
    with the rank at once, then a table within the byte (Vigna, Broadword implementation of rank/select queries, 2008).
    """
    ones = np.uint64(0x0101010101010101)
    tops = np.uint64(0x8080808080808080)
    pairs = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    quads = (pairs & np.uint64(0x3333333333333333)) + ((pairs >> np.uint64(2)) & np.uint64(0x3333333333333333))
    sums = ((quads + (quads >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)) * ones
    full = ((rank * ones) | tops) - sums  # a byte's top bit stays set where its prefix sum is at most the rank
    shift = np.uint64(popcount(full & tops)) << np.uint64(3)
    inside = rank - (((sums << np.uint64(8)) >> shift) & np.uint64(0xFF))
    byte = (word >> shift) & np.uint64(0xFF)
    return shift + np.uint64(_IN_BYTE[(inside << np.uint64(8)) | byte])


@intrinsic
def _deposit(typing_context: Any, bits: Any, mask: Any) -> Any:
    """Low bits of `bits` put where `mask` has ones: x86-64's PDEP."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I64, [_I64, _I64])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.bmi.pdep.64")
        return builder.call(function, args)

    return types.uint64(types.uint64, types.uint64), generate


@helper
def select64_deposit(word: Any, rank: Any) -> Any:
    """As `select64_portable`, in two instructions instead of thirty."""
    return np.uint64(lowest_bit(_deposit(np.uint64(1) << rank, word)))


def can_deposit() -> bool:
    """True when kernels are compiled for this very processor and it has a fast PDEP (the first two Zens have not)."""
    if _CONFIG.CPU_NAME is not None or _CONFIG.CPU_FEATURES is not None:
        return False
    slow = binding.get_host_cpu_name() in {"znver1", "znver2"}
    return bool(binding.get_host_cpu_features().get("bmi2", False)) and not slow


select64: Any = select64_deposit if can_deposit() else select64_portable
