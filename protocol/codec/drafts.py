"""Spans gathered into drafts of records, and drafts cut in two where a record came out too large."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..elements import BITS, Kind, width_bytes
from .order import Order, order_of
from .pieces import SMALL, SpanPiece, elements_of
from .record import Segment
from .spans import Span


@dataclass(slots=True)
class Draft:
    """A record in the making: pieces of one kind, all with or all without a parent."""

    pieces: list[SpanPiece]
    size: int  # bytes
    density: float = 0.0  # share of changed elements, estimated


def drafts_of(spans: Sequence[Span], kind: Kind, limit: int) -> list[Draft]:
    """Spans of one kind, all with or all without a parent, as drafts of at most `limit` bytes.

    Small unchanged spans are left out.
    """
    drafts: list[Draft] = []
    pieces: list[SpanPiece] = []
    small: list[Span] = []
    size = 0
    order = order_of(kind)
    limit -= limit % width_bytes(kind)

    def gather() -> None:
        if small:
            pieces.append(_piece(small, order))
            small.clear()

    def close() -> None:
        nonlocal size, pieces
        gather()
        if pieces:
            drafts.append(Draft(pieces, size))
        pieces, size = [], 0

    for whole in spans:
        for span in _parts(whole, limit):
            if span.new.size < SMALL and span.old is not None and np.array_equal(span.old, span.new):
                continue
            if size + span.new.size > limit:
                close()
            size += span.new.size
            if span.new.size < SMALL:
                small.append(span)
            else:
                gather()
                pieces.append(_piece([span], order))
    close()
    return drafts


def _piece(spans: Sequence[Span], order: Order) -> SpanPiece:
    segments = tuple(Segment(span.region, span.offset, span.new.size) for span in spans)
    olds = [span.old for span in spans if span.old is not None]
    old = np.concatenate(olds) if len(olds) > 1 else olds[0] if olds else None
    new = np.concatenate([span.new for span in spans]) if len(spans) > 1 else spans[0].new
    return SpanPiece(segments, None if old is None else elements_of(old, order), elements_of(new, order))


def halves(draft: Draft, kind: Kind) -> list[Draft]:
    """The draft in two of about equal size, or alone when it is a single element."""
    half = draft.size // 2
    half -= half % width_bytes(kind)
    if half == 0:
        return [draft]
    sides: tuple[list[SpanPiece], list[SpanPiece]] = ([], [])
    at = 0
    for piece in draft.pieces:
        for part in _split_piece(piece, half - at, kind):
            size = sum(segment.size for segment in part.segments)
            sides[at >= half].append(part)
            at += size
    return [Draft(side, sum(s.size for piece in side for s in piece.segments), draft.density) for side in sides if side]


def _parts(span: Span, limit: int) -> Iterable[Span]:
    """The span in parts of at most `limit` bytes."""
    if span.new.size <= limit:
        yield span
        return
    for at in range(0, span.new.size, limit):
        old = None if span.old is None else span.old[at : at + limit]
        yield Span(span.region, span.kind, span.offset + at, old, span.new[at : at + limit])


def _split_piece(piece: SpanPiece, size: int, kind: Kind) -> list[SpanPiece]:
    """The piece cut after `size` bytes, if that lies inside it."""
    total = sum(segment.size for segment in piece.segments)
    if not 0 < size < total:
        return [piece]
    left: list[Segment] = []
    right: list[Segment] = []
    at = 0
    for segment in piece.segments:
        inside = min(max(size - at, 0), segment.size)
        if inside:
            left.append(Segment(segment.region, segment.offset, inside))
        if inside < segment.size:
            right.append(Segment(segment.region, segment.offset + inside, segment.size - inside))
        at += segment.size
    cut = size * 8 // BITS[kind]
    old = piece.old
    return [
        SpanPiece(tuple(left), None if old is None else old[:cut], piece.new[:cut]),
        SpanPiece(tuple(right), None if old is None else old[cut:], piece.new[cut:]),
    ]
