"""The state file of a slot: what the directory holds, and whether that may be served.

    offset  bytes  contents
    0       6      "PSSLOT"
    6       1      format, 1
    7       4      length N of the body, little-endian
    11      N      MessagePack array: the fields of SlotState
    11+N    32     BLAKE3 of all before it

It is replaced by rename and is durable before the directory gets its version's name. The layout stands beside it
in a file of its own, because it is long and seldom changes.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec

from ..protocol.errors import LayoutError, MessageError
from ..protocol.ids import Attempt, Counter, Digest, MaybeDigest, StreamName, digest
from ..protocol.layout import MAX_LAYOUT_BYTES, Layout, decode_layout
from ..protocol.manifest import Label
from ..protocol.packing import pack, unpack_as
from .errors import HomeError, SlotStateError
from .files import Files, read_file, write_file

STATE_NAME: Final = ".patchswarm-slot"
LAYOUT_NAME: Final = ".patchswarm-layout"
JOURNAL_NAME: Final = ".patchswarm-journal"
FRESH_NAME: Final = ".patchswarm-fresh"
"""Folder inside a slot for files that are being made for a new layout."""

MAGIC: Final = b"PSSLOT"
FORMAT: Final = 1
_LIMIT: Final = 64 * 1024


class Phase(IntEnum):
    """What a slot directory is. Values are disk format."""

    READY = 0  # a committed version
    TWIN = 1  # a hidden copy of a committed version, to be written next
    BUILDING = 2  # being written; the journal says where it differs from the version named in the state
    UNDO = 3  # being written, and the journal holds the old bytes


class SlotState(msgspec.Struct, frozen=True, array_like=True):
    """What a slot holds. While it is written, the version it held before (no manifest: nothing of use)."""

    phase: Phase
    stream: StreamName
    epoch: Counter
    version: Counter
    manifest: MaybeDigest
    label: Label
    layout: Digest
    """Root of the layout in the file beside."""
    boot: Attempt
    """The kernel's boot id when the bytes were written: after another boot, unsynced pages may be lost."""
    proven: bool
    """The whole digest table was checked."""
    withdrawn: bool
    """A block was found that is not the trainer's: not to be served until repaired."""


def encode_state(state: SlotState) -> bytes:
    """Bytes of a state file."""
    body = pack(state)
    data = MAGIC + bytes((FORMAT,)) + len(body).to_bytes(4, "little") + body
    return data + digest(data)


def decode_state(data: bytes, path: Path) -> SlotState:
    """The state in a state file's bytes.

    Raises SlotStateError when it is torn or damaged; HomeError when it was written by a later version.
    """
    if data[: len(MAGIC)] != MAGIC or len(data) < 11:
        raise SlotStateError(f"{path} is not a slot's state file")
    if data[6] != FORMAT:
        raise HomeError(f"{path} has format {data[6]}, this version reads {FORMAT}: upgrade patchswarm")
    end = 11 + int.from_bytes(data[7:11], "little")
    if len(data) != end + 32 or digest(data[:end]) != data[end:]:
        raise SlotStateError(f"{path} is torn: the slot cannot be trusted")
    try:
        return unpack_as(data[11:end], SlotState)
    except MessageError as error:
        raise SlotStateError(f"{path} does not decode: {error}") from None


def write_state(files: Files, directory: Path, state: SlotState) -> None:
    """Replace a slot's state file; durable when this returns."""
    write_file(files, directory / STATE_NAME, encode_state(state), sync=True)


def read_state(files: Files, directory: Path) -> SlotState:
    """A slot's state. Raises FileNotFoundError when there is none, SlotStateError, HomeError."""
    path = directory / STATE_NAME
    try:
        return decode_state(read_file(files, path, limit=_LIMIT), path)
    except ValueError as error:
        raise SlotStateError(str(error)) from None


def write_layout(files: Files, directory: Path, layout: Layout) -> None:
    """Replace a slot's layout file; durable when this returns."""
    write_file(files, directory / LAYOUT_NAME, layout.encode(), sync=True)


def read_layout(files: Files, directory: Path, root: bytes) -> Layout:
    """A slot's layout, which must have this root. Raises SlotStateError."""
    path = directory / LAYOUT_NAME
    try:
        data = read_file(files, path, limit=MAX_LAYOUT_BYTES)
        if digest(data) != root:
            raise SlotStateError(f"{path} is torn: the slot cannot be trusted")
        return decode_layout(data)
    except (ValueError, FileNotFoundError, LayoutError) as error:
        raise SlotStateError(f"{path} does not hold the slot's layout: {error}") from None
