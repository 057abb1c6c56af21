"""Regions that changed too much for positions to pay, and regions without a parent: byte planes, compressed.

STEPS planes hold the zigzagged ULP differences to the parent, VALUES planes the values themselves (floats rotated by
one bit, so that the exponent fills a byte of its own). Plane b holds byte b of every element. Each is compressed by
itself, or stored when that does not help: mantissa bytes are noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import lz4.block
import numpy as np
import zstandard
from numpy.typing import NDArray

from ..elements import Kind, width_bytes
from ..errors import CodecError
from .bits import LANES, kernel, plane64
from .order import Order, frozen, order_of, pack_nibbles, unpack_nibbles
from .pieces import SpanPiece
from .planes import expand_huffman, huffman_parts, plan_lengths
from .record import (
    HUFFMAN,
    LZ4,
    RAW,
    STEPS,
    STORED,
    VALUES,
    ZSTD,
    Reader,
    Record,
    Segment,
    check_of,
    varint,
    write_segments,
)
from .scan import ordered, step_between
from .spans import CodecOptions

_PROBE: Final = 16384  # bytes of a plane tried before the whole plane is
_WORTH: Final = 0.97
_NEAR: Final = 1.03  # a Huffman code may be so much larger than the general method: it is several times faster


@kernel
def zigzag_steps(old: Any, new: Any, flip: Any, step_shift: Any, out: Any) -> None:
    """out[i] = zigzag(step from old[i] to new[i]), all (n,) of one unsigned dtype."""
    size = old.itemsize
    sign = np.int64(8 * size - 1)
    unit = np.int64(1) << step_shift
    for i in range(old.size):
        step = step_between(old[i], new[i], flip, step_shift, size) << step_shift
        out[i] = ((step << np.int64(1)) ^ (step >> sign)) & ~(unit - 1)


@kernel
def unzigzag_steps(old: Any, zigzag: Any, flip: Any, step_shift: Any, out: Any) -> None:
    """Inverse of `zigzag_steps`: out[i] is the value zigzag[i] away from old[i]."""
    size = old.itemsize
    sign = np.int64(1) << np.int64(8 * size - 1)
    bits = np.int64(-1) if size == 8 else (np.int64(1) << np.int64(8 * size)) - np.int64(1)
    unit = np.int64(1) << step_shift
    for i in range(old.size):
        z = np.int64(zigzag[i]) & bits
        half = np.int64(np.uint64(z) >> np.uint64(1))
        step = half & ~(unit - 1)
        if z & unit:
            step = ~half & ~(unit - 1)
        place = ordered(old[i], flip, size) + step
        if place & sign:
            place ^= np.int64(flip)
        out[i] = place


def rotates(kind: Kind) -> bool:
    """True for kinds whose VALUES planes are of values rotated left by one: floats with a sign and a full width."""
    return kind in (Kind.F16, Kind.BF16, Kind.F32, Kind.F64)


@kernel
def fill_planes(values: Any, rotated: Any, planes: Any) -> None:
    """Fill planes[b * n + i] (width * n,) uint8 with byte b, lowest first, of values[i] rotated left by 0 or 1 bits."""
    n = values.size
    bits = np.uint64(8 * values.itemsize)
    turn = np.uint64(rotated)
    whole = n // LANES * LANES
    for i in range(0, whole, LANES):
        for b in range(values.itemsize):
            plane64(values, i, rotated, 8 * b, planes, b * n + i)
    for i in range(whole, n):
        value = np.uint64(values[i])
        value = (value << turn) | (value >> (bits - turn)) if turn else value
        for b in range(values.itemsize):
            planes[b * n + i] = (value >> np.uint64(8 * b)) & np.uint64(0xFF)


def split_planes(values: NDArray[Any], *, rotated: bool = False) -> list[NDArray[np.uint8]]:
    """Elements (n,) to their bytes, one array (n,) per byte, lowest first."""
    if values.itemsize == 1:
        return [values.view(np.uint8)]
    planes = np.empty(values.nbytes, np.uint8)
    fill_planes(frozen(values), int(rotated), planes)
    return np.split(planes, values.itemsize)


@kernel
def put_plane(plane: Any, b: Any, turn: Any, out: Any) -> None:
    """Set byte b of every out[i] to plane[i], for b from 0 on; then rotate right by `turn` bits."""
    bits = np.uint64(8 * out.itemsize)
    shift = np.uint64(8 * b)
    back = np.uint64(turn)
    if b == 0:
        for i in range(out.size):
            out[i] = plane[i]
    elif turn == 0:
        for i in range(out.size):
            out[i] |= np.uint64(plane[i]) << shift
    else:
        for i in range(out.size):
            value = np.uint64(out[i]) | (np.uint64(plane[i]) << shift)
            out[i] = (value >> back) | (value << (bits - back))


def join_planes(planes: list[NDArray[np.uint8]], dtype: np.dtype[Any], *, rotated: bool = False) -> NDArray[Any]:
    """Inverse of `split_planes`."""
    if len(planes) == 1:
        return planes[0].view(dtype)
    out = np.empty(planes[0].size, dtype)
    for b, plane in enumerate(planes):
        put_plane(frozen(plane), b, int(rotated and b == len(planes) - 1), out)
    return out


def _compress(data: memoryview, method: int, level: int) -> bytes:
    if method == LZ4:
        return bytes(lz4.block.compress(data, store_size=False))
    return zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=False).compress(data)


def write_planes(planes: list[NDArray[np.uint8]], method: int, level: int) -> list[bytes | memoryview]:
    """Planes as parts of bytes to be joined, each compressed by `method` where a sample says that it helps."""
    out: list[bytes | memoryview] = []
    for plane in planes:
        middle = max(0, (plane.size - _PROBE) // 2)
        probe = plane[middle : middle + _PROBE]
        size = len(_compress(probe.data, method, level)) if probe.size else 0
        chosen = method
        coded_size = plan_lengths(probe)[1]
        if coded_size <= _NEAR * size:
            chosen, size = HUFFMAN, coded_size
        body: list[bytes | memoryview] = []
        if size < _WORTH * probe.size + 32:
            body = _coded(plane) if chosen == HUFFMAN else [_compress(plane.data, method, level)]
        if not body or total_size(body) >= plane.size:
            out += [bytes((STORED,)), varint(plane.size), plane.data]
        else:
            out += [bytes((chosen,)), varint(total_size(body)), *body]
    return out


def _coded(plane: NDArray[np.uint8]) -> list[bytes | memoryview]:
    """The plane in its own Huffman code, as parts; none when that does not help."""
    lengths, size = plan_lengths(plane)
    return huffman_parts(plane, lengths) if size < plane.size else []


def total_size(parts: Sequence[bytes | memoryview]) -> int:
    """Bytes of all parts together."""
    return sum(len(part) for part in parts)


def read_planes(payload: memoryview, count: int, size: int) -> list[NDArray[np.uint8]]:
    """`count` planes of `size` bytes each. CodecError when the payload holds anything else."""
    reader = Reader(payload)
    planes = []
    for _ in range(count):
        method = reader.byte()
        body = reader.take(reader.varint())
        planes.append(_expand(body, method, size))
    return planes


def _expand(body: memoryview, method: int, size: int) -> NDArray[np.uint8]:
    if method == STORED:
        if len(body) != size:
            raise CodecError(f"a stored plane has {len(body)} bytes instead of {size}")
        return np.frombuffer(body, np.uint8)
    if method == HUFFMAN:
        return expand_huffman(body, size)
    out: bytes | bytearray
    try:
        if method == ZSTD:
            out = _decompress_zstd(body, size)
        elif method == LZ4:
            out = lz4.block.decompress(bytes(body), uncompressed_size=size)
        else:
            raise CodecError(f"no plane method has number {method}")
    except (zstandard.ZstdError, lz4.block.LZ4BlockError, ValueError, MemoryError) as error:
        raise CodecError(f"a plane does not decompress: {error}") from error
    if len(out) != size:
        raise CodecError(f"a plane has {len(out)} bytes instead of {size}")
    return np.frombuffer(out, np.uint8)


def _decompress_zstd(body: memoryview, size: int) -> bytearray:
    """At most `size` + 1 bytes of the frame; its window, and so the memory it asks for, is bounded by the plane too."""
    window = 1 << max(10, (size - 1).bit_length())
    out = bytearray(size + 1)
    with zstandard.ZstdDecompressor(max_window_size=window).stream_reader(body) as stream:
        at = 0
        while at <= size:
            step = stream.readinto(memoryview(out)[at:])
            if step == 0:
                break
            at += step
    del out[at:]
    return out


def step_planes(old: NDArray[Any], new: NDArray[Any], order: Order) -> list[NDArray[np.uint8]]:
    """STEPS planes of elements (n,)."""
    steps = np.empty(new.size, order.dtype)
    zigzag_steps(frozen(old), frozen(new), order.flip, order.step_shift, steps)
    return [pack_nibbles(steps)] if order.step_shift else split_planes(steps)


def value_planes(new: NDArray[Any], kind: Kind, order: Order) -> list[NDArray[np.uint8]]:
    """VALUES planes of elements (n,)."""
    if order.step_shift:
        return [pack_nibbles(new)]
    return split_planes(new, rotated=rotates(kind))


def encode_dense(
    pieces: Sequence[SpanPiece], kind: Kind, options: CodecOptions
) -> tuple[list[bytes | memoryview], tuple[Segment, ...], int, int]:
    """One dense record of whole pieces: its parts, segments, changed elements and the size of its payload.

    The parts are to be joined; there are no segments when nothing changed.
    """
    order = order_of(kind)
    new = pieces[0].new if len(pieces) == 1 else np.concatenate([piece.new for piece in pieces])
    segments = tuple(segment for piece in pieces for segment in piece.segments)
    olds = [piece.old for piece in pieces if piece.old is not None]
    old = None if not olds else olds[0] if len(olds) == 1 else np.concatenate(olds)
    changed = new.size if old is None else int(np.count_nonzero(old != new))
    if changed == 0:
        return [], (), 0, 0
    head = bytes((kind,)) + write_segments(segments, width_bytes(kind))
    check = check_of(new).to_bytes(4, "little")
    method, level = (LZ4, 0) if options.fast_dense else (ZSTD, options.zstd_level)
    raw_bytes = sum(segment.size for segment in segments)
    best = VALUES if old is None else _cheapest(_window(old), _window(new), kind, method, level)[0]
    if best == STEPS and old is not None:
        payload = write_planes(step_planes(old, new, order), method, level)
        if total_size(payload) < raw_bytes:
            start = bytes((STEPS,)) + head + check_of(old).to_bytes(4, "little") + check
            return [start, *payload], segments, changed, total_size(payload)
    if best == VALUES:
        payload = write_planes(value_planes(new, kind, order), method, level)
        if total_size(payload) < raw_bytes:
            return [bytes((VALUES,)) + head + check, *payload], segments, changed, total_size(payload)
    data = pack_nibbles(new) if order.step_shift else new.view(np.uint8)
    return [bytes((RAW,)) + head + check, data.data], segments, changed, raw_bytes


def decode_dense(record: Record, old: NDArray[Any]) -> NDArray[Any]:
    """The new elements (n,) of a dense record whose segments now hold `old`. CodecError when it is malformed."""
    order = order_of(record.kind)
    size = record.size
    if record.type == RAW:
        data = np.frombuffer(record.payload, np.uint8)
        return unpack_nibbles(data) if order.step_shift else data.view(order.dtype)
    planes = read_planes(record.payload, order.dtype.itemsize, size // order.dtype.itemsize)
    turned = record.type == VALUES and rotates(record.kind)
    values = unpack_nibbles(planes[0]) if order.step_shift else join_planes(planes, order.dtype, rotated=turned)
    if record.type == STEPS:
        out = np.empty(values.size, order.dtype)
        unzigzag_steps(frozen(old), values, order.flip, order.step_shift, out)
        return out
    return values


def choose_dense(pieces: Sequence[SpanPiece], kind: Kind, options: CodecOptions) -> bool:
    """True when a dense record is likely smaller than a sparse one, by a sample of the largest piece."""
    largest = max(pieces, key=lambda piece: piece.new.size)
    old, new = _window(largest.old), _window(largest.new)
    if old is None or new is None:
        return True
    differ = old != new
    share = float(np.mean(differ)) if differ.size else 0.0
    if share == 0.0:
        return False
    order = order_of(kind)
    steps = np.empty(new.size, order.dtype)
    zigzag_steps(frozen(old), frozen(new), order.flip, order.step_shift, steps)
    moves = steps[differ] >> order.dtype.type(order.step_shift)
    step_bits = float(np.mean(np.log2(moves.astype(np.float64) + 1.0))) + 1.0
    mask_bits = 0.0 if share == 1.0 else -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    sparse_bytes = new.size * (mask_bits + share * step_bits) / 8
    method, level = (LZ4, 0) if options.fast_dense else (ZSTD, options.zstd_level)
    _, dense_bytes = _cheapest(old, new, kind, method, level)
    return dense_bytes < sparse_bytes


def _window(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """Up to 32768 elements from the middle."""
    if values is None:
        return None
    start = max(0, (values.size - 32768) // 2)
    return values[start : start + 32768]


def _cheapest(
    old: NDArray[Any] | None, new: NDArray[Any] | None, kind: Kind, method: int, level: int
) -> tuple[int, int]:
    """The dense record type that encodes the sample in the fewest bytes, and how many those are."""
    if new is None or new.size == 0:
        return RAW, 0
    order = order_of(kind)
    sizes = {RAW: new.nbytes >> (order.step_shift // 4)}
    sizes[VALUES] = total_size(write_planes(value_planes(new, kind, order), method, level))
    if old is not None:
        sizes[STEPS] = total_size(write_planes(step_planes(old, new, order), method, level))
    best = min(sizes, key=lambda name: sizes[name])
    return best, sizes[best]
