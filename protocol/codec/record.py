"""The bytes of a chunk: header, code tables, records. Reading and writing of everything but the entropy-coded payloads.

    chunk  = "PSC" version=1, varint tables, tables, records to the end
    table  = u8 kind, u8 bands, bands - 1 cut levels u8, per band: gap weights, step weights (tables.pack_weights)
    record = u8 type, then
        SPARSE: varint table, segments, bands x varint events, u32 check of old, u32 check of new, varint n, varint m,
                n bytes, m bytes
        STEPS:  u8 kind, segments, u32 check of old, u32 check of new, planes
        VALUES: u8 kind, segments, u32 check of new, planes
        RAW:    u8 kind, segments, u32 check of new, the bytes
    segments = varint count, per segment:
        varint (zigzag(region - previous region) << 2 | 2 if same size as the one before | 1 if offset given)
        varint offset / width (if given; else the end of the segment before when the region is the same, 0 when not)
        varint size / width (unless the same)
    plane  = u8 method (0 stored, 1 zstd, 2 lz4, 3 huffman), varint n, n bytes

Numbers are little-endian; a varint is unsigned LEB128 of at most 64 bits. Checks are the low 32 bits of XXH3-64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..elements import Kind, width_bytes
from ..errors import CodecError
from .tables import GAP_BUCKETS, STEP_CLASSES, BandWeights, pack_weights, unpack_weights

MAGIC: Final = b"PSC"
VERSION: Final = 1

RAW: Final = 0
SPARSE: Final = 1
STEPS: Final = 2
VALUES: Final = 3

STORED: Final = 0
ZSTD: Final = 1
LZ4: Final = 2
HUFFMAN: Final = 3

MAX_RECORD_BYTES: Final = 16 << 20  # input a record may cover; what a decoder has to hold at once
MAX_BANDS: Final = 16
MAX_TABLES: Final = 64
MAX_REGION: Final = (1 << 32) - 1


class Segment(NamedTuple):
    """A run of bytes of one region: region number, offset and size in bytes."""

    region: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Table:
    """Cuts and weights of the bands of one element kind."""

    kind: Kind
    cuts: NDArray[np.uint8]  # (bands,): levels at which they start, the first 0, strictly rising
    bands: tuple[BandWeights, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One record, its payload still encoded."""

    type: int
    kind: Kind
    segments: tuple[Segment, ...]
    table: int  # SPARSE: index of its table
    counts: tuple[int, ...]  # SPARSE: events per band
    check_old: int
    check_new: int
    payload: memoryview
    split: int = 0  # SPARSE: bytes of the payload that are the first stream

    @property
    def size(self) -> int:
        """Bytes that the segments cover together."""
        return sum(segment.size for segment in self.segments)


def check_of(values: NDArray[np.generic]) -> int:
    """The 32-bit check of a contiguous array."""
    return int(xxhash.xxh3_64_intdigest(values.view(np.uint8).data) & 0xFFFFFFFF)


