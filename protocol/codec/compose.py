"""Changes as plain lists of positions, and several transitions of one region made into one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..elements import BITS, Kind
from ..errors import BaseMismatchError
from .decode import BandTable, dense_values, locate, ready_table
from .order import order_of
from .pieces import Resolve, slot_pieces
from .record import SPARSE, Reader, Segment


@dataclass(frozen=True, slots=True)
class RegionEvents:
    """Changed elements of one region.

    `positions` (k,) int64 are element numbers from the region's start, rising; `old` and `new` (k,) are the elements'
    bits as unsigned integers of their width (nibbles: uint8, value in the upper half).
    """

    region: int
    kind: Kind
    positions: NDArray[np.int64]
    old: NDArray[Any]
    new: NDArray[Any]


def chunk_events(data: bytes | bytearray | memoryview, resolve: Resolve) -> list[RegionEvents]:
    """Decode a chunk against the old values that `resolve` shows and list what it changes, writing nothing.

    One entry per region and kind, in order of region. Raises as `apply_chunk` does. The chunk's records must not
    overlap.
    """
    reader = Reader(data)
    tables = reader.tables()
    ready: dict[int, BandTable] = {}
    parts: dict[tuple[int, Kind], list[RegionEvents]] = {}
    while not reader.done:
        record = reader.record(tables)
        order = order_of(record.kind)
        pieces = slot_pieces(record.segments, resolve, order)
        if record.type == SPARSE:
            if record.table not in ready:
                ready[record.table] = ready_table(tables[record.table])
            found = locate(record, ready[record.table], pieces, write=False)
            for piece, first, last in zip(pieces, found.marks, found.marks[1:], strict=False):
                chosen = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
                chosen = chosen[np.argsort(found.places[chosen], kind="stable")]
                events = found.places[chosen], found.olds[chosen], found.news[chosen]
                for part in _by_segment(piece.segments, record.kind, *events):
                    parts.setdefault((part.region, part.kind), []).append(part)
        else:
            values = dense_values(record, pieces)
            at = 0
            for piece in pieces:
                new = values[at : at + piece.values.size]
                at += piece.values.size
                places = np.flatnonzero(new != piece.values)
                for part in _by_segment(piece.segments, record.kind, places, piece.values[places], new[places]):
                    parts.setdefault((part.region, part.kind), []).append(part)
    return [_join(parts[key]) for key in sorted(parts)]


def _by_segment(
    segments: tuple[Segment, ...], kind: Kind, places: NDArray[Any], old: NDArray[Any], new: NDArray[Any]
) -> Iterator[RegionEvents]:
    """Events of a piece, sorted by place, handed to the segments they lie in."""
    start = first = 0
    for segment in segments:
        count = segment.size * 8 // BITS[kind]
        last = int(np.searchsorted(places, start + count))
        if last > first:
            positions = places[first:last].astype(np.int64) - start + segment.offset * 8 // BITS[kind]
            yield RegionEvents(segment.region, kind, positions, old[first:last], new[first:last])
        start, first = start + count, last


def _join(parts: list[RegionEvents]) -> RegionEvents:
    """Events of one region in order of position."""
    positions = np.concatenate([part.positions for part in parts])
    order = np.argsort(positions, kind="stable")
    old = np.concatenate([part.old for part in parts])[order]
    new = np.concatenate([part.new for part in parts])[order]
    return RegionEvents(parts[0].region, parts[0].kind, positions[order], old, new)


def compose(first: RegionEvents, second: RegionEvents) -> RegionEvents:
    """The events that lead from before `first` to after `second`, of the same region and kind.

    What came back to its old value is dropped. BaseMismatchError when the two do not meet: a value that `second` starts
    from is not the one that `first` left.
    """
    if (first.region, first.kind) != (second.region, second.kind):
        raise ValueError("only events of one region and kind compose")
    both, in_first, in_second = np.intersect1d(
        first.positions, second.positions, assume_unique=True, return_indices=True
    )
    if not np.array_equal(first.new[in_first], second.old[in_second]):
        raise BaseMismatchError(f"consecutive changes of region {first.region} do not meet")
    only_second = np.ones(second.positions.size, bool)
    only_second[in_second] = False
    new = first.new.copy()
    new[in_first] = second.new[in_second]
    positions = np.concatenate([first.positions, second.positions[only_second]])
    old = np.concatenate([first.old, second.old[only_second]])
    new = np.concatenate([new, second.new[only_second]])
    keep = np.flatnonzero(old != new)
    keep = keep[np.argsort(positions[keep], kind="stable")]
    assert both.size == in_first.size
    return RegionEvents(first.region, first.kind, positions[keep], old[keep], new[keep])


def merge(transitions: list[list[RegionEvents]]) -> list[RegionEvents]:
    """Compose whole consecutive transitions, each a list as `chunk_events` gives it, or several such joined."""
    merged: dict[tuple[int, Kind], RegionEvents] = {}
    for transition in transitions:
        here: dict[tuple[int, Kind], list[RegionEvents]] = {}
        for events in transition:
            here.setdefault((events.region, events.kind), []).append(events)
        for key, parts in here.items():
            joined = _join(parts)
            merged[key] = compose(merged[key], joined) if key in merged else joined
    return [merged[key] for key in sorted(merged) if merged[key].positions.size]
