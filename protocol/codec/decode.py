"""Chunks to bytes in place. Every record is checked in full before it writes its first byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..elements import BITS
from ..errors import BaseMismatchError, CodecError
from .bands import intervals
from .dense import decode_dense
from .locate import locate_bands, locate_plain, write_values
from .order import Order, order_of
from .pieces import Resolve, SlotPiece, put_elements, slot_pieces
from .record import SPARSE, STEPS, Reader, Record, Table, check_of
from .stream import read_events
from .tables import build_decoder

__all__ = ["AppliedChunk", "Resolve", "apply_chunk", "covered_ranges"]


@dataclass(slots=True)
class AppliedChunk:
    """What a chunk did: elements its records cover, how many of them it wrote, bytes covered, records."""

    elements: int = 0
    changed: int = 0
    raw_bytes: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class BandTable:
    """A table made ready for decoding: bands as intervals of keys and look-up tables (bands, 4096) uint32."""

    order: Order
    lows: NDArray[Any]
    sizes: NDArray[Any]
    entries: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Found:
    """Events of a sparse record, sorted by band: values before and after, and where they are.

    The events of band c in piece i are those from `marks[i][c]` up to `marks[i + 1][c]`; `places` (k,) uint32 are element
    numbers within the piece.
    """

    places: NDArray[np.uint32]
    olds: NDArray[Any]
    news: NDArray[Any]
    marks: list[NDArray[np.int64]]


def ready_table(table: Table) -> BandTable:
    """Build the look-up tables of `table`. CodecError when its cuts leave the kind's range."""
    order = order_of(table.kind)
    if table.cuts.size and int(table.cuts[-1]) << order.level_shift >= 1 << 8 * order.dtype.itemsize:
        raise CodecError(f"a table of {table.kind.name} cuts at level {int(table.cuts[-1])}")
    lows, sizes = intervals(order, table.cuts)
    entries = np.empty((len(table.bands), 4096), np.uint32)
    for c, band in enumerate(table.bands):
        build_decoder(band.gaps, band.steps, entries[c])
    return BandTable(order, lows, sizes, entries)


def locate(record: Record, table: BandTable, pieces: list[SlotPiece]) -> Found:
    """Decode a sparse record against the old values in `pieces`, writing nothing.

    CodecError for a malformed record, BaseMismatchError when the old values are not the ones it was made against.
    """
    order = table.order
    elements = record.size * 8 // BITS[record.kind]
    total = sum(record.counts)
    if total > elements or total > 8 * len(record.payload):
        raise CodecError(f"a record of {elements} elements names {total} changes")
    counts = np.array(record.counts, np.int64)
    size = len(record.payload)
    stream = np.zeros(size + 32, np.uint8)
    stream[:size] = np.frombuffer(record.payload, np.uint8)
    ranks = np.empty(total, np.uint32)
    steps = np.empty(total, np.int64)
    class_bits = order.step_bits.bit_length()
    if read_events(stream, size, counts, table.entries, class_bits, elements, ranks, steps) < 0:
        raise CodecError("a record's stream does not decode")
    places = np.empty(total, np.uint32)
    olds = np.empty(total, order.dtype)
    news = np.empty(total, order.dtype)
    seen = np.zeros(counts.size, np.int64)
    ends = np.cumsum(counts)
    cursor = ends - counts
    marks = [cursor.copy()]
    for piece in pieces:
        if counts.size == 1:
            locate_plain(piece.values, order.flip, order.step_shift, seen, cursor, ranks, steps, places, olds, news)
        else:
            locate_bands(
                piece.values, order.key_mask, table.lows, table.sizes, order.flip, order.step_shift,
                seen, cursor, ends, ranks, steps, places, olds, news,
            )  # fmt: skip
        marks.append(cursor.copy())
    if not np.array_equal(cursor, ends):
        raise BaseMismatchError("a record names elements that the base does not have")
    if check_of(olds) != record.check_old:
        raise BaseMismatchError("the old values a record was made against are not the base's")
    if check_of(news) != record.check_new:
        raise CodecError("a record's new values do not match its check")
    return Found(places, olds, news, marks)


def dense_values(record: Record, pieces: list[SlotPiece]) -> NDArray[Any]:
    """New elements (n,) of a dense record over `pieces`, checked. Raises as `locate` does."""
    old = np.empty(0, order_of(record.kind).dtype)
    if record.type == STEPS and pieces:
        old = pieces[0].values if len(pieces) == 1 else np.concatenate([piece.values for piece in pieces])
        if check_of(old) != record.check_old:
            raise BaseMismatchError("the old values a record was made against are not the base's")
    values = decode_dense(record, old)
    if check_of(values) != record.check_new:
        raise CodecError("a record's new values do not match its check")
    return values


def apply_chunk(data: bytes | bytearray | memoryview, resolve: Resolve) -> AppliedChunk:
    """Write a chunk's changes through the views that `resolve` gives.

    BaseMismatchError when a record was made against other old values, CodecError for malformed bytes; records before the
    one at fault have been written then, and `covered_ranges` says what to restore.
    """
    reader = Reader(data)
    tables = reader.tables()
    ready: dict[int, BandTable] = {}
    done = AppliedChunk()
    while not reader.done:
        record = reader.record(tables)
        order = order_of(record.kind)
        pieces = slot_pieces(record.segments, resolve, order)
        if record.type == SPARSE:
            if record.table not in ready:
                ready[record.table] = ready_table(tables[record.table])
            found = locate(record, ready[record.table], pieces)
            _write_found(found, pieces, order)
            done.changed += found.places.size
        else:
            values = dense_values(record, pieces)
            at = 0
            for piece in pieces:
                part = values[at : at + piece.values.size]
                at += piece.values.size
                put_elements(piece, part, order)
            done.changed += values.size
        done.elements += record.size * 8 // BITS[record.kind]
        done.raw_bytes += record.size
        done.records += 1
    return done


def _write_found(found: Found, pieces: list[SlotPiece], order: Order) -> None:
    for piece, first, last in zip(pieces, found.marks, found.marks[1:], strict=False):
        if not np.any(last > first):
            continue
        direct = len(piece.views) == 1 and not order.step_shift
        values = piece.views[0].view(order.dtype) if direct else piece.values.copy()
        copied = not values.flags.aligned
        if copied:
            values = values.copy()
        for c in range(first.size):
            if last[c] > first[c]:
                write_values(values, found.places, found.news, first[c], last[c])
        if not direct or copied:
            put_elements(piece, values, order)


def covered_ranges(data: bytes | bytearray | memoryview) -> list[tuple[int, int, int]]:
    """(region, byte offset, byte size) of every range that the chunk's records may write, without decoding them."""
    reader = Reader(data)
    tables = reader.tables()
    ranges: list[tuple[int, int, int]] = []
    while not reader.done:
        ranges += reader.record(tables).segments
    return ranges
