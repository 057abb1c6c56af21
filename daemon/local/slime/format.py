"""The format of slime's delta folders: what their index says, and how one tensor's change is encoded.

A version is a folder `weight_vNNNNNN` that looks like a Hugging Face checkpoint: safetensors files and an index. Its
index's metadata says that it is a delta, and against which version:

    version, base_version      "000007", "000006"
    delta_encoding             "xor" | "overwrite"
    compression_format         "zstd"
    checksum_format            "xxh3-128" | "blake3" | "adler32"

Each tensor that changed is a U8 tensor of one zstd frame under its own name; `__metadata__[name]` is the checksum of
the whole new tensor in hex. Unpacked, as bytes whatever the dtype:

    xor          new ^ old, as long as the tensor
    overwrite    count (u4), that many rising byte positions (u4 each), that many new bytes

A folder whose index has no `delta_encoding` is a full checkpoint. Version 0 is what the engine was started with.
Source: slime's docs/en/advanced/delta-weight-sync.md; miles writes the same.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import blake3
import msgspec
import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from ...errors import BadInputError

Encoding = Literal["xor", "overwrite"]
ChecksumName = Literal["xxh3-128", "blake3", "adler32"]

INDEX_NAME: Final = "model.safetensors.index.json"
POSITION_LIMIT: Final = 2**32
"""Positions of the overwrite encoding are 32 bits: a tensor larger than this cannot be encoded so."""

PIECE_BYTES: Final = 4 * 1024 * 1024
_NAME: Final = re.compile(r"weight_v([0-9]{1,18})\Z")
_NUMBER: Final = re.compile(r"[0-9]{1,18}\Z")

Bytes = NDArray[np.uint8]


class DeltaError(BadInputError):
    """A delta folder is damaged, incomplete, or builds on something else than what is there."""

    remedy = "have the trainer write it again, or publish a full checkpoint"


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What a delta's index says. `files` is the file of each tensor that changed."""

    version: int
    base_version: int
    encoding: Encoding
    checksum: ChecksumName
    files: dict[str, str]


def folder_name(number: int) -> str:
    """The folder, and the label, of a version."""
    return f"weight_v{number:06}"