def varint(value: int) -> bytes:
    """`value` >= 0 as LEB128."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_segments(segments: Sequence[Segment], width: int) -> bytes:
    """Segments as bytes; offsets and sizes are multiples of `width`."""
    out = bytearray(varint(len(segments)))
    region, end, size = 0, 0, -1
    for segment in segments:
        step = segment.region - region
        zigzag = step * 2 if step >= 0 else -step * 2 - 1
        given = segment.offset != (end if step == 0 else 0)
        same = segment.size == size
        out += varint(zigzag << 2 | same << 1 | given)
        if given:
            out += varint(segment.offset // width)
        if not same:
            out += varint(segment.size // width)
        region, end, size = segment.region, segment.offset + segment.size, segment.size
    return bytes(out)


def write_table(table: Table) -> bytes:
    """A table as bytes."""
    out = bytearray((table.kind, len(table.bands)))
    out += table.cuts[1:].tobytes()
    for band in table.bands:
        out += pack_weights(band.gaps)
        out += pack_weights(band.steps)
    return bytes(out)


def write_header(tables: Sequence[bytes]) -> bytes:
    """The start of a chunk whose tables are given as bytes."""
    return MAGIC + bytes((VERSION,)) + varint(len(tables)) + b"".join(tables)


class Reader:
    """Reads a chunk's bytes in order; every method raises CodecError rather than read past the end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data).cast("B")
        self._at = 0

    @property
    def done(self) -> bool:
        """True when no byte is left."""
        return self._at >= len(self._data)

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        if size > len(self._data) - self._at:
            raise CodecError(f"chunk ends {size - len(self._data) + self._at} bytes early")
        part = self._data[self._at : self._at + size]
        self._at += size
        return part

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def u32(self) -> int:
        """The next four bytes as a number."""
        return int.from_bytes(self.take(4), "little")

    def varint(self) -> int:
        """The next LEB128 number, below 2^64."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise CodecError("a number has more than ten bytes")
        if value >= 1 << 64:
            raise CodecError("a number exceeds 64 bits")
        return value

    def kind(self) -> Kind:
        """The next byte as an element kind."""
        value = self.byte()
        try:
            return Kind(value)
        except ValueError:
            raise CodecError(f"no element kind has number {value}") from None

    def weights(self, size: int) -> NDArray[np.uint8]:
        """The next row of weights."""
        row, self._at = unpack_weights(self._data, self._at, size)
        return row

    def table(self) -> Table:
        """The next table."""
        kind = self.kind()
        count = self.byte()
        if not 1 <= count <= MAX_BANDS:
            raise CodecError(f"a table has {count} bands")
        cuts = np.array([0, *self.take(count - 1)], np.uint8)
        if np.any(cuts[1:] <= cuts[:-1]):
            raise CodecError("a table's band cuts do not rise")
        bands = tuple(BandWeights(self.weights(GAP_BUCKETS), self.weights(STEP_CLASSES)) for _ in range(count))
        return Table(kind, cuts, bands)

    def tables(self) -> tuple[Table, ...]:
        """The chunk's header and tables."""
        if bytes(self.take(3)) != MAGIC:
            raise CodecError("not a chunk: it does not start with PSC")
        version = self.byte()
        if version != VERSION:
            raise CodecError(f"chunk format {version} is not known here, only {VERSION}")
        count = self.varint()
        if count > MAX_TABLES:
            raise CodecError(f"a chunk names {count} tables")
        return tuple(self.table() for _ in range(count))

    def segments(self, kind: Kind) -> tuple[Segment, ...]:
        """The next list of segments, of at most MAX_RECORD_BYTES together."""
        width = width_bytes(kind)
        count = self.varint()
        if count > len(self._data) - self._at:
            raise CodecError(f"a record of {count} segments does not fit its chunk")
        region = end = total = 0
        size = -1
        out = []
        for _ in range(count):
            head = self.varint()
            zigzag = head >> 2
            step = zigzag >> 1 if zigzag & 1 == 0 else -(zigzag >> 1) - 1
            region += step
            if not 0 <= region <= MAX_REGION:
                raise CodecError(f"no region has number {region}")
            offset = self.varint() * width if head & 1 else (end if step == 0 else 0)
            if not head & 2:
                size = self.varint() * width
            elif size < 0:
                raise CodecError("the first segment has no size")
            total += size
            if total > MAX_RECORD_BYTES:
                raise CodecError(f"a record covers more than {MAX_RECORD_BYTES} bytes")
            end = offset + size
            if end >= 1 << 64:
                raise CodecError("a segment ends beyond 64 bits")
            out.append(Segment(region, offset, size))
        return tuple(out)

    def record(self, tables: Sequence[Table]) -> Record:
        """The next record."""
        kind_of_record = self.byte()
        if kind_of_record == SPARSE:
            index = self.varint()
            if index >= len(tables):
                raise CodecError(f"a record names table {index} of {len(tables)}")
            table = tables[index]
            segments = self.segments(table.kind)
            counts = tuple(self.varint() for _ in table.bands)
            check_old, check_new = self.u32(), self.u32()
            split, rest = self.varint(), self.varint()
            payload = self.take(split + rest)
            return Record(SPARSE, table.kind, segments, index, counts, check_old, check_new, payload, split)
        if kind_of_record not in (RAW, STEPS, VALUES):
            raise CodecError(f"no record type has number {kind_of_record}")
        kind = self.kind()
        segments = self.segments(kind)
        check_old = self.u32() if kind_of_record == STEPS else 0
        check_new = self.u32()
        size = sum(segment.size for segment in segments)
        payload = self.take(size) if kind_of_record == RAW else self._planes(kind)
        return Record(kind_of_record, kind, segments, 0, (), check_old, check_new, payload)

    def _planes(self, kind: Kind) -> memoryview:
        start = self._at
        for _ in range(width_bytes(kind)):
            self.byte()
            self.take(self.varint())
        return self._data[start : self._at]
