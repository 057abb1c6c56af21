"""The journal of a slot that is being written: which bytes no longer are what its state file says.

An entry is appended before the bytes it names are touched, so after a crash of the process everything touched is
listed. (After a crash of the machine nothing is believed without the digest table anyway.) An entry (see `entries`) is
a MessagePack array of Touched. With an undo journal, it also holds the old bytes where the new ones differ.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import zstandard

from ..protocol.errors import MessageError
from ..protocol.ids import Counter
from ..protocol.packing import pack, unpack
from .entries import LIMIT, framed, whole_entries
from .errors import SlotStateError
from .files import Files, named, read_at, remove_file, write_at
from .mapped import Bytes

WHOLE: Final = -1
"""As a size: the file was made, replaced or removed."""


class Touched(msgspec.Struct, frozen=True, array_like=True):
    """`size` bytes of a file from `offset` (or WHOLE). `undo` has the old bytes, see `difference`."""

    path: str
    offset: Counter
    size: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
    undo: bytes = b""


def encode_entry(touched: Sequence[Touched]) -> bytes:
    """Bytes of one entry."""
    return framed(pack(list(touched)))


class Journal:
    """An open journal. `append` is thread-safe."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._lock = threading.Lock()
        self._fd = files.open_write(path)
        self._end = files.fstat(self._fd).st_size

    def append(self, touched: Sequence[Touched]) -> None:
        """Write one entry; when this returns it survives the process. Raises NoSpaceError."""
        if not touched:
            return
        entry = encode_entry(touched)
        with self._lock, named(self.path):
            write_at(self._files, self._fd, memoryview(entry), self._end)
            self._end += len(entry)

    def sync(self) -> None:
        """Make what was appended survive the machine."""
        self._files.sync(self._fd)

    def close(self) -> None:
        """Close the file, which is read again only if the building did not end well."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                with suppress(OSError):  # Linux has let go of the descriptor all the same
                    self._files.close(fd)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        remove_file(self._files, self.path)


def read_journal(path: Path, files: Files) -> list[Touched]:
    """All whole entries of a journal, oldest first; none when there is no journal.

    A torn last entry is left out: the bytes it was to name were not touched yet.
    """
    found: list[Touched] = []
    try:
        fd = files.open_read(path)
    except FileNotFoundError:
        return found
    try:
        for body in whole_entries(partial(_read, files, fd)):
            try:
                found.extend(unpack(body, list[Touched], limit=LIMIT))
            except MessageError as error:
                raise SlotStateError(f"{path} has an entry that does not decode: {error}") from None
    finally:
        files.close(fd)
    return found


def _read(files: Files, fd: int, offset: int, size: int) -> bytearray:
    data = bytearray(size)
    del data[read_at(files, fd, memoryview(data), offset) :]
    return data


def difference(old: Bytes, new: Bytes) -> bytes:
    """What takes `new` back to `old`: zstd of count u32, gaps between differing bytes u32 each, old bytes."""
    where = np.flatnonzero(old != new)
    gaps = np.diff(where, prepend=0).astype("<u4")
    raw = len(where).to_bytes(4, "little") + gaps.tobytes() + old[where].tobytes()
    return zstandard.ZstdCompressor(level=1).compress(raw)


def undo_difference(target: Bytes, undo: bytes) -> None:
    """Write the old bytes that `difference` kept back into `target`. Raises SlotStateError for damaged ones."""
    try:
        raw = zstandard.ZstdDecompressor().decompress(undo, max_output_size=4 + 5 * len(target))
    except zstandard.ZstdError as error:
        raise SlotStateError(f"undo record does not decompress: {error}") from None
    count = int.from_bytes(raw[:4], "little")
    if len(raw) != 4 + 5 * count:
        raise SlotStateError(f"undo record of {len(raw)} bytes does not hold {count} changes")
    where = np.cumsum(np.frombuffer(raw, "<u4", count, 4), dtype=np.int64)
    if count and where[-1] >= len(target):
        raise SlotStateError("undo record reaches outside its range")
    target[where] = np.frombuffer(raw, np.uint8, count, 4 + 4 * count)
