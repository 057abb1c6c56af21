"""A version's files in one of our own directories, mapped, and found by file or by region number.

Only files that we allocated in full are ever mapped for writing, so a store cannot fault for lack of space.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ..protocol.errors import CodecError
from ..protocol.layout import Layout
from .errors import SlotDamagedError
from .files import Files

MAPPED_FILES: Final = 128
"""Mappings that one slot keeps at most, each with a descriptor. One that is let go lives on while a view of it does."""

MAPPED_BYTES: Final = 64 << 30
"""Bytes that one slot keeps mapped at most: the kernel's tables for them take a 512th of that."""

Bytes = npt.NDArray[np.uint8]


class RegionTable:
    """Where each region of a layout lies: int64 arrays `file`, `offset`, `size`, indexed by region number."""

    def __init__(self, layout: Layout) -> None:
        counts = [len(file.regions) for file in layout.files]
        self.file = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self.size = np.fromiter((r.size for f in layout.files for r in f.regions), np.int64, sum(counts))
        ends = np.cumsum(self.size)
        starts = ends - self.size
        sizes = np.array([file.size for file in layout.files], np.int64)
        self.offset = starts - (np.cumsum(sizes) - sizes)[self.file]

    def place(self, region: int, offset: int, size: int) -> tuple[int, int]:
        """(file, offset in it) of a range of a region. Raises CodecError for one outside the layout."""
        if not 0 <= region < len(self.size):
            raise CodecError(f"region {region} is not in the layout of {len(self.size)} regions")
        if offset < 0 or size < 0 or offset + size > self.size[region]:
            raise CodecError(
                f"bytes {offset} to {offset + size} are outside region {region} of {self.size[region]} bytes"
            )
        return int(self.file[region]), int(self.offset[region]) + offset


class MappedFiles:
    """The files of `layout` under `directory`. Thread-safe. Views stay valid after `close`, until they die.

    A slot keeps its mappings from one version to the next, so that a step faults in no page twice.
    """

    def __init__(self, directory: Path, layout: Layout, files: Files, *, writable: bool) -> None:
        self.directory = directory
        self.layout = layout
        self._files = files
        self._writable = writable
        self._table: RegionTable | None = None
        self._lock = threading.Lock()
        self._maps: OrderedDict[int, Bytes] = OrderedDict()
        self._mapped_bytes = 0

    @property
    def table(self) -> RegionTable:
        """Where each region lies."""
        if self._table is None:
            self._table = RegionTable(self.layout)
        return self._table

    def view(self, file: int, offset: int, size: int) -> Bytes:
        """`size` bytes of a file from `offset`: uint8, read-only, without a copy. Raises SlotGoneError, ValueError."""
        if offset < 0 or size < 0 or offset + size > self.layout.files[file].size:
            raise ValueError(f"bytes {offset} to {offset + size} are outside {self.layout.files[file].path}")
        return _frozen(self._map(file)[offset : offset + size])

    def read(self, file: int, offset: int, size: int) -> Bytes:
        """The same as `view`: what a foreign source copies, ours only shows."""
        return self.view(file, offset, size)

    def region(self, number: int, offset: int, size: int) -> Bytes:
        """`size` bytes of a region from `offset`, as `view`. Raises CodecError for a range outside the layout."""
        return _frozen(self.resolve(number, offset, size))

    def resolve(self, number: int, offset: int, size: int) -> Bytes:
        """The same, to be written when the files are ours to write."""
        file, at = self.table.place(number, offset, size)
        return self._map(file)[at : at + size]

    def write(self, file: int, offset: int, size: int, data: bytes) -> None:
        """Write `size` bytes into a file that is ours to write."""
        self._map(file)[offset : offset + size] = np.frombuffer(data, np.uint8)

    def relaid(self, layout: Layout, kept: Iterable[int]) -> MappedFiles:
        """The files of another layout in the same directory; of the `kept` ones the mappings go over."""
        made = MappedFiles(self.directory, layout, self._files, writable=self._writable)
        before = {file.path: number for number, file in enumerate(self.layout.files)}
        with self._lock:
            for number in kept:
                mapped = self._maps.pop(before[layout.files[number].path], None)
                if mapped is not None:
                    made._remember(number, mapped)
        self.close()
        return made

    def close(self) -> None:
        """Let go of all mappings that no view holds."""
        with self._lock:
            self._maps.clear()
            self._mapped_bytes = 0

    def _map(self, file: int) -> Bytes:
        with self._lock:
            mapped = self._maps.get(file)
            if mapped is None:
                mapped = self._open(file)
                self._remember(file, mapped)
            else:
                self._maps.move_to_end(file)
            return mapped

    def _remember(self, file: int, mapped: Bytes) -> None:
        self._maps[file] = mapped
        self._mapped_bytes += len(mapped)
        while len(self._maps) > 1 and (len(self._maps) > MAPPED_FILES or self._mapped_bytes > MAPPED_BYTES):
            self._mapped_bytes -= len(self._maps.popitem(last=False)[1])

    def _open(self, file: int) -> Bytes:
        size = self.layout.files[file].size
        if size == 0:
            return np.empty(0, np.uint8)
        path = self.directory / self.layout.files[file].path
        try:
            self._files.stat(path)  # opening for writing would make it
            fd = self._files.open_write(path) if self._writable else self._files.open_read(path)
        except FileNotFoundError:
            raise SlotDamagedError(f"{path} is missing: the slot is damaged") from None
        try:
            found = self._files.fstat(fd).st_size
            if found != size:
                raise SlotDamagedError(f"{path} has {found} bytes instead of {size}: the slot is damaged")
            return np.frombuffer(self._files.map(fd, size, writable=self._writable), np.uint8)
        finally:
            self._files.close(fd)


def _frozen(view: Bytes) -> Bytes:
    view.flags.writeable = False
    return view
