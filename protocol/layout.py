"""Layout: which files a version has, and which typed regions tile each file, byte by byte.

A layout is made from a checkpoint directory alone and encodes to the same bytes everywhere, so its BLAKE3
root says whether two hosts see the same structure. Regions are numbered through all files in order; chunk
records name them by that number.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, Final

import msgspec

from .elements import Kind, width_bytes
from .errors import LayoutError, MessageError
from .ids import Counter, digest
from .packing import pack, unpack_as

BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Every file is cut into blocks of 4 MiB, the last one shorter; the digest table has BLAKE3 of each."""

MAX_FILES: Final = 100_000
MAX_REGIONS: Final = 4_000_000
MAX_LAYOUT_BYTES: Final = 256 * 1024 * 1024
_MAX_PATH_BYTES: Final = 1024
_MAX_NAME_BYTES: Final = 255
_MAX_DEPTH: Final = 64
_RESERVED: Final = {"CON", "PRN", "AUX", "NUL", *(f"COM{n}" for n in range(1, 10)), *(f"LPT{n}" for n in range(1, 10))}


class Role(IntEnum):
    """What a region is within its file."""

    BLOB = 0  # a whole side file
    HEADER = 1  # a safetensors header with its 8-byte length
    TENSOR = 2
    GAP = 3  # bytes of a safetensors file that no tensor claims


class Region(msgspec.Struct, frozen=True, array_like=True):
    """One contiguous run of bytes with one element kind. `name`, `dtype` and `shape` are a tensor's own."""

    role: Role
    kind: Kind
    size: Counter
    name: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()


class File(msgspec.Struct, frozen=True, array_like=True):
    """One file: its path below the version's directory, '/' between parts, and the regions that tile it."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_PATH_BYTES)]
    regions: tuple[Region, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return sum(region.size for region in self.regions)


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A region with its place: its number in the layout, its file, and its first byte in that file."""

    number: int
    file: int
    offset: int
    region: Region


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """All files of a version, sorted by path."""

    files: tuple[File, ...]

    def encode(self) -> bytes:
        """MessagePack; the same bytes for the same layout."""
        return pack(self)

    def root(self) -> bytes:
        """BLAKE3 of the encoded layout, 32 bytes."""
        return digest(self.encode())

    @property
    def size(self) -> int:
        """Bytes of the whole checkpoint."""
        return sum(file.size for file in self.files)

    def placed(self) -> Iterator[Placed]:
        """Every region in order of its number."""
        number = 0
        for index, file in enumerate(self.files):
            offset = 0
            for region in file.regions:
                yield Placed(number, index, offset, region)
                number += 1
                offset += region.size

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """(file, offset, size) of every block, in the order of the digest table. Empty files have none."""
        for index, file in enumerate(self.files):
            size = file.size
            for offset in range(0, size, BLOCK_BYTES):
                yield index, offset, min(BLOCK_BYTES, size - offset)


def decode_layout(data: bytes) -> Layout:
    """The layout in `data`, checked. Raises LayoutError for one that no node may write to its disk."""
    try:
        layout = unpack_as(data, Layout, limit=MAX_LAYOUT_BYTES)
    except MessageError as error:
        raise LayoutError(f"layout does not decode: {error}") from None
    check_layout(layout)
    return layout


def check_layout(layout: Layout) -> None:
    """Raise LayoutError unless every path is safe and unambiguous and every region a whole number of elements."""
    if len(layout.files) > MAX_FILES:
        raise LayoutError(f"layout has {len(layout.files)} files, over the limit of {MAX_FILES}")
    if sum(len(file.regions) for file in layout.files) > MAX_REGIONS:
        raise LayoutError(f"layout has more than {MAX_REGIONS} regions")
    paths = [file.path for file in layout.files]
    if paths != sorted(set(paths)):
        raise LayoutError("files of a layout must be sorted by path, each once")
    files = set(paths)
    for path in paths:
        check_path(path)
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in files:
                raise LayoutError(f"path {'/'.join(parts[:depth])!r} is both a file and a folder")
    for file in layout.files:
        for region in file.regions:
            if region.size % width_bytes(region.kind):
                raise LayoutError(
                    f"region {region.name!r} of {file.path!r} has {region.size} bytes, not a whole number of "
                    f"{region.kind.name} elements"
                )
        if file.size >= 2**63:
            raise LayoutError(f"file {file.path!r} is too large")


def check_path(path: str) -> None:
    """Raise LayoutError unless `path` stays inside its directory on every file system we write to."""
    if len(path.encode("utf-8", "surrogatepass")) > _MAX_PATH_BYTES:
        raise LayoutError(f"path of over {_MAX_PATH_BYTES} bytes: {path[:60]!r}…")
    parts = path.split("/")
    if len(parts) > _MAX_DEPTH:
        raise LayoutError(f"path of over {_MAX_DEPTH} parts: {path[:60]!r}…")
    for part in parts:
        if part in ("", ".", "..") or part.startswith(".patchswarm"):
            raise LayoutError(f"path {path!r} has a part that is not allowed: {part!r}")
        try:
            encoded = part.encode("utf-8")
        except UnicodeEncodeError:
            raise LayoutError(f"path {path!r} is not valid Unicode") from None
        if len(encoded) > _MAX_NAME_BYTES:
            raise LayoutError(f"path {path[:60]!r}… has a part of over {_MAX_NAME_BYTES} bytes")
        if any(unicodedata.category(char) == "Cc" or char in '\\:*?"<>|' for char in part):
            raise LayoutError(f"path {path!r} has a character that is not allowed")
        if part.split(".")[0].upper() in _RESERVED:
            raise LayoutError(f"path {path!r} has a reserved name: {part!r}")


def match_regions(old: Layout, new: Layout) -> list[int]:
    """For each region of `new`, the number of the region of `old` it is compared with, or -1 for none.

    Both ends compute this from the two layouts alone. Tensors match by name, dtype and size, wherever they
    stand; other regions by path and place in the file's sequence of non-tensors, and size. A reshaped tensor
    keeps its neighbourhood of values, so its shape does not matter.
    """
    if old == new:
        return [placed.number for placed in new.placed()]
    table: dict[tuple[object, ...], int] = {}
    for key, placed in _keys(old):
        table.setdefault(key, placed.number)
    return [table.get(key, -1) for key, _ in _keys(new)]


def _keys(layout: Layout) -> Iterator[tuple[tuple[object, ...], Placed]]:
    file, nth = -1, 0
    for placed in layout.placed():
        if placed.file != file:
            file, nth = placed.file, 0
        region = placed.region
        if region.role is Role.TENSOR:
            yield (region.name, region.dtype, region.kind, region.size), placed
        else:
            yield (layout.files[file].path, nth, region.role, region.kind, region.size), placed
            nth += 1
