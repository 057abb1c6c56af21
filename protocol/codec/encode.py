"""Spans to chunks: plan the bands from a sample, find the events, build the tables, pack records into chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..elements import BITS, Kind, width_bytes
from .bands import SAMPLE_WINDOW, alike, plan_cuts, sample_levels
from .dense import choose_dense, encode_dense, total_size
from .drafts import Draft, drafts_of, halves
from .order import LEVELS, Order, order_of
from .record import SPARSE, Segment, Table, check_of, varint, write_header, write_segments, write_table
from .scan import arrange, scan_bands, scan_plain
from .spans import CodecOptions, EncodedChunk, Span
from .stream import write_events
from .tables import ESCAPE, GAP_BUCKETS, STEP_CLASSES, BandWeights, build_encoder, quantise

RECORD_BYTES: Final = 4 << 20  # input of one record
_SAMPLE_SHARE: Final = 256  # one element in so many is looked at to place the bands
_SAMPLE_LEAST: Final = 1 << 16  # but so many at least
_ALWAYS_SPARSE: Final = 0.04  # share of changed elements up to which no other way is considered
_NEVER_SPARSE: Final = 0.25
_OVERHEAD: Final = 64  # bytes a record may be larger than what it covers


@dataclass(frozen=True, slots=True)
class _Events:
    """The events of one sparse record, sorted by band, and the pieces they lie in."""

    draft: Draft
    segments: tuple[Segment, ...]
    counts: NDArray[np.int64]
    gaps: NDArray[np.uint32]
    steps: NDArray[Any]
    check_old: int
    check_new: int


@dataclass(frozen=True, slots=True)
class _Coded:
    """A finished record; that of a sparse one lacks its type and table number until it is put into a chunk."""

    table: int | None
    body: Sequence[bytes | memoryview]  # parts to be joined
    elements: int
    changed: int
    raw_bytes: int
    payload_bytes: int

    @property
    def size(self) -> int:
        """Bytes in a chunk, at most."""
        return total_size(self.body) + 3


def encode_spans(spans: Sequence[Span], options: CodecOptions, max_size: int) -> list[EncodedChunk]:
    """Encode the changes of `spans` as one chunk, or as more where one would exceed `max_size` bytes.

    Unchanged spans leave no trace; the result is empty when nothing changed. `max_size` is 32 KiB to 4 MiB; input may
    be tens of MiB. Spans may come in any order and must not overlap.
    """
    groups: dict[tuple[Kind, bool], list[Span]] = {}
    for span in spans:
        if span.new.size:
            groups.setdefault((span.kind, span.old is not None), []).append(span)
    tables: list[bytes] = []
    coded: list[_Coded] = []
    for (kind, with_old), members in groups.items():
        encoder = _Group(kind, options, max_size)
        if with_old:
            added, records = encoder.encode_changes(members, len(tables))
            tables += added
            coded += records
        else:
            coded += encoder.encode_full(members)
    return _pack(coded, tables, max_size)


def _pack(coded: Iterable[_Coded], tables: Sequence[bytes], max_size: int) -> list[EncodedChunk]:
    """Fill chunks in order, each with the tables its own records need."""
    chunks: list[EncodedChunk] = []
    inside: list[_Coded] = []
    used: list[int] = []
    size = 0

    def close() -> None:
        nonlocal size
        if not inside:
            return
        parts: list[bytes | memoryview] = [write_header([tables[index] for index in used])]
        for record in inside:
            if record.table is not None:
                parts += (bytes((SPARSE,)), varint(used.index(record.table)))
            parts += record.body
        chunks.append(
            EncodedChunk(
                b"".join(parts),
                sum(record.elements for record in inside),
                sum(record.changed for record in inside),
                sum(record.raw_bytes for record in inside),
                sum(record.payload_bytes for record in inside),
                len(inside),
            )
        )
        inside.clear()
        used.clear()
        size = 0

    for record in coded:
        new_table = record.table is not None and record.table not in used
        added = record.size + (len(tables[record.table]) if new_table and record.table is not None else 0)
        if inside and size + added > max_size:
            close()
            new_table = record.table is not None
            added = record.size + (len(tables[record.table]) if record.table is not None else 0)
        if not inside:
            size = 8
        inside.append(record)
        if new_table and record.table is not None:
            used.append(record.table)
        size += added
    close()
    return chunks


class _Scratch:
    """Where the events of a record are collected: what `scan` calls marks and values."""

    def __init__(self, room: int, dtype: np.dtype[Any]) -> None:
        self.marks = np.empty(room, np.uint32)
        self.values = np.empty((room, 2), dtype)


class _Counts:
    """Histograms of a group's events per band: gap buckets and step classes."""

    def __init__(self, bands: int) -> None:
        self.gaps = np.zeros((bands, GAP_BUCKETS), np.int64)
        self.steps = np.zeros((bands, STEP_CLASSES), np.int64)

    def add(self, other: _Counts) -> None:
        """Add another's counts to these."""
        self.gaps += other.gaps
        self.steps += other.steps


