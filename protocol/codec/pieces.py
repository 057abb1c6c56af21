"""Spans and segments as arrays of elements: the pieces that kernels run over.

A piece is one stretch of elements in memory. A large span is a piece by itself, seen in place; runs of small ones are
gathered into one scratch piece, so that ten thousand tiny regions cost a few kernel calls. Gaps run on over the pieces
of a record, so how a record is cut into pieces never shows in its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import CodecError
from .order import Order, frozen, pack_nibbles, unpack_nibbles
from .record import Segment

SMALL: Final = 32 << 10  # bytes below which spans are gathered

Resolve = Callable[[int, int, int], NDArray[np.uint8]]


def elements_of(data: NDArray[np.uint8], order: Order) -> NDArray[Any]:
    """Bytes (n,) as read-only elements, without a copy where memory allows: aligned, contiguous, not packed."""
    if order.step_shift:
        out: NDArray[Any] = unpack_nibbles(data)
    else:
        out = data.view(order.dtype)
        if not out.flags.aligned:
            out = out.copy()
    return frozen(out)


@dataclass(frozen=True, slots=True)
class SpanPiece:
    """Old (None without a parent) and new elements, and the segments they are."""

    segments: tuple[Segment, ...]
    old: NDArray[Any] | None
    new: NDArray[Any]


@dataclass(frozen=True, slots=True)
class SlotPiece:
    """Elements of a slot.

    `values` (n,) read-only and `target` (n,) writable are the same memory: the slot's own, or a copy of it when
    `gathered`. `views` are the segments' own bytes.
    """

    segments: tuple[Segment, ...]
    views: tuple[NDArray[np.uint8], ...]
    values: NDArray[Any]
    target: NDArray[Any]
    gathered: bool


def slot_pieces(segments: Sequence[Segment], resolve: Resolve, order: Order) -> list[SlotPiece]:
    """Resolve the segments of one record. CodecError when one is not what `resolve` says it holds."""
    pieces: list[SlotPiece] = []
    small: list[Segment] = []
    views: list[NDArray[np.uint8]] = []

    def flush() -> None:
        if small:
            pieces.append(_slot_piece(tuple(small), tuple(views), order))
            small.clear()
            views.clear()

    for segment in segments:
        view = resolve(segment.region, segment.offset, segment.size)
        if view.size != segment.size:
            raise CodecError(f"region {segment.region} does not hold {segment.size} bytes at {segment.offset}")
        if segment.size < SMALL:
            small.append(segment)
            views.append(view)
        else:
            flush()
            pieces.append(_slot_piece((segment,), (view,), order))
    flush()
    return pieces


def _slot_piece(segments: tuple[Segment, ...], views: tuple[NDArray[np.uint8], ...], order: Order) -> SlotPiece:
    data = views[0] if len(views) == 1 else np.concatenate(views)
    target: NDArray[Any] = unpack_nibbles(data) if order.step_shift else data.view(order.dtype)
    gathered = len(views) > 1 or order.step_shift > 0
    if not target.flags.aligned:
        target = target.copy()
        gathered = True
    return SlotPiece(segments, views, frozen(target), target, gathered)


def put_elements(piece: SlotPiece, values: NDArray[Any], order: Order) -> None:
    """Write all elements `values` (n,) of a piece to its views."""
    data = pack_nibbles(values) if order.step_shift else values.view(np.uint8)
    at = 0
    for view in piece.views:
        view[:] = data[at : at + view.size]
        at += view.size