def number_of(name: str) -> int | None:
    """The number in a folder's name or a label, None for any other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def read_index(folder: Path) -> Index:
    """The index of a delta folder. Raises DeltaError for a folder that is none, or of a kind that is not known."""
    path = folder / INDEX_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        metadata, files = document["metadata"], document["weight_map"]
        if metadata["compression_format"] != "zstd":
            raise DeltaError(f"{path}: compression {metadata['compression_format']!r} is not known, only zstd is")
        numbers = [metadata[key] for key in ("version", "base_version")]
        if not all(isinstance(number, str) and _NUMBER.match(number) for number in numbers):
            raise DeltaError(f"{path}: {numbers} are not the numbers of versions")
        return msgspec.convert(
            {
                "version": int(numbers[0]),
                "base_version": int(numbers[1]),
                "encoding": metadata["delta_encoding"],
                "checksum": metadata["checksum_format"],
                "files": files,
            },
            Index,
        )
    except FileNotFoundError:
        raise DeltaError(f"{folder} is no delta: it has no {INDEX_NAME}") from None
    except OSError as error:
        raise DeltaError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # msgspec's ValidationError is a ValueError
        raise DeltaError(f"{path} is not the index of a delta: {type(error).__name__} {error}") from None


def write_index(folder: Path, index: Index, more: dict[str, str]) -> None:
    """Write the index; `more` goes into its metadata, where readers look past it."""
    metadata = {
        "version": f"{index.version:06}",
        "base_version": f"{index.base_version:06}",
        "delta_encoding": index.encoding,
        "compression_format": "zstd",
        "checksum_format": index.checksum,
        **more,
    }
    document = {"metadata": metadata, "weight_map": index.files}
    (folder / INDEX_NAME).write_text(json.dumps(document), encoding="utf-8")


class Hasher(Protocol):
    """A checksum in the making."""

    def update(self, data: Bytes, /) -> object:
        """Take more bytes."""
        ...

    def hexdigest(self) -> str:
        """The checksum of all bytes so far."""
        ...


class _Adler32:
    def __init__(self) -> None:
        self._value = 1

    def update(self, data: Bytes, /) -> None:
        self._value = zlib.adler32(data.data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def new_hasher(name: ChecksumName) -> Hasher:
    """A fresh checksum of this name."""
    makers: dict[ChecksumName, Callable[[], Any]] = {
        "xxh3-128": xxhash.xxh3_128,
        "blake3": blake3.blake3,
        "adler32": _Adler32,
    }
    made: Hasher = makers[name]()
    return made


class Unpacker:
    """One tensor's change, unpacked piece by piece onto the old bytes. Raises DeltaError for what is malformed."""

    def __init__(self, name: str, packed: Bytes, size_bytes: int, encoding: Encoding) -> None:
        self._name = name
        self._size_bytes = size_bytes
        self._reader = zstandard.ZstdDecompressor().stream_reader(packed.tobytes())
        self._positions: NDArray[np.int64] | None = None
        self._values: Bytes | None = None
        if encoding == "overwrite":
            self._read_overwrite()

    def apply(self, piece: Bytes, offset: int) -> None:
        """Turn the old bytes of `piece`, which stands at `offset` of the tensor, into the new ones.

        Pieces come in order, without holes.
        """
        if self._positions is None or self._values is None:
            piece ^= self._read(len(piece))
            return
        first, last = np.searchsorted(self._positions, (offset, offset + len(piece)))
        piece[self._positions[first:last] - offset] = self._values[first:last]

    def finish(self) -> None:
        """All bytes are there: nothing may be left of the change."""
        if self._read_some(1):
            raise DeltaError(f"tensor {self._name!r}: its change is longer than the tensor")

    def _read_overwrite(self) -> None:
        if self._size_bytes > POSITION_LIMIT:
            raise DeltaError(
                f"tensor {self._name!r} has {self._size_bytes} bytes: positions of the overwrite encoding wrap at "
                "4 GiB; have the trainer use xor"
            )
        count = int(self._read(4).view("<u4")[0])
        if count > self._size_bytes:
            raise DeltaError(f"tensor {self._name!r}: {count} changed bytes of {self._size_bytes}")
        self._positions = self._read(4 * count).view("<u4").astype(np.int64)
        self._values = self._read(count)
        if count and (int(self._positions[-1]) >= self._size_bytes or np.any(np.diff(self._positions) <= 0)):
            raise DeltaError(f"tensor {self._name!r}: positions do not rise, or lie past its end")

    def _read(self, size: int) -> Bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._read_some(min(size - len(parts), PIECE_BYTES))
            if not part:
                raise DeltaError(f"tensor {self._name!r}: its change ends {size - len(parts)} bytes early")
            parts += part
        return np.frombuffer(parts, np.uint8)

    def _read_some(self, size: int) -> bytes:
        try:
            return self._reader.read(size)
        except zstandard.ZstdError as error:
            raise DeltaError(f"tensor {self._name!r}: its change does not unpack ({error})") from None


class Packer:
    """The change of one tensor of `size_bytes`, packed piece by piece. `changed` counts bytes that differ so far."""

    def __init__(self, encoding: Encoding, size_bytes: int) -> None:
        self.changed = 0
        self._encoding = encoding
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._stream = self._compressor.compressobj(size=size_bytes)  # the frame says its size: some readers ask for it
        self._packed: list[bytes] = []
        self._positions: list[NDArray[np.uint32]] = []
        self._values: list[Bytes] = []

    def add(self, old: Bytes, new: Bytes, offset: int) -> None:
        """The bytes at `offset` before and after. Pieces come in order, without holes."""
        difference = old ^ new
        if self._encoding == "xor":
            self.changed += int(np.count_nonzero(difference))
            self._packed.append(self._stream.compress(difference.data))
            return
        places = np.flatnonzero(difference)
        self.changed += places.size
        self._positions.append((places + offset).astype("<u4"))
        self._values.append(new[places])

    def finish(self) -> bytes:
        """The zstd frame."""
        if self._encoding == "xor":
            return b"".join((*self._packed, self._stream.flush()))
        count = np.array([self.changed], "<u4").tobytes()
        parts = (count, *(each.tobytes() for each in self._positions), *(each.tobytes() for each in self._values))
        return self._compressor.compress(b"".join(parts))


def pieces(size: int) -> Iterator[tuple[int, int]]:
    """(offset, size) of the pieces of a tensor of `size` bytes."""
    for offset in range(0, size, PIECE_BYTES):
        yield offset, min(PIECE_BYTES, size - offset)
