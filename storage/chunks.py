"""The chunk store: sealed chunks as plain files named by their BLAKE3, in a fan-out of 256 folders.

A chunk is written beside its place and renamed into it, so a name never stands for half a chunk while the
machine lives. After a crash of the machine it may: a chunk found at opening is hashed before it is first given out.

Some files of chunks that were removed are kept to be written over: their memory and blocks need not be found anew,
which is most of what a small file costs.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..protocol.ids import MAX_CHUNK_BYTES, digest, short
from .errors import ChunkCorruptError, ChunkMissingError
from .files import Files, make_folders, read_file, remove_file, sync_folder, write_file

_NAME_BYTES: Final = 32
_TEMPORARY: Final = ".new-"
_SPARE: Final = ".spare-"

SPARE_BYTES: Final = 256 * 1024 * 1024
"""So much, at most, lies in files that are kept to be written over,"""

SPARE_SHARE: Final = 100
"""and at most this part of the file system."""


class ChunkStore:
    """Sealed chunks under `root`. Thread-safe. Opening it removes what a crash left half-written."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._root = root
        self._files = files or Files()
        self._lock = threading.Lock()
        self._sizes: dict[bytes, int] = {}
        self._trusted: set[bytes] = set()
        self._being_read: Counter[bytes] = Counter()
        self._spares: list[tuple[Path, int]] = []
        self._spare_bytes = 0
        self._total_bytes = 0
        self._serial = itertools.count()
        make_folders(self._files, root)
        self._spare_limit = min(SPARE_BYTES, self._files.total_bytes(root) // SPARE_SHARE)
        self._folders: dict[str, bool] = {}  # name to "is its own name durable"
        self._recover()

    def _recover(self) -> None:
        for folder in self._files.entries(self._root):
            if not folder.is_folder:
                if folder.name.startswith(_SPARE):
                    remove_file(self._files, self._root / folder.name)
                continue
            self._folders[folder.name] = False
            for entry in self._files.entries(self._root / folder.name):
                path = self._root / folder.name / entry.name
                name = _name_of(entry.name)
                if entry.name.startswith(_TEMPORARY):
                    remove_file(self._files, path)
                elif entry.is_file and name is not None and self._path(name) == path:
                    self._remember(name, self._files.stat(path).st_size)

    @property
    def root(self) -> Path:
        """The folder that they are in."""
        return self._root

    def put(self, name: bytes, sealed: bytes | bytearray | memoryview, *, sync: bool = False) -> None:
        """Keep a sealed chunk. No effect when it is there (but `sync` is still honoured).

        With `sync` the chunk survives a crash of the machine before this returns: the head's chunks are
        durable before anything signed names them. Raises ChunkCorruptError when the bytes are not the ones
        that `name` names, NoSpaceError.
        """
        if digest(sealed) != name:
            raise ChunkCorruptError(f"{len(sealed)} bytes offered as chunk {short(name)} hash to another name")
        if len(sealed) > MAX_CHUNK_BYTES:
            raise ChunkCorruptError(f"chunk {short(name)} has {len(sealed)} bytes, over the limit of {MAX_CHUNK_BYTES}")
        with self._lock:
            present = name in self._trusted
            serial = next(self._serial)
        path = self._path(name)
        if present and not sync:
            return
        self._make_folder(path.parent, sync=sync)
        temporary = self._take_spare() or path.parent / f"{_TEMPORARY}{serial}-{path.name[:16]}"
        write_file(self._files, path, sealed, sync=sync, temporary=temporary)
        with self._lock:
            self._remember(name, len(sealed))
            self._trusted.add(name)

    def get(self, name: bytes) -> bytes:
        """A chunk's sealed bytes. Raises ChunkMissingError; ChunkCorruptError, and forgets it, when it is torn."""
        path = self._path(name)
        try:
            with self._reading(name):
                data = read_file(self._files, path, limit=MAX_CHUNK_BYTES)
        except FileNotFoundError:
            with self._lock:
                self._forget(name)
            raise ChunkMissingError(f"chunk {short(name)} vanished from {path}: fetch it again") from None
        except ValueError:
            data = b""
        with self._lock:
            trusted = name in self._trusted and self._sizes.get(name) == len(data)
        if not trusted:
            if digest(data) != name:
                self.remove(name)
                raise ChunkCorruptError(f"chunk {short(name)} in {path} was torn or damaged; removed: fetch it again")
            with self._lock:
                if name in self._sizes:
                    self._trusted.add(name)
        return data

    def check(self, name: bytes) -> bool:
        """Hash a chunk again, whatever is known of it: False, and it is removed, when it is damaged or missing."""
        with self._lock:
            self._trusted.discard(name)
        try:
            self.get(name)
        except (ChunkMissingError, ChunkCorruptError):
            return False
        return True

    def has(self, name: bytes) -> bool:
        """Whether the chunk is here."""
        with self._lock:
            return name in self._sizes

    def size(self, name: bytes) -> int:
        """Sealed bytes of a chunk. Raises ChunkMissingError."""
        with self._lock:
            size = self._sizes.get(name)
        if size is None:
            raise ChunkMissingError(f"chunk {short(name)} is not in {self._root}: fetch it again")
        return size

    def remove(self, name: bytes) -> None:
        """Forget a chunk; no error when it is not here."""
        path = self._path(name)
        with self._lock:
            size = self._sizes.get(name, 0)
            self._forget(name)
            # Whoever reads it has the file open, and would read what is written over it.
            keeps = size and name not in self._being_read and self._spare_bytes + size <= self._spare_limit
            if keeps:
                self._spare_bytes += size
                spare = self._root / f"{_SPARE}{next(self._serial)}"
        if not keeps:
            remove_file(self._files, path)
            return
        try:
            self._files.rename(path, spare)
        except OSError:
            with self._lock:
                self._spare_bytes -= size
            remove_file(self._files, path)
            return
        with self._lock:
            self._spares.append((spare, size))

    def free_spares(self) -> None:
        """Give the files that are kept to be written over back to the file system, which is full."""
        while spare := self._take_spare():
            remove_file(self._files, spare)

    def names(self) -> list[bytes]:
        """Names of all chunks here."""
        with self._lock:
            return list(self._sizes)

    @property
    def total_bytes(self) -> int:
        """Sealed bytes of all chunks here."""
        with self._lock:
            return self._total_bytes

    def sync(self, names: Iterable[bytes]) -> None:
        """Make chunks that were put without `sync` survive a crash of the machine. Raises ChunkMissingError."""
        folders = set()
        for name in names:
            path = self._path(name)
            try:
                fd = self._files.open_read(path)
            except FileNotFoundError:
                raise ChunkMissingError(f"chunk {short(name)} is not in {self._root}: fetch it again") from None
            try:
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            folders.add(path.parent)
        for folder in sorted(folders):
            sync_folder(self._files, folder)
            self._make_folder(folder, sync=True)

    @contextmanager
    def _reading(self, name: bytes) -> Iterator[None]:
        """Keep the file of a chunk from being written over. Raises ChunkMissingError."""
        with self._lock:
            if name not in self._sizes:
                raise ChunkMissingError(f"chunk {short(name)} is not in {self._root}: fetch it again")
            self._being_read[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._being_read[name] -= 1
                if not self._being_read[name]:
                    del self._being_read[name]

    def _take_spare(self) -> Path | None:
        with self._lock:
            if not self._spares:
                return None
            path, size = self._spares.pop()
            self._spare_bytes -= size
            return path

    def _path(self, name: bytes) -> Path:
        text = name.hex()
        return self._root / text[:2] / text

    def _make_folder(self, folder: Path, *, sync: bool) -> None:
        durable = self._folders.get(folder.name)
        if durable is None:
            self._files.make_folder(folder)
        if sync and not durable:
            sync_folder(self._files, self._root)
        self._folders[folder.name] = sync or bool(durable)

    def _remember(self, name: bytes, size: int) -> None:
        self._total_bytes += size - self._sizes.get(name, 0)
        self._sizes[name] = size

    def _forget(self, name: bytes) -> None:
        self._trusted.discard(name)
        self._total_bytes -= self._sizes.pop(name, 0)


def _name_of(text: str) -> bytes | None:
    try:
        name = bytes.fromhex(text)
    except ValueError:
        return None
    return name if len(name) == _NAME_BYTES else None
