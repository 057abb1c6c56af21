"""The signed log: a second copy of what the catalog must not lose, in a plain file beside it.

A publisher that forgot what it signed would use a version number twice. So signed objects and settings are appended
here first, and a catalog that lacks some, because it was lost, damaged or an old copy of it put back, gets them again.
The log is what makes them durable: the database beside it is not waited for.

    offset  bytes  contents
    0       6      "PSSIGN"
    6       1      format, 1
    7       ...    entries (see `entries`), each the MessagePack array [what, name, data]

`what` is the kind of a signed object (`name` is its digest), 254 for an object that was forgotten (`data` is empty), or
255 for a setting (`name` is its key in UTF-8). The last word about a name counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ..protocol.errors import MessageError
from ..protocol.packing import pack, unpack
from .entries import LIMIT, framed, whole_entries
from .errors import CatalogError
from .files import Files, exists, named, read_file, write_at, write_file

FORGOTTEN: Final = 254
SETTING: Final = 255
_MAGIC: Final = b"PSSIGN"
_FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 32
_START: Final = _MAGIC + bytes((_FORMAT,))

Word = Annotated[int, msgspec.Meta(ge=0, le=255)]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One word about an object or a setting."""

    what: Word
    name: bytes
    data: bytes = b""

    @property
    def key(self) -> tuple[bool, bytes]:
        """What tells it from others: objects and settings have names of their own."""
        return self.what == SETTING, self.name


def encode_log(entries: Iterable[Entry]) -> bytes:
    """Bytes of a whole log."""
    return _START + b"".join(framed(pack(each)) for each in entries)


def decode_log(data: bytes) -> list[Entry]:
    """The entries in a log's bytes, up to the first that is torn or damaged."""
    found: list[Entry] = []
    if data[: len(_START)] == _START:
        bodies = whole_entries(lambda at, size: data[len(_START) + at : len(_START) + at + size])
        with suppress(MessageError):
            found.extend(unpack(body, Entry, limit=LIMIT) for body in bodies)
    return found


class SignedLog:
    """The log at `path`. Not thread-safe: the catalog's lock guards it."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._fd = -1
        self.size_bytes = 0
        """Bytes of the log, once something was appended or replaced."""
        self.is_whole = False
        """Whether `read` came to the end of the file; where it did not, what is appended is not read later."""

    def read(self) -> dict[tuple[bool, bytes], Entry]:
        """What the log says, forgotten objects left out; up to the first damaged entry. Nothing when there is none.

        Raises CatalogError for a log of a later format.
        """
        self.is_whole = False
        if not exists(self._files, self.path):
            return {}
        data = read_file(self._files, self.path, limit=_MOST_BYTES)
        if data[: len(_MAGIC)] == _MAGIC and data[len(_MAGIC) : len(_START)] > bytes((_FORMAT,)):
            error = CatalogError(f"{self.path} has a later format: upgrade patchswarm")
            error.later_format = True
            raise error
        entries = decode_log(data)
        self.is_whole = data == encode_log(entries)
        found = {entry.key: entry for entry in entries}
        return {key: entry for key, entry in found.items() if entry.what != FORGOTTEN}

    def replace(self, entries: Iterable[Entry]) -> int:
        """Let the log say this and nothing else; its bytes. Durable. Raises NoSpaceError, and it stays as it was."""
        data = encode_log(entries)
        self.close()
        write_file(self._files, self.path, data, sync=True)
        self.size_bytes = len(data)
        return len(data)

    def append(self, entries: Iterable[Entry], *, sync: bool) -> None:
        """Add to the log; durable with `sync`. Raises NoSpaceError; what was written in part is overwritten then."""
        data = b"".join(framed(pack(each)) for each in entries)
        with named(self.path):
            if self._fd < 0:
                self._fd = self._files.open_write(self.path)
                self.size_bytes = self._files.fstat(self._fd).st_size
            write_at(self._files, self._fd, memoryview(data), self.size_bytes)
            self.size_bytes += len(data)
            if sync:
                self._files.sync(self._fd)

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.close(fd)
