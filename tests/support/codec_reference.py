"""The chunk format of docs/chunk-format.md read a second time, in plain Python: no kernel, no table look-up.

Slow and simple on purpose. Nothing is imported from the codec.
"""

from __future__ import annotations

import heapq

import lz4.block
import numpy as np
import zstandard

WIDTH = {
    0: 1,
    1: 1,
    2: 1,
    3: 1,
    4: 1,
    5: 1,
    6: 1,
    7: 1,
    8: 1,
    9: 2,
    10: 2,
    11: 2,
    12: 2,
    13: 4,
    14: 4,
    15: 4,
    16: 8,
    17: 8,
    18: 8,
}
BITS = {kind: 4 if kind in (7, 8) else 8 * width for kind, width in WIDTH.items()}
SIGN_MAGNITUDE = {4, 5, 7, 11, 12, 15, 18}
SIGNED = {3, 8, 10, 14, 17}
ROTATED = {11, 12, 15, 18}


class Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        assert len(part) == size
        self.at += size
        return part

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value


def expand(weight: int) -> int:
    return (4 + (weight - 1) % 4) << ((weight - 1) // 4)


def read_weights(stream: Bytes) -> dict[int, int]:
    first, count = stream.byte(), stream.byte()
    nibbles: list[int] = []

    def nibble() -> int:
        if not nibbles:
            byte = stream.byte()
            nibbles.extend((byte & 15, byte >> 4))
        return nibbles.pop(0)

    previous, row = 4, {}
    for entry in range(first, first + count):
        value = nibble()
        previous = previous + value - 7 if value < 15 else nibble() + 16 * nibble()
        if previous:
            row[entry] = previous
    return row


def codes(gaps: dict[int, int], steps: dict[int, int]) -> dict[str, object]:
    """Code as a string of bits in reading order -> (bucket, class), or None for the escape."""
    down = []
    for row in (gaps, steps):
        total, shift = sum(expand(w) for w in row.values()), 0
        while total >> shift >= 1 << 30:
            shift += 1
        down.append((total >> shift, shift))
    total = down[0][0] * down[1][0]
    least = max(total >> 13, 1)
    symbols: list[object] = []
    weights: list[int] = []
    for g in sorted(gaps):
        for s in sorted(steps):
            weight = (expand(gaps[g]) >> down[0][1]) * (expand(steps[s]) >> down[1][1])
            if weight >= least and len(symbols) < 8192:
                symbols.append((g, s))
                weights.append(weight)
    symbols.append(None)
    weights.append(max(1, total - sum(weights)))
    n = len(symbols)
    depth = [0] * n
    members = {i: [i] for i in range(n)}
    heap = [(weights[i], i) for i in range(n)]
    heapq.heapify(heap)
    made = n
    while len(heap) > 1:
        (a, i), (b, j) = heapq.heappop(heap), heapq.heappop(heap)
        members[made] = members.pop(i) + members.pop(j)
        for leaf in members[made]:
            depth[leaf] += 1
        heapq.heappush(heap, (a + b, made))
        made += 1
    lengths = [min(max(d, 1), 12) for d in depth]
    used = sum(1 << (12 - length) for length in lengths)
    light_first = sorted(range(n), key=lambda i: (weights[i], i))
    while used > 4096:
        for i in light_first:
            if lengths[i] < 12 and used > 4096:
                lengths[i] += 1
                used -= 1 << (12 - lengths[i])
    if n > 1:
        for i in reversed(light_first):
            while lengths[i] > 1 and used + (1 << (12 - lengths[i])) <= 4096:
                used += 1 << (12 - lengths[i])
                lengths[i] -= 1
    out: dict[str, object] = {}
    code = 0
    for length in range(1, 13):
        for i in range(n):
            if lengths[i] == length:
                out[format(code, f"0{length}b")] = symbols[i]
                code += 1
        code <<= 1
    return out


def unpack(kind: int, data: bytes) -> list[int]:
    if BITS[kind] == 4:
        return [n for byte in data for n in (byte & 15, byte >> 4)]
    return np.frombuffer(data, f"<u{WIDTH[kind]}").tolist()


def pack(kind: int, values: list[int]) -> bytes:
    if BITS[kind] == 4:
        return bytes(a | b << 4 for a, b in zip(values[0::2], values[1::2], strict=True))
    return np.array(values, f"<u{WIDTH[kind]}").tobytes()


def flip(kind: int, value: int) -> int:
    sign = 1 << (BITS[kind] - 1)
    return value ^ (sign - 1) if kind in SIGN_MAGNITUDE and value & sign else value


def moved(kind: int, value: int, step: int) -> int:
    return flip(kind, (flip(kind, value) + step) % (1 << BITS[kind]))


def level(kind: int, value: int) -> int:
    bits = BITS[kind]
    if kind in SIGN_MAGNITUDE:
        key = value % (1 << (bits - 1))
        return key >> max(0, bits - 9)
    key = (value + (1 << (bits - 1))) % (1 << bits) if kind in SIGNED else value
    return key >> max(0, bits - 8)


def read_planes(stream: Bytes, kind: int, size: int) -> list[int]:
    width = WIDTH[kind]
    planes = []
    for _ in range(width):
        method, body = stream.byte(), stream.take(stream.varint())
        if method == 1:
            body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
        elif method == 2:
            body = lz4.block.decompress(body, uncompressed_size=size // width)
        elif method == 3:
            body = huffman(body, size // width)
        planes.append(body)
    return unpack(kind, bytes(plane[i] for i in range(size // width) for plane in planes))


def huffman(body: bytes, size: int) -> bytes:
    """A plane in its own code."""
    lengths = [n for byte in body[:128] for n in (byte & 15, byte >> 4)]
    book: dict[str, int] = {}
    code = 0
    for length in range(1, 12):
        for symbol in range(256):
            if lengths[symbol] == length:
                book[format(code, f"0{length}b")] = symbol
                code += 1
        code <<= 1
    sizes = np.frombuffer(body[128:144], "<u4").tolist()
    at, part, out = 144, 8 * -(-size // 32), bytearray()
    for k, stream_size in enumerate(sizes):
        bits = "".join(format(byte, "08b")[::-1] for byte in body[at : at + stream_size])
        at += stream_size
        read = 0
        for _ in range(min(part, max(0, size - k * part))):
            length = next(n for n in range(1, 12) if bits[read : read + n] in book)
            out.append(book[bits[read : read + length]])
            read += length
        assert len(bits) - read < 8
    assert at == len(body)
    return bytes(out)


def apply(data: bytes, regions: dict[int, bytearray]) -> None:
    """Apply a chunk to whole regions in memory."""
    stream = Bytes(data)
    assert stream.take(4) == b"PSC\x01"
    tables = []
    for _ in range(stream.varint()):
        kind, count = stream.byte(), stream.byte()
        cuts = [0, *stream.take(count - 1)]
        tables.append((kind, cuts, [codes(read_weights(stream), read_weights(stream)) for _ in range(count)]))
    while stream.at < len(data):
        kind_of_record = stream.byte()
        kind, cuts, books = tables[stream.varint()] if kind_of_record == 1 else (stream.byte(), [], [])
        segments = []
        region = end = size = 0
        for _ in range(stream.varint()):
            head = stream.varint()
            step = head >> 3 if head >> 2 & 1 == 0 else -(head >> 3) - 1
            region += step
            offset = stream.varint() * WIDTH[kind] if head & 1 else (end if step == 0 else 0)
            size = size if head & 2 else stream.varint() * WIDTH[kind]
            end = offset + size
            segments.append((region, offset, size))
        total = sum(size for _, _, size in segments)
        old = unpack(kind, b"".join(bytes(regions[r][o : o + s]) for r, o, s in segments))
        if kind_of_record == 1:
            new = sparse(stream, kind, cuts, books, old)
        else:
            stream.take(8 if kind_of_record == 2 else 4)
            new = unpack(kind, stream.take(total)) if kind_of_record == 0 else read_planes(stream, kind, total)
            if kind_of_record == 2:
                new = [moved(kind, o, z >> 1 if z & 1 == 0 else -(z >> 1) - 1) for o, z in zip(old, new, strict=True)]
            elif kind_of_record == 3 and kind in ROTATED:
                bits = BITS[kind]
                new = [v >> 1 | (v & 1) << (bits - 1) for v in new]
        raw, at = pack(kind, new), 0
        for r, o, s in segments:
            regions[r][o : o + s] = raw[at : at + s]
            at += s


def sparse(stream: Bytes, kind: int, cuts: list[int], books: list, old: list[int]) -> list[int]:
    counts = [stream.varint() for _ in cuts]
    stream.take(8)
    sizes = stream.varint(), stream.varint()
    bits, later = ("".join(format(byte, "08b")[::-1] for byte in stream.take(size)) for size in sizes)

    def raw(count: int) -> int:
        nonlocal bits
        part, bits = bits[:count], bits[count:]
        assert len(part) == count
        return int(part[::-1] or "0", 2)

    band_of = [max(c for c, cut in enumerate(cuts) if cut <= level(kind, value)) for value in old]
    new = list(old)
    for c, count in enumerate(counts):
        members = [i for i, band in enumerate(band_of) if band == c]
        rank = -1
        for _ in range(count):
            length = next(n for n in range(1, 13) if bits[:n] in books[c])
            symbol = books[c][bits[:length]]
            bits = bits[length:]
            bucket, kind_of_step = symbol or (raw(6), raw(BITS[kind].bit_length()))
            nb, nv = bucket >> 1, kind_of_step >> 1
            rank += 1 + ((2 | bucket & 1) << nb) + raw(nb) - 2
            step = 1 << nv | raw(nv)
            new[members[rank]] = moved(kind, old[members[rank]], -step if kind_of_step & 1 else step)
            bits, later = later, bits
    return new
