"""Changes along a chain of transitions of which only the first version is here, found without building the others.

A transition decodes only against the bytes it leads from, so each stretch of the first version is copied, every leg is
applied to the copy, and the result is held against the original: what changed and changed back drops out by itself.
The copy is a window that moves through the version, about as long as the longest job of a publisher, times the legs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..protocol.codec.chunk import apply_chunk, covered_ranges
from ..protocol.layout import Layout
from .delta import Change, Tensor, Work, changes_of, common_tensors
from .errors import LoadInFullError, StorageError
from .mapped import Bytes, MappedFiles

MAX_WINDOW_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Leg:
    """One transition: the layout that it leads to, and for each of its chunks a call that gives the contents."""

    layout: Layout
    chunks: Iterable[Callable[[], bytes]]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A chunk and the stretch of the first version in which it writes."""

    first: int
    end: int
    contents: Callable[[], bytes]


class _Applied:
    """One leg, chunk by chunk in the order of their stretches."""

    def __init__(self, leg: Leg, starts: dict[str, int], old: Layout) -> None:
        # By region of its own: the tensor that stands there, and where that begins in the first version.
        self._tensors = {tensor.new: (tensor, starts[tensor.name]) for tensor in common_tensors(old, leg.layout)}
        self.chunks = sorted(filter(None, map(self._place, leg.chunks)), key=lambda chunk: chunk.first)
        self.done = 0

    def _place(self, contents: Callable[[], bytes]) -> _Placed | None:
        ranges = [each for each in covered_ranges(contents(), self._tensors) if each[2]]
        if not ranges:
            return None  # of other files than tensors
        first, end = None, 0
        for region, offset, size in ranges:
            tensor, start = self._find(region, offset, size)
            # A complex number is two elements to the codec, and one here.
            begin = start + offset // tensor.width * tensor.width
            first = begin if first is None else min(first, begin)
            end = max(end, start - (-(offset + size) // tensor.width) * tensor.width)
        assert first is not None
        return _Placed(first, end, contents)

    def _find(self, region: int, offset: int, size: int) -> tuple[Tensor, int]:
        """The tensor that a range lies in, and where that begins in the first version."""
        found = self._tensors.get(region)
        if found is None or offset < 0 or offset + size > found[0].size_bytes:
            raise LoadInFullError(f"a chunk writes tensors and other bytes (of region {region}) at once: load in full")
        return found

    @property
    def next_first(self) -> int | None:
        """Where the next chunk begins."""
        return self.chunks[self.done].first if self.done < len(self.chunks) else None

    def apply(self, chunk: _Placed, window: _Window) -> None:
        """Write a chunk's tensors into the window."""
        self.done += 1

        def resolve(region: int, offset: int, size: int) -> Bytes:
            return window.bytes(self._find(region, offset, size)[1] + offset, size)

        apply_chunk(chunk.contents(), resolve, self._tensors)


class _Window:
    """A copy of a stretch of the first version: bytes from `base` on, counted through all its files."""

    def __init__(self, old: MappedFiles) -> None:
        self._old = old
        sizes = [file.size for file in old.layout.files]
        self._file_starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self.base = 0
        self._copy = np.empty(0, np.uint8)

    @property
    def end(self) -> int:
        """Where the copy ends."""
        return self.base + len(self._copy)

    def cover(self, end: int) -> None:
        """Reach as far as `end`. Raises LoadInFullError when that takes too much memory."""
        have = self.end
        if end <= have:
            return
        if end - self.base > MAX_WINDOW_BYTES:
            raise LoadInFullError("the changes along the way overlap too far to be put together: load in full")
        self._copy = np.concatenate([self._copy, *self.original(have, end)])

    def bytes(self, first: int, size: int) -> Bytes:
        """A part of the copy, to be read and written."""
        begin = first - self.base
        if begin < 0 or begin + size > len(self._copy):
            raise StorageError(f"a chunk writes bytes {first} to {first + size}, outside of what it says")
        return self._copy[begin : begin + size]

    def original(self, first: int, end: int) -> Iterator[Bytes]:
        """The version's own bytes, file by file."""
        file = bisect_right(self._file_starts, first) - 1
        while first < end:
            stop = min(end, self._file_starts[file + 1])
            if stop > first:
                yield self._old.view(file, first - self._file_starts[file], stop - first)
            first, file = stop, file + 1

    def start(self, tensor: Tensor) -> int:
        """Where a tensor begins."""
        file, offset = self._old.table.place(tensor.old, 0, 0)
        return int(self._file_starts[file]) + offset

    def drop(self, end: int) -> None:
        """Go on from `end`."""
        self._copy = self._copy[end - self.base :].copy() if end < self.end else self._copy[:0]
        self.base = end


def compose_legs(tensors: Sequence[Tensor], old: MappedFiles, legs: Sequence[Leg]) -> Iterator[Work]:
    """Work that finds what the legs, one after the other, change in the tensors of `old`, held as long as it is done.

    Raises LoadInFullError when a leg changes the tensors' names, dtypes or shapes; BaseMismatchError and CodecError.
    """
    window = _Window(old)
    starts = {tensor.name: window.start(tensor) for tensor in tensors}
    applied = [_Applied(leg, starts, old.layout) for leg in legs]
    order = sorted(range(len(tensors)), key=lambda number: starts[tensors[number].name])
    begins = [starts[tensors[number].name] for number in order]
    while (first := _next(applied)) is not None:
        window.drop(first)
        end = max(leg.chunks[leg.done].end for leg in applied if leg.next_first == first)
        for number in range(len(applied)):
            _bring(applied, number, end, window)
        until = _next(applied)
        yield from _compare(tensors, order, begins, window, window.end if until is None else min(until, window.end))


def _next(applied: Sequence[_Applied]) -> int | None:
    return min((leg.next_first for leg in applied if leg.next_first is not None), default=None)


def _bring(applied: Sequence[_Applied], number: int, end: int, window: _Window) -> None:
    """Apply what a leg writes before `end`, and first, in the legs before it, what that stands on."""
    leg = applied[number]
    while (first := leg.next_first) is not None and first < end:
        chunk = leg.chunks[leg.done]
        if number:
            _bring(applied, number - 1, chunk.end, window)
        window.cover(chunk.end)
        leg.apply(chunk, window)


def _compare(
    tensors: Sequence[Tensor], order: Sequence[int], begins: Sequence[int], window: _Window, end: int
) -> Iterator[Work]:
    """Work for each tensor that has bytes between the window's base and `end`, before which nothing changes any more.

    A chunk begins and ends with whole elements, and so do these stretches.
    """
    base = window.base
    for place in range(max(bisect_right(begins, base) - 1, 0), bisect_right(begins, end - 1)):
        number = order[place]
        first, last = max(begins[place], base), min(begins[place] + tensors[number].size_bytes, end)
        if first < last:
            before = list(window.original(first, last))
            assert len(before) == 1, "a tensor stands in one file"
            yield _piece_work(
                number, tensors[number], first - begins[place], before[0], window.bytes(first, last - first)
            )


def _piece_work(number: int, tensor: Tensor, first: int, before: Bytes, after: Bytes) -> Work:
    def work() -> Sequence[Change]:
        return changes_of(number, tensor, first, before, after)

    return work
