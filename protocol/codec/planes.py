"""A byte plane's own order-0 Huffman code: exponents of weights repeat in frequency, never in sequence.

A plane is cut into four parts of 8 * ceil(n / 32) bytes (the last ones of what is left), each a stream of its own of
codes of at most 11 bits, filled from the low end. Four streams because where a code starts is known only once the one
before it has been looked up. One look at 11 bits yields up to six bytes at once.

    body   = 128 bytes: code lengths, a nibble each, low one first; 4 x u32 stream sizes; the streams
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import CodecError
from .bits import helper, kernel, load_word, store_word
from .order import frozen

STREAMS: Final = 4
LONGEST: Final = 11  # bits of a code: five fit the 57 that one load is sure to bring
_HEAD: Final = 128 + 4 * STREAMS
_LOOK: Final = 1 << LONGEST
_MOST: Final = 6  # bytes that one look yields at most


@helper
def part_size(size: Any) -> Any:
    """Bytes of each part but the last ones: a multiple of eight."""
    return (size + 8 * STREAMS - 1) // (8 * STREAMS) * 8


@kernel
def count_bytes(plane: Any, pairs: Any, counts: Any) -> None:
    """Add the frequency of every byte of `plane` (n,) uint8 to `counts` (256,) int64.

    `pairs` (65536,) uint32, all zero: two neighbours are counted at once.
    """
    whole = plane.size & ~7
    low = np.uint64(0xFFFF)
    one = np.uint32(1)
    for i in range(0, whole, 8):
        word = load_word(plane, i)
        pairs[word & low] += one
        pairs[(word >> np.uint64(16)) & low] += one
        pairs[(word >> np.uint64(32)) & low] += one
        pairs[word >> np.uint64(48)] += one
    for i in range(whole, plane.size):
        counts[plane[i]] += 1
    for second in range(256):
        total = np.int64(0)
        for first in range(256):
            count = np.int64(pairs[second << 8 | first])
            counts[first] += count
            total += count
        counts[second] += total


@kernel
def assign_lengths(counts: Any, lengths: Any) -> None:
    """Huffman code lengths (256,) uint8 of at most LONGEST bits for `counts` (256,) int64; 0 for what is absent."""
    lengths[:] = 0
    order: Any = np.argsort(counts, kind="mergesort")
    first = np.int64(0)
    while first < 256 and counts[order[first]] == 0:
        first += 1
    n = np.int64(256) - first
    if n == 0:
        return
    if n == 1:
        lengths[order[first]] = 1
        return
    weight = np.empty(2 * n, np.int64)
    parent = np.zeros(2 * n, np.int64)
    for i in range(n):
        weight[i] = counts[order[first + i]]
    leaf = np.int64(0)
    node = n
    for made in range(n, 2 * n - 1):
        merged = np.int64(0)
        for _ in range(2):
            if leaf < n and (node >= made or weight[leaf] <= weight[node]):
                chosen = leaf
                leaf += 1
            else:
                chosen = node
                node += 1
            merged += weight[chosen]
            parent[chosen] = made
        weight[made] = merged
    depth = np.zeros(2 * n, np.int64)
    for i in range(2 * n - 3, -1, -1):
        depth[i] = depth[parent[i]] + 1
    used = np.int64(0)
    full = np.int64(_LOOK)
    for i in range(n):
        depth[i] = min(depth[i], LONGEST)
        used += np.int64(1) << (LONGEST - depth[i])
    while used > full:  # the rarest codes grow first
        for i in range(n):
            if depth[i] < LONGEST and used > full:
                depth[i] += 1
                used -= np.int64(1) << (LONGEST - depth[i])
    for i in range(n - 1, -1, -1):  # then the most frequent shrink into what is left
        while depth[i] > 1 and used + (np.int64(1) << (LONGEST - depth[i])) <= full:
            used += np.int64(1) << (LONGEST - depth[i])
            depth[i] -= 1
    for i in range(n):
        lengths[order[first + i]] = depth[i]


@kernel
def assign_codes(lengths: Any, codes: Any) -> Any:
    """Fill `codes` (256,) uint32 with code | length << 16; canonical, by length and then by byte, lowest bit first.

    False when the lengths (256,) uint8 are those of no code.
    """
    code = np.int64(0)
    for length in range(1, LONGEST + 1):
        for symbol in range(256):
            if lengths[symbol] == length:
                if code >= np.int64(1) << length:
                    return False
                reverse = np.int64(0)
                for bit in range(length):
                    reverse |= ((code >> bit) & 1) << (length - 1 - bit)
                codes[symbol] = reverse | (length << 16)
                code += 1
        code <<= 1
    return True


@kernel
def pair_codes(codes: Any, pairs: Any) -> None:
    """Fill pairs[b << 8 | a] (65536,) uint32 with the code of a, then that of b | length of both << 22."""
    for second in range(256):
        late = np.int64(codes[second])
        if late:
            for first in range(256):
                early = np.int64(codes[first])
                length = early >> 16
                both = (early & 0xFFFF) | ((late & 0xFFFF) << length)
                pairs[second << 8 | first] = both | ((length + (late >> 16)) << 22)


@kernel
def write_plane(plane: Any, codes: Any, pairs: Any, starts: Any, out: Any, sizes: Any) -> None:
    """Write the streams of `plane`: the one of part k from out[starts[k]] on, which has room; fills `sizes` (4,) int64.

    `codes` (256,) as of `assign_codes`, `pairs` as of `pair_codes`.
    """
    quarter = part_size(plane.size)
    low = np.uint64(0xFFFF)
    code_mask = np.uint64((1 << 22) - 1)
    sixteen = np.uint64(16)
    for k in range(STREAMS):
        at = starts[k]
        held = np.uint64(0)
        bits = np.uint64(0)
        i = min(k * quarter, plane.size)
        stop = min((k + 1) * quarter, plane.size)
        while i + 8 <= stop:
            word = load_word(plane, i)
            for _ in range(2):
                early = np.uint64(pairs[word & low])
                word >>= sixteen
                late = np.uint64(pairs[word & low])
                word >>= sixteen
                length = early >> np.uint64(22)
                held |= ((early & code_mask) | ((late & code_mask) << length)) << bits
                bits += length + (late >> np.uint64(22))
                store_word(out, at, held)
                at += np.int64(bits >> np.uint64(3))
                held >>= bits & np.uint64(56)
                bits &= np.uint64(7)
            i += 8
        while i < stop:
            code = np.uint64(codes[plane[i]])
            held |= (code & low) << bits
            bits += code >> sixteen
            store_word(out, at, held)
            at += np.int64(bits >> np.uint64(3))
            held >>= bits & np.uint64(56)
            bits &= np.uint64(7)
            i += 1
        store_word(out, at, held)
        sizes[k] = at - starts[k] + np.int64(bits > np.uint64(0))


@kernel
def fill_looks(codes: Any, looks: Any) -> None:
    """Fill `looks` (2048,) uint64, by the next 11 bits: up to six bytes | how many << 48 | their bits << 56.

    0 where no code starts.
    """
    single = np.zeros(_LOOK, np.int64)  # byte | length << 8
    for symbol in range(256):
        length = np.int64(codes[symbol] >> 16)
        if length:
            place = np.int64(codes[symbol] & 0xFFFF)
            while place < _LOOK:
                single[place] = symbol | (length << 8)
                place += np.int64(1) << length
    for at in range(_LOOK):
        used = np.int64(0)
        count = np.int64(0)
        entry = np.uint64(0)
        while count < _MOST:
            one = single[np.int64(at) >> used]
            length = one >> 8
            if length == 0 or used + length > LONGEST:
                break
            entry |= np.uint64(one & 0xFF) << np.uint64(8 * count)
            used += length
            count += 1
        looks[at] = entry | np.uint64(count << 48) | np.uint64(used << 56)


@kernel
def read_plane(data: Any, starts: Any, ends: Any, looks: Any, lengths: Any, size: Any, plane: Any) -> Any:
    """Read `size` bytes to `plane` (size + 8,) uint8 from streams data[starts[k] : ends[k]], with 16 bytes after all.

    `lengths` (2048,) uint8: bits of the first code in each look. False when a stream is shorter or longer than its
    part, or has no such code.
    """
    quarter = part_size(size)
    mask = np.uint64(_LOOK - 1)
    to = np.empty(STREAMS, np.int64)
    stop = np.empty(STREAMS, np.int64)
    bit = np.empty(STREAMS, np.int64)
    for k in range(STREAMS):
        to[k] = min(k * quarter, size)
        stop[k] = min((k + 1) * quarter, size)
        bit[k] = starts[k] * 8
    to0, to1, to2, to3 = to[0], to[1], to[2], to[3]
    at0, at1, at2, at3 = bit[0], bit[1], bit[2], bit[3]
    near0, near1, near2, near3 = ends[0] * 8 - 64, ends[1] * 8 - 64, ends[2] * 8 - 64, ends[3] * 8 - 64
    room0, room1, room2, room3 = stop[0] - 32, stop[1] - 32, stop[2] - 32, stop[3] - 32
    # a whole word is left of every stream, and 32 bytes of every part: nothing to watch for the next five looks
    while True:
        inside = (at0 <= near0) & (at1 <= near1) & (at2 <= near2) & (at3 <= near3)
        if not (inside & (to0 <= room0) & (to1 <= room1) & (to2 <= room2) & (to3 <= room3)):
            break
        word0 = load_word(data, at0 >> 3) >> np.uint64(at0 & 7)
        word1 = load_word(data, at1 >> 3) >> np.uint64(at1 & 7)
        word2 = load_word(data, at2 >> 3) >> np.uint64(at2 & 7)
        word3 = load_word(data, at3 >> 3) >> np.uint64(at3 & 7)
        for _ in range(5):
            look0 = looks[word0 & mask]
            look1 = looks[word1 & mask]
            look2 = looks[word2 & mask]
            look3 = looks[word3 & mask]
            store_word(plane, to0, look0)
            store_word(plane, to1, look1)
            store_word(plane, to2, look2)
            store_word(plane, to3, look3)
            word0 >>= look0 >> np.uint64(56)
            word1 >>= look1 >> np.uint64(56)
            word2 >>= look2 >> np.uint64(56)
            word3 >>= look3 >> np.uint64(56)
            at0 += np.int64(look0 >> np.uint64(56))
            at1 += np.int64(look1 >> np.uint64(56))
            at2 += np.int64(look2 >> np.uint64(56))
            at3 += np.int64(look3 >> np.uint64(56))
            to0 += np.int64((look0 >> np.uint64(48)) & np.uint64(7))
            to1 += np.int64((look1 >> np.uint64(48)) & np.uint64(7))
            to2 += np.int64((look2 >> np.uint64(48)) & np.uint64(7))
            to3 += np.int64((look3 >> np.uint64(48)) & np.uint64(7))
            if (look0 == 0) | (look1 == 0) | (look2 == 0) | (look3 == 0):
                return False
    to[0], to[1], to[2], to[3] = to0, to1, to2, to3
    bit[0], bit[1], bit[2], bit[3] = at0, at1, at2, at3
    for k in range(STREAMS):
        # one byte at a time to the part's end
        while to[k] < stop[k]:
            if bit[k] >= ends[k] * 8:
                return False
            look = (load_word(data, bit[k] >> 3) >> np.uint64(bit[k] & 7)) & mask
            if looks[look] == 0:
                return False
            plane[to[k]] = looks[look] & np.uint64(0xFF)
            to[k] += 1
            bit[k] += np.int64(lengths[look])
        if (bit[k] + 7) >> 3 != ends[k]:
            return False
    return True


def plan_lengths(plane: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """Code lengths (256,) uint8 for the bytes of `plane`, and how many bytes it takes coded with them."""
    counts = np.zeros(256, np.int64)
    count_bytes(frozen(plane), np.zeros(1 << 16, np.uint32), counts)
    lengths = np.zeros(256, np.uint8)
    assign_lengths(counts, lengths)
    return lengths, _HEAD + STREAMS + int(counts @ lengths.astype(np.int64)) // 8


def huffman_parts(plane: NDArray[np.uint8], lengths: NDArray[np.uint8]) -> list[bytes | memoryview]:
    """The body of a plane (n,) coded with `lengths`, which has a code for every byte of it, as parts to be joined."""
    codes = np.zeros(256, np.uint32)
    assign_codes(lengths, codes)
    pairs = np.empty(1 << 16, np.uint32)
    pair_codes(codes, pairs)
    room = (plane.size // STREAMS + 8) * LONGEST // 8 + 16
    out = np.empty(STREAMS * room, np.uint8)
    sizes = np.zeros(STREAMS, np.int64)
    starts = np.arange(STREAMS, dtype=np.int64) * room
    write_plane(frozen(plane), codes, pairs, starts, out, sizes)
    head = (lengths[0::2] | lengths[1::2] << np.uint8(4)).tobytes() + sizes.astype("<u4").tobytes()
    return [head, *(out[s : s + n].data for s, n in zip(starts.tolist(), sizes.tolist(), strict=True))]


def expand_huffman(body: memoryview, size: int) -> NDArray[np.uint8]:
    """The `size` bytes of a plane. CodecError when the body holds anything else."""
    if len(body) < _HEAD:
        raise CodecError("a plane's code is cut short")
    nibbles = np.frombuffer(body[:128], np.uint8)
    lengths = np.empty(256, np.uint8)
    lengths[0::2], lengths[1::2] = nibbles & 15, nibbles >> 4
    codes = np.zeros(256, np.uint32)
    if lengths.max() > LONGEST or not assign_codes(lengths, codes):
        raise CodecError("a plane's code lengths are those of no code")
    sizes = np.frombuffer(body[128:_HEAD], "<u4").astype(np.int64)
    if int(sizes.sum()) != len(body) - _HEAD:
        raise CodecError("a plane's streams do not fill it")
    data = np.empty(len(body) + 16, np.uint8)
    data[: len(body)] = np.frombuffer(body, np.uint8)
    data[len(body) :] = 0
    ends = _HEAD + np.cumsum(sizes)
    looks = np.empty(_LOOK, np.uint64)
    fill_looks(codes, looks)
    first = (codes >> np.uint32(16)).astype(np.uint8)[(looks & np.uint64(0xFF)).astype(np.int64)]
    plane = np.empty(size + 8, np.uint8)
    if not read_plane(data, ends - sizes, ends, looks, first, size, plane):
        raise CodecError("a plane's streams do not decode")
    return plane[:size]
