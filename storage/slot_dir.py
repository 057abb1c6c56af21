"""The slot directory as a whole: whose it is, whether it lost its contents, and whether a model fits.

A marker file names the home it belongs to, and the home's catalog remembers which marker it saw last. So a tmpfs
that was remounted, a directory that moved, and one that belongs to another home are told apart.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from ..protocol.errors import MessageError
from ..protocol.ids import Attempt
from ..protocol.packing import pack, unpack_as
from .catalog import Catalog
from .errors import HomeError
from .files import Files, exists, make_folders, read_file, write_file

MARKER_NAME: Final = ".patchswarm-home"
_SEEN_KEY: Final = "slot_dir"
HOME_KEY: Final = "home_id"
_MAGIC: Final = b"PSHOME\x01"


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """Whose a slot directory is (`home`), and which one (`directory`, drawn when it was first used)."""

    home: Attempt
    directory: Attempt


class _Seen(msgspec.Struct, frozen=True, array_like=True):
    path: str
    directory: Attempt


class Found(Enum):
    """How a slot directory was found."""

    NEW = "new"  # never used by this home
    SAME = "as it was left"
    EMPTIED = "emptied"  # a tmpfs that was mounted again, or a replaced disk: versions are rebuilt from elsewhere
    MOVED = "moved"  # ours, under another path


@dataclass(frozen=True, slots=True)
class SlotDirectory:
    """A slot directory that may be used, and what there is to say about it."""

    path: Path
    found: Found
    in_memory: bool
    """On tmpfs: gone after a reboot."""


def open_slot_dir(path: Path, catalog: Catalog, files: Files | None = None) -> SlotDirectory:
    """Take a slot directory into use for the home of `catalog`. Raises HomeError when it belongs to another home."""
    files = files or Files()
    make_folders(files, path)
    home = catalog.get(HOME_KEY)
    if home is None:
        home = secrets.token_bytes(16)
        catalog.put(HOME_KEY, home)
    marker = _read_marker(files, path)
    if marker is not None and marker.home != home:
        raise HomeError(
            f"{path} holds the slots of another home: set another slot_dir, or remove them and {path / MARKER_NAME}"
        )
    kept = catalog.get(_SEEN_KEY)
    seen = unpack_as(kept, _Seen) if kept else None
    if marker is None:
        found = Found.NEW if seen is None or seen.path != str(path) else Found.EMPTIED
        marker = Marker(home, secrets.token_bytes(16))
        write_file(files, path / MARKER_NAME, encode_marker(marker), sync=True)
    elif seen is None or seen.directory != marker.directory:
        found = Found.SAME  # ours, and the catalog was rebuilt since
    else:
        found = Found.SAME if seen.path == str(path) else Found.MOVED
    now = pack(_Seen(str(path), marker.directory))
    if now != kept:
        catalog.put(_SEEN_KEY, now)
    return SlotDirectory(path, found, files.is_in_memory(path))


def home_of(path: Path, files: Files | None = None) -> bytes | None:
    """The id of the home that a slot directory belongs to, to be put into a rebuilt catalog. Raises HomeError."""
    marker = _read_marker(files or Files(), path)
    return marker.home if marker else None


def _read_marker(files: Files, path: Path) -> Marker | None:
    if not exists(files, path / MARKER_NAME):
        return None
    try:
        return decode_marker(read_file(files, path / MARKER_NAME, limit=1024), path / MARKER_NAME)
    except ValueError:
        raise HomeError(f"{path / MARKER_NAME} is damaged: remove it if the slots are yours") from None


def encode_marker(marker: Marker) -> bytes:
    """Bytes of a marker file."""
    return _MAGIC + pack(marker)


def decode_marker(data: bytes, path: Path) -> Marker:
    """The marker in a marker file's bytes. Raises HomeError."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise HomeError(f"{path} is damaged or of a later version: remove it if the slots are yours")
    try:
        return unpack_as(data[len(_MAGIC) :], Marker)
    except MessageError:
        raise HomeError(f"{path} is damaged: remove it if the slots are yours") from None


def check_fit(
    slot_dir: Path, home: Path, model_bytes: int, slots: int, memory_limit_bytes: int, files: Files | None = None
) -> list[str]:
    """What will not fit, one line each, if `slots` versions of a model are to stand in `slot_dir`; nothing if all does.

    The home needs room for the chunks of one full transition, and for some steps beside it.
    """
    files = files or Files()
    problems = []
    need = slots * model_bytes
    total, memory = files.total_bytes(_there(files, slot_dir)), files.memory_bytes()
    if need > total:
        problems.append(
            f"{slot_dir} is a file system of {_gb(total)}; {slots} slots of {_gb(model_bytes)} need {_gb(need)}: "
            f"enlarge it, or set slots = {max(1, total // max(1, model_bytes))}"
        )
    if files.is_in_memory(_there(files, slot_dir)) and need + memory_limit_bytes > memory:
        problems.append(
            f"this host has {_gb(memory)} of memory; {slots} slots of {_gb(model_bytes)} on tmpfs and memory_limit "
            f"need {_gb(need + memory_limit_bytes)}: put slot_dir on NVMe, or use fewer slots"
        )
    free = files.free_bytes(_there(files, home))
    chunks = model_bytes + model_bytes // 4
    if chunks > free:
        problems.append(f"{home} has {_gb(free)} free; chunks of a full transition and some steps need {_gb(chunks)}")
    return problems


def _there(files: Files, path: Path) -> Path:
    while not exists(files, path):
        path = path.parent
    return path


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
