"""Chunks to bytes in place. Every record is checked in full before it writes its first byte."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..elements import BITS
from ..errors import BaseMismatchError, CodecError
from .dense import decode_dense
from .locate import locate_bands, locate_plain, put_values
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
    """A table made ready for decoding: the levels at which bands start and look-up tables (bands, 4096) uint32."""

    order: Order
    cuts: NDArray[np.uint8]
    entries: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Found:
    """Events of a sparse record, sorted by band: values before and after, and where they are.

    The events of band c in piece i are those from `marks[i][c]` up to `marks[i + 1][c]`; `places` (k,) uint32 are
    element numbers within the piece.
    """

    places: NDArray[np.uint32]
    olds: NDArray[Any]
    news: NDArray[Any]
    marks: list[NDArray[np.int64]]


def ready_table(table: Table) -> BandTable:
    """Build the look-up tables of `table`."""
    entries = np.empty((len(table.bands), 4096), np.uint32)
    for c, band in enumerate(table.bands):
        build_decoder(band.gaps, band.steps, entries[c])
    return BandTable(order_of(table.kind), table.cuts, entries)


def locate(record: Record, table: BandTable, pieces: list[SlotPiece], *, write: bool) -> Found:
    """Decode a sparse record against the old values in `pieces`, and write the new ones there if `write`.

    CodecError for a malformed record, BaseMismatchError when the old values are not the ones it was made against; the
    pieces are as before then.
    """
    order = table.order
    elements = record.size * 8 // BITS[record.kind]
    total = sum(record.counts)
    if total > elements or total > 8 * len(record.payload):
        raise CodecError(f"a record of {elements} elements names {total} changes")
    counts = np.array(record.counts, np.int64)
    size = len(record.payload)
    stream = np.empty(size + 32, np.uint8)
    stream[:size] = np.frombuffer(record.payload, np.uint8)
    stream[size:] = 0
    ranks = np.empty(total, np.uint32)
    steps = np.empty(total, order.dtype)
    class_bits = order.step_bits.bit_length()
    if not read_events(stream, record.split, size, counts, table.entries, class_bits, elements, ranks, steps):
        raise CodecError("a record's streams do not decode")
    news = np.empty(total, order.dtype)
    seen = np.zeros(counts.size, np.int64)
    ends = np.cumsum(counts)
    cursor = ends - counts
    found = Found(ranks, steps, news, [cursor.copy()])
    nowhere = np.empty(0, order.dtype)
    for piece in pieces:
        target = piece.target if write else nowhere
        if counts.size == 1:
            locate_plain(piece.values, target, order.flip, order.step_shift, seen, cursor, ranks, steps, news)
        else:
            locate_bands(
                piece.values, target, order.key_mask, order.key_low, order.level_shift, table.cuts,
                order.flip, order.step_shift, seen, cursor, ends, ranks, steps, news,
            )  # fmt: skip
        found.marks.append(cursor.copy())
    problem = _verify(record, found, complete=np.array_equal(cursor, ends))
    if problem is None:
        return found
    if write:
        _undo(found, pieces)
    raise problem


def _verify(record: Record, found: Found, *, complete: bool) -> CodecError | None:
    """What is wrong with the events that were found, if anything."""
    if not complete:
        return BaseMismatchError("a record names elements that the base does not have")
    if check_of(found.olds) != record.check_old:
        return BaseMismatchError("the old values a record was made against are not the base's")
    if check_of(found.news) != record.check_new:
        return CodecError("a record's new values do not match its check")
    return None


def _undo(found: Found, pieces: list[SlotPiece]) -> None:
    """Give every place that was written its old value back, last written first: hostile segments may overlap."""
    for i in range(len(pieces) - 1, -1, -1):
        for first, last in zip(found.marks[i].tolist(), found.marks[i + 1].tolist(), strict=True):
            put_values(pieces[i].target, found.places, found.olds, first, last)


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


def apply_chunk(
    data: bytes | bytearray | memoryview, resolve: Resolve, regions: Container[int] | None = None
) -> AppliedChunk:
    """Write a chunk's changes through the views that `resolve` gives; with `regions`, of the records that touch those.

    BaseMismatchError when a record was made against other old values, CodecError for malformed bytes; records before
    the one at fault have been written then, and `covered_ranges` says what to restore.
    """
    reader = Reader(data)
    tables = reader.tables()
    ready: dict[int, BandTable] = {}
    done = AppliedChunk()
    while not reader.done:
        record = reader.record(tables)
        if not _touches(record, regions):
            continue
        order = order_of(record.kind)
        pieces = slot_pieces(record.segments, resolve, order)
        if record.type == SPARSE:
            if record.table not in ready:
                ready[record.table] = ready_table(tables[record.table])
            found = locate(record, ready[record.table], pieces, write=True)
            for piece, first, last in zip(pieces, found.marks, found.marks[1:], strict=False):
                if piece.gathered and np.any(last > first):
                    put_elements(piece, piece.target, order)
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


def covered_ranges(
    data: bytes | bytearray | memoryview, regions: Container[int] | None = None
) -> list[tuple[int, int, int]]:
    """(region, byte offset, byte size) of every range that the chunk's records may write, without decoding them.

    With `regions`, of the records that touch those.
    """
    reader = Reader(data)
    tables = reader.tables()
    ranges: list[tuple[int, int, int]] = []
    while not reader.done:
        record = reader.record(tables)
        if _touches(record, regions):
            ranges += record.segments
    return ranges


def _touches(record: Record, regions: Container[int] | None) -> bool:
    return regions is None or any(segment.region in regions for segment in record.segments)
