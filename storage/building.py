"""A slot while it is being written: chunks applied in place, in parallel, until it is committed or given up."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..protocol.codec.chunk import AppliedChunk, Resolve, apply_chunk, covered_ranges
from ..protocol.errors import BaseMismatchError, CodecError
from ..protocol.layout import Layout
from .errors import StorageError
from .files import Files
from .journal import Journal, Touched, difference
from .mapped import Bytes, MappedFiles
from .rebuild import plan, reshape
from .state import JOURNAL_NAME
from .verify import block_digests

if TYPE_CHECKING:
    from .slot_table import Slot
    from .slots import StreamSlots


class Building:
    """One version in the making, from `StreamSlots.begin`. Ends with `commit`, `commit_twin` or `abort`.

    `apply` may run in several threads at once for different chunks; everything else waits for them to finish.
    """

    def __init__(self, slots: StreamSlots, mapped: MappedFiles, files: Files, threads: int, *, keep_old: bool) -> None:
        self.mapped = mapped
        self.keep_old = keep_old
        self.journal = Journal(mapped.directory / JOURNAL_NAME, files)
        self._slots = slots
        self._files = files
        self._threads = threads
        self._idle = threading.Condition()
        self._undoing = threading.Lock()
        self._applying = 0
        self._ended = False
        self._broken: str | None = None

    @property
    def directory(self) -> Path:
        """Where the version is being built."""
        return self.mapped.directory

    @property
    def layout(self) -> Layout:
        """The layout of the version in the making."""
        return self.mapped.layout

    def apply(self, contents: bytes) -> AppliedChunk:
        """Apply a chunk's contents in place.

        Raises CodecError or BaseMismatchError for a chunk that does not fit; after that, and after any other
        failure on the way, only `abort` is left. Raises NoSpaceError when the journal cannot grow.
        """
        with self._working() as mapped:
            return self._apply(mapped, contents)

    def try_apply(self, contents: bytes) -> bool:
        """The same, but False for a chunk that was made against other bytes than are here: `fill` in the right ones."""
        with self._working() as mapped:
            try:
                self._apply(mapped, contents)
            except BaseMismatchError:
                return False
            return True

    def fill(self, region: int, offset: int, data: Bytes) -> None:
        """Write bytes of a region as they are, where they are known better than the slot holds them."""
        with self._working() as mapped:
            if self.keep_old:
                raise StorageError(f"{self.directory} is the only slot, which changes by chunks alone")
            self.journal.append([self._touched(mapped, region, offset, len(data))])
            mapped.resolve(region, offset, len(data))[:] = data

    def _apply(self, mapped: MappedFiles, contents: bytes) -> AppliedChunk:
        ranges = covered_ranges(contents)
        if self.keep_old:
            return self._apply_with_undo(mapped, contents, ranges)
        self.journal.append([self._touched(mapped, *each) for each in ranges])
        return apply_chunk(contents, mapped.resolve)

    def _apply_with_undo(
        self, mapped: MappedFiles, contents: bytes, ranges: list[tuple[int, int, int]]
    ) -> AppliedChunk:
        """Apply to a private copy, keep the old bytes where they differ, then write: the slot has no twin.

        One chunk at a time: each may cover many times its own size, and memory is tight where there is one slot.
        """
        with self._undoing:
            return self._apply_to_copy(mapped, contents, ranges)

    def _apply_to_copy(self, mapped: MappedFiles, contents: bytes, ranges: list[tuple[int, int, int]]) -> AppliedChunk:
        copies = {each: np.array(mapped.region(*each)) for each in ranges}
        applied = apply_chunk(contents, _within(copies))
        self.journal.append(
            [self._touched(mapped, *each, difference(mapped.region(*each), copy)) for each, copy in copies.items()]
        )
        for each, copy in copies.items():
            mapped.resolve(*each)[:] = copy
        return applied

    def _touched(self, mapped: MappedFiles, region: int, offset: int, size: int, undo: bytes = b"") -> Touched:
        file, at = mapped.table.place(region, offset, size)
        return Touched(self.layout.files[file].path, at, size, undo)

    def view(self, file: int, offset: int, size: int) -> Bytes:
        """Bytes of a file as they are now: uint8, read-only, without a copy."""
        return self.mapped.view(file, offset, size)

    def region(self, number: int, offset: int, size: int) -> Bytes:
        """Bytes of a region as they are now: uint8, read-only, without a copy. Raises CodecError outside the layout."""
        return self.mapped.region(number, offset, size)

    def read(self, file: int, offset: int, size: int) -> Bytes:
        """The same as `view`; makes a building a `ByteSource`."""
        return self.view(file, offset, size)

    def advance(self, layout: Layout) -> None:
        """Get ready for the next transition of a route, which leads to `layout`.

        The version that the last transition led to is here now; files are made anew only where the layouts differ.
        A slot that keeps its old bytes for undoing gets them back then, and the building goes on beside it.
        Raises NoSpaceError, and the building goes on as it was.
        """
        with self._alone():
            change = plan(self.layout, layout, same_bytes=True)
            if not change.is_empty:
                if self.keep_old:
                    self._slots.move_building(self, layout)
                    return
                reshape(
                    self._files,
                    self.directory,
                    change,
                    self.mapped,
                    self.journal,
                    self._threads,
                    overwrite_kept=False,
                )
            if layout != self.layout:
                self.mapped = self.mapped.relaid(layout, change.kept)

    def digests(self, threads: int | None = None) -> bytes:
        """BLAKE3 of each 4 MiB block, 32 bytes each, in the order of `Layout.blocks`."""
        return block_digests(self, threads or self._threads)

    def commit(self, epoch: int, version: int, manifest: bytes, label: str, *, proven: bool) -> Slot:
        """Make this the stream's current version: a rename.

        Raises NotNewerError, SlotsBusyError, NoSpaceError; then it may be tried again, or aborted.
        """
        with self._alone():
            slot = self._slots.commit_building(self, epoch, version, manifest, label, proven=proven)
            self._end()
            return slot

    def commit_twin(self, epoch: int, version: int, manifest: bytes, label: str, *, proven: bool) -> Slot:
        """Keep this as the hidden copy of a committed version, to be written next."""
        with self._alone():
            slot = self._slots.commit_twin(self, epoch, version, manifest, label, proven=proven)
            self._end()
            return slot

    def abort(self) -> None:
        """Give up: the directory is brought back to what it held before where a twin allows, or dropped.

        No effect after an end. Never fails for what the building went through; OSError of the device passes.
        """
        with self._idle:
            if self._ended:
                return
            self._broken = "it was aborted"
            self._idle.wait_for(lambda: self._applying == 0)
            self._end()
            self._slots.abort_building(self)

    def _end(self) -> None:
        self._ended = True
        self.journal.close()

    @contextmanager
    def _working(self) -> Iterator[MappedFiles]:
        with self._idle:
            self._check()
            self._applying += 1
            mapped = self.mapped
        try:
            yield mapped
        except BaseException as error:
            self._broken = f"a chunk failed: {error}"
            raise
        finally:
            with self._idle:
                self._applying -= 1
                self._idle.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._idle:
            self._idle.wait_for(lambda: self._applying == 0)
            self._check()
            yield

    def _check(self) -> None:
        if self._ended:
            raise StorageError(f"{self.directory} is not being built any more")
        if self._broken:
            raise StorageError(f"{self.directory} can only be aborted: {self._broken}")


def _within(copies: dict[tuple[int, int, int], Bytes]) -> Resolve:
    """A resolver that finds a range inside one of the private `copies`. Raises CodecError for any other."""
    order = sorted(copies)
    for before, after in pairwise(order):
        if before[0] == after[0] and before[1] + before[2] > after[1]:
            raise CodecError(f"a chunk covers bytes of region {after[0]} from {after[1]} twice")

    def resolve(region: int, offset: int, size: int) -> Bytes:
        at = bisect_right(order, (region, offset, 2**63)) - 1
        if at >= 0:
            key = order[at]
            if key[0] == region and key[1] <= offset and offset + size <= key[1] + key[2]:
                return copies[key][offset - key[1] : offset - key[1] + size]
        raise CodecError(
            f"a chunk writes bytes {offset} to {offset + size} of region {region}, which it does not cover"
        )

    return resolve
