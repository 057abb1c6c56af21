"""A foreign checkpoint directory: its layout, and its bytes read once into private buffers.

Foreign files are never mapped: the trainer may truncate them. Whatever changes between `scan` and the last read
is a SourceChangedError, so that no mixture of two checkpoints is ever published.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ..protocol.elements import Kind
from ..protocol.errors import LayoutError
from ..protocol.layout import MAX_FILES, File, Layout, Region, Role, check_layout, check_path
from .errors import NotACheckpointError, SourceChangedError
from .files import Files, is_regular, read_at
from .safetensors import LENGTH_BYTES, file_regions, header_length

OPEN_FILES: Final = 64
"""Descriptors that one source keeps open at most (more only while more threads read at once)."""

_OWN_PREFIX: Final = ".patchswarm"  # a slot's own state files are no part of the checkpoint in it
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells that a file is still the one that was scanned."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """From a stat result."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(slots=True)
class _OpenFile:
    fd: int
    readers: int = 0


class Source:
    """A scanned checkpoint. `read` may be called from several threads. Close it, or use it as a context manager."""

    manifest: Final = b""
    """A foreign directory is not a version yet."""

    def __init__(self, directory: Path, layout: Layout, stamps: list[Stamp], files: Files) -> None:
        self.directory = directory
        self.layout = layout
        self._stamps = stamps
        self._files = files
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()

    def read(self, file: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """`size` bytes of a file of the layout, as a fresh uint8 array. Raises SourceChangedError."""
        out = np.empty(size, np.uint8)
        self.read_into(file, offset, out)
        return out

    def read_into(self, file: int, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill `out` (contiguous uint8) with bytes of a file of the layout. Raises SourceChangedError."""
        opened = self._acquire(file)
        try:
            got = read_at(self._files, opened.fd, out.data, offset)
        finally:
            self._release(opened)
        if got != len(out):
            raise self._changed(file, f"ends at byte {offset + got}")

    def check_unchanged(self) -> None:
        """Raise SourceChangedError unless every file, and the set of files, is as it was when scanned."""
        paths = [file.path for file in self.layout.files]
        found = [path for path, _ in _walk(self._files, self.directory)]
        if sorted(found) != paths:
            odd = min(set(found).symmetric_difference(paths))
            raise SourceChangedError(
                f"{self.directory / odd} appeared or vanished while the checkpoint was read: "
                "publish a directory that the trainer has finished"
            )
        for index, path in enumerate(paths):
            try:
                stamp = Stamp.of(self._files.stat(self.directory / path))
            except OSError as error:
                raise self._changed(index, error.strerror or "vanished") from None
            if stamp != self._stamps[index]:
                raise self._changed(index, "has another size, time or inode")

    def inodes(self) -> set[tuple[int, int]]:
        """(device, inode) of every file, wherever symlinks led: what is read is these files or nothing."""
        return {(stamp.device, stamp.inode) for stamp in self._stamps}

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            opened, self._open = self._open, OrderedDict()
        for each in opened.values():
            self._files.close(each.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _acquire(self, file: int) -> _OpenFile:
        with self._lock:
            opened = self._open.get(file)
            if opened is None:
                self._evict()
                opened = self._open[file] = _OpenFile(self._open_same(file))
            self._open.move_to_end(file)
            opened.readers += 1
            return opened

    def _release(self, opened: _OpenFile) -> None:
        with self._lock:
            opened.readers -= 1

    def _evict(self) -> None:
        while len(self._open) >= OPEN_FILES:
            idle = next((file for file, opened in self._open.items() if opened.readers == 0), None)
            if idle is None:
                return
            self._files.close(self._open.pop(idle).fd)

    def _open_same(self, file: int) -> int:
        try:
            fd = self._files.open_read(self.directory / self.layout.files[file].path)
        except OSError as error:
            raise self._changed(file, error.strerror or "cannot be opened") from None
        if Stamp.of(self._files.fstat(fd)) != self._stamps[file]:
            self._files.close(fd)
            raise self._changed(file, "has another size, time or inode")
        return fd

    def _changed(self, file: int, what: str) -> SourceChangedError:
        path = self.directory / self.layout.files[file].path
        return SourceChangedError(
            f"{path} changed while it was read ({what}): publish a directory that the trainer has finished"
        )


def scan(directory: Path, files: Files | None = None) -> Source:
    """The checkpoint in `directory`: every regular file, subfolders and symlinks followed.

    Reads safetensors headers only. Raises NotACheckpointError for a missing or empty directory and for a
    `.safetensors` file that is none; SourceChangedError when files change while it looks.
    """
    files = files or Files()
    found = sorted(_walk(files, directory))
    if not found:
        raise NotACheckpointError(f"{directory} is empty: no file of a checkpoint is in it")
    parts = [_scan_file(files, directory, path) for path, _ in found]
    layout = Layout(tuple(File(path, regions) for (path, _), (regions, _) in zip(found, parts, strict=True)))
    try:
        check_layout(layout)
    except LayoutError as error:
        raise NotACheckpointError(f"{directory} cannot be published: {error}") from None
    return Source(directory, layout, [stamp for _, stamp in parts], files)


def _scan_file(files: Files, directory: Path, path: str) -> tuple[tuple[Region, ...], Stamp]:
    full = directory / path
    try:
        fd = files.open_read(full)
    except OSError as error:
        raise NotACheckpointError(f"{full} cannot be read: {error.strerror}") from None
    try:
        stamp = Stamp.of(files.fstat(fd))
        if not path.endswith(".safetensors"):
            blob = (Region(Role.BLOB, Kind.BYTES, stamp.size_bytes),) if stamp.size_bytes else ()
            return blob, stamp
        prefix = _read_exactly(files, fd, 0, min(LENGTH_BYTES, stamp.size_bytes), full)
        length = header_length(prefix, stamp.size_bytes, str(full))
        header = _read_exactly(files, fd, LENGTH_BYTES, length, full)
        return file_regions(header, stamp.size_bytes, str(full)), stamp
    finally:
        files.close(fd)


def _read_exactly(files: Files, fd: int, offset: int, size: int, path: Path) -> bytes:
    data = bytearray(size)
    if read_at(files, fd, memoryview(data), offset) != size:
        raise SourceChangedError(f"{path} shrank while it was read: publish a directory that the trainer has finished")
    return bytes(data)


def _walk(files: Files, directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """(path below `directory`, stat) of every regular file; each folder once on any way down, so loops end."""
    try:
        root = files.stat(directory)
        yield from _walk_folder(files, directory, "", ((root.st_dev, root.st_ino),), [0])
    except FileNotFoundError as error:
        raise NotACheckpointError(f"{error.filename or directory} does not exist") from None
    except NotADirectoryError:
        raise NotACheckpointError(f"{directory} is not a directory") from None
    except PermissionError as error:
        raise NotACheckpointError(f"{error.filename or directory} may not be read by this user") from None


def _walk_folder(
    files: Files, folder: Path, prefix: str, above: tuple[tuple[int, int], ...], count: list[int]
) -> Iterator[tuple[str, os.stat_result]]:
    if len(above) > _MAX_DEPTH:
        raise NotACheckpointError(f"{folder} is nested more than {_MAX_DEPTH} folders deep")
    for entry in files.entries(folder):
        if entry.name.startswith(_OWN_PREFIX):
            continue
        path = prefix + entry.name
        try:
            found = files.stat(folder / entry.name)
        except OSError as error:
            if isinstance(error, PermissionError):
                raise
            raise NotACheckpointError(f"{folder / entry.name} is a symlink to nothing, or vanished") from None
        if is_regular(found):
            count[0] += 1
            if count[0] > MAX_FILES:
                raise NotACheckpointError(f"{folder} and its neighbours hold more than {MAX_FILES} files")
            _check_path(path, folder)
            yield path, found
        elif _is_folder(found) and (found.st_dev, found.st_ino) not in above:
            here = (*above, (found.st_dev, found.st_ino))
            yield from _walk_folder(files, folder / entry.name, path + "/", here, count)


def _check_path(path: str, folder: Path) -> None:
    try:
        check_path(path)
    except LayoutError as error:
        raise NotACheckpointError(f"{folder} holds a name that cannot be published: {error}") from None


def _is_folder(found: os.stat_result) -> bool:
    return (found.st_mode & 0o170000) == 0o040000