class _Group:
    """Encodes the spans of one kind: they share a table."""

    def __init__(self, kind: Kind, options: CodecOptions, max_size: int) -> None:
        self.kind = kind
        self.order: Order = order_of(kind)
        self.options = options
        self.width = width_bytes(kind)
        self.room = max_size - 1024  # for one record; its chunk also has a header and tables
        self.cuts = np.zeros(1, np.uint8)
        self.scratch = _Scratch(4096, self.order.dtype)
        self.codes = np.empty((0, ESCAPE + 1), np.uint32)

    def encode_full(self, spans: Sequence[Span]) -> list[_Coded]:
        """Records for spans without a parent."""
        return [record for draft in drafts_of(spans, self.kind, self.room) for record in self._dense(draft)]

    def encode_changes(self, spans: Sequence[Span], first_table: int) -> tuple[list[bytes], list[_Coded]]:
        """The tables that records need, to be numbered from `first_table` on, and the records of what changed."""
        drafts = drafts_of(spans, self.kind, RECORD_BYTES)
        if not drafts:
            return [], []
        present, changed = self._sample(drafts)
        elements = sum(draft.size for draft in drafts) * 8 // BITS[self.kind]
        scale = elements / max(1, int(present.sum()))
        tables: list[bytes] = []
        coded: list[_Coded] = []
        for members in alike(present, changed, scale, self.options.bands):
            seen, moved = present[members].sum(axis=0), changed[members].sum(axis=0)
            self.cuts = plan_cuts(seen, moved, int(seen.sum() * scale), self.options.bands)
            table, records = self._encode_alike([drafts[i] for i in members], first_table + len(tables))
            tables += [] if table is None else [table]
            coded += records
        return tables, coded

    def _encode_alike(self, drafts: Sequence[Draft], table_index: int) -> tuple[bytes | None, list[_Coded]]:
        """The table, if any record needs it, and the records of drafts that share the cuts."""
        counts = _Counts(self.cuts.size)
        found: list[_Events | _Coded] = []
        for draft in drafts:
            events = self._scan(draft, counts)
            if isinstance(events, _Events):
                found.append(events)
            elif events:
                found += self._dense_parts(draft)
        if not any(isinstance(item, _Events) for item in found):
            return None, [item for item in found if isinstance(item, _Coded)]
        weights = self._weigh(counts)
        self.codes = np.empty((self.cuts.size, ESCAPE + 1), np.uint32)
        for c, band in enumerate(weights):
            build_encoder(band.gaps, band.steps, self.codes[c])
        coded: list[_Coded] = []
        for item in found:
            coded += [item] if isinstance(item, _Coded) else self._write(item, table_index)
        return write_table(Table(self.kind, self.cuts, weights)), coded

    def _sample(self, drafts: Sequence[Draft]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Elements and changed elements per draft and level (drafts, 256), sampled; notes each draft's density."""
        elements = sum(piece.new.size for draft in drafts for piece in draft.pieces)
        stride = max(1, min(_SAMPLE_SHARE, elements // _SAMPLE_LEAST))
        present = np.zeros((len(drafts), LEVELS), np.int64)
        changed = np.zeros((len(drafts), LEVELS), np.int64)
        order = self.order
        for i, draft in enumerate(drafts):
            for piece in draft.pieces:
                every = max(1, min(stride, piece.new.size // SAMPLE_WINDOW))
                sample_levels(
                    piece.old, piece.new, order.key_mask, order.key_low, order.level_shift, every, every // 2,
                    present[i], changed[i],
                )  # fmt: skip
            draft.density = int(changed[i].sum()) / max(1, int(present[i].sum()))
        return present, changed

    def _scan(self, draft: Draft, counts: _Counts) -> _Events | bool:
        """The draft's events; False when nothing changed, True when it should be encoded densely."""
        if draft.density > _ALWAYS_SPARSE and choose_dense(draft.pieces, self.kind, self.options):
            return True
        order = self.order
        elements = draft.size * 8 // BITS[self.kind]
        most = int(elements * _NEVER_SPARSE) + 256
        room = min(most, int(elements * draft.density * 2) + 4096)
        while True:
            if self.scratch.marks.size < room:
                self.scratch = _Scratch(room, order.dtype)
            scratch = self.scratch
            found, segments = self._scan_pieces(draft, scratch)
            if found >= 0:
                break
            if room >= most:
                return True
            room = min(most, 4 * room)
        if not found:
            return False
        number = np.empty(self.cuts.size, np.int64)
        gaps = np.empty(found, np.uint32)
        steps, olds, news = (np.empty(found, order.dtype) for _ in range(3))
        arrange(
            scratch.marks[:found], scratch.values[:found], order.flip, order.step_shift,
            number, gaps, steps, olds, news, counts.gaps, counts.steps,
        )  # fmt: skip
        return _Events(draft, tuple(segments), number, gaps, steps, check_of(olds), check_of(news))

    def _scan_pieces(self, draft: Draft, scratch: _Scratch) -> tuple[int, list[Segment]]:
        """How many events the draft has, -1 for more than the scratch holds, and the segments they lie in."""
        order = self.order
        seen = np.zeros((self.cuts.size, 2), np.int64)
        segments: list[Segment] = []
        found = 0
        for piece in draft.pieces:
            before, seen_before = found, seen.copy()
            if self.cuts.size == 1:
                found = scan_plain(piece.old, piece.new, seen, scratch.marks, scratch.values, found)
            else:
                found = scan_bands(
                    piece.old, piece.new, order.key_mask, order.key_low, order.level_shift, self.cuts,
                    seen, scratch.marks, scratch.values, found,
                )  # fmt: skip
            if found < 0:
                break
            if found == before:
                seen = seen_before
            else:
                segments += piece.segments
        return found, segments

    def _weigh(self, counts: _Counts) -> tuple[BandWeights, ...]:
        weights = []
        for gap_counts, step_counts in zip(counts.gaps, counts.steps, strict=True):
            gaps = np.empty(GAP_BUCKETS, np.uint8)
            steps = np.empty(STEP_CLASSES, np.uint8)
            quantise(gap_counts, gaps)
            quantise(step_counts, steps)
            weights.append(BandWeights(gaps, steps))
        return tuple(weights)

    def _write(self, events: _Events, table_index: int) -> list[_Coded]:
        """One sparse record, or several where one would be too large."""
        found = events.gaps.size
        half = 13 * ((found + 1) // 2) + 16
        out = np.empty(2 * half, np.uint8)
        class_bits = self.order.step_bits.bit_length()
        bits = write_events(events.counts, events.gaps, events.steps, self.codes, class_bits, out)
        first, second = ((count + 7) // 8 for count in bits)
        body = b"".join(
            (
                write_segments(events.segments, self.width),
                *(varint(count) for count in events.counts.tolist()),
                events.check_old.to_bytes(4, "little"),
                events.check_new.to_bytes(4, "little"),
                varint(first),
                varint(second),
                out[:first].data,
                out[half : half + second].data,
            )
        )
        covered = sum(segment.size for segment in events.segments)
        if len(body) + 3 > covered + _OVERHEAD:
            return self._dense_parts(events.draft)
        if len(body) > self.room:
            return self._rescan(halves(events.draft, self.kind), table_index)
        return [_Coded(table_index, [body], covered * 8 // BITS[self.kind], found, covered, first + second)]

    def _rescan(self, drafts: Sequence[Draft], table_index: int) -> list[_Coded]:
        """Scan and write with the tables already made; any event has a code in any table."""
        coded: list[_Coded] = []
        bands = self.cuts.size
        counts = _Counts(bands)
        for draft in drafts:
            events = self._scan(draft, counts)
            if isinstance(events, _Events):
                coded += self._write(events, table_index)
            elif events:
                coded += self._dense_parts(draft)
        return coded

    def _dense_parts(self, draft: Draft) -> list[_Coded]:
        """Dense records of a draft, none larger than a chunk."""
        if draft.size > self.room - 64:
            parts = halves(draft, self.kind)
            if len(parts) > 1:
                return [record for half in parts for record in self._dense_parts(half)]
        return self._dense(draft)

    def _dense(self, draft: Draft) -> list[_Coded]:
        body, segments, changed, payload = encode_dense(draft.pieces, self.kind, self.options)
        covered = sum(segment.size for segment in segments)
        if not segments:
            return []
        if total_size(body) > min(self.room, covered + _OVERHEAD):
            parts = halves(draft, self.kind)
            if len(parts) > 1:
                return [record for half in parts for record in self._dense(half)]
        return [_Coded(None, body, covered * 8 // BITS[self.kind], changed, covered, payload)]
