"""Writes safetensors files as tensors come, with a header of known or reserved size; nothing is held in memory.

The header stands first in the file, so it is written last, into room that was left for it and padded with blanks,
which the format allows (https://huggingface.co/docs/safetensors). Offsets may have no holes, so tensors stay aligned
only when wider elements come first: a planned file is sorted so, and tensors that come in an order of their own are
dealt to one file per element width.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .arrays import Cast, Reader, Spec, spec_of
from .errors import BadTensorError, StagingError

SHARD_BYTES: Final = 5 * 1000**3
"""Most bytes of tensors in one file, as Hugging Face cuts checkpoints by default."""

RESERVED_HEADER_BYTES: Final = 1024 * 1024
"""Room for the header where the tensors are not known beforehand: some 8000 of them; then another file is begun."""


@dataclass(frozen=True, slots=True)
class Written:
    """One finished file and what is in it."""

    path: Path
    specs: dict[str, Spec]


class File:
    """One safetensors file in the making. `finish` completes it; `close` without it leaves a torn file."""

    def __init__(self, path: Path, header_bytes: int, metadata: Mapping[str, str]) -> None:
        self.path = path
        self.specs: dict[str, Spec] = {}
        self.size_bytes = 0
        self._metadata = dict(metadata)
        self._header_bytes = header_bytes
        self._used_bytes = len(header_of({}, metadata))
        with _telling(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def has_room(self, name: str, spec: Spec, shard_bytes: int) -> bool:
        """Whether one more tensor fits, into the header and within `shard_bytes`. An empty file takes any tensor."""
        if not self.specs:
            return True
        entry = _entry_bytes(name, spec)
        return self._used_bytes + entry <= self._header_bytes and self.size_bytes + spec.size_bytes <= shard_bytes

    def add(self, name: str, spec: Spec, pieces: Iterable[memoryview]) -> None:
        """Write one tensor's bytes. Raises BadTensorError when they are not as many as `spec` says."""
        at = 8 + self._header_bytes + self.size_bytes
        end = at + spec.size_bytes
        for piece in pieces:
            if at + piece.nbytes > end:
                raise BadTensorError(f"tensor {name!r} has more bytes than {spec} takes")
            with _telling(self.path):
                write_at(self._fd, piece, at)
            at += piece.nbytes
        if at != end:
            raise BadTensorError(f"tensor {name!r} has {end - at} bytes less than {spec} takes")
        self.specs[name] = spec
        self.size_bytes += spec.size_bytes
        self._used_bytes += _entry_bytes(name, spec)

    def finish(self) -> Written:
        """Write the header."""
        header = header_of(self.specs, self._metadata)
        if len(header) > self._header_bytes:  # one tensor whose name alone is longer than the room
            raise BadTensorError(f"{self.path.name}: a header of {len(header)} bytes does not fit; shorten its names")
        with _telling(self.path):
            room = self._header_bytes.to_bytes(8, "little") + header.ljust(self._header_bytes)
            write_at(self._fd, memoryview(room), 0)
        self.close()
        return Written(self.path, self.specs)

    def close(self) -> None:
        """Let go of the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Writer:
    """Writes tensors into files `PREFIX-00000.safetensors` and so on of one folder."""

    def __init__(self, folder: Path, prefix: str, *, shard_bytes: int, reader: Reader, cast: Cast) -> None:
        self._folder = folder
        self._prefix = prefix
        self._shard_bytes = shard_bytes
        self._reader = reader
        self._cast = cast
        self._count = 0

    def write(self, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> list[Written]:
        """Write tensors that are known beforehand: the widest first, headers without slack."""
        specs = {name: spec_of(name, tensor, self._cast) for name, tensor in tensors.items()}
        written = []
        for names in plan(specs, self._shard_bytes):
            file = self._new(_aligned(len(header_of({name: specs[name] for name in names}, metadata))), metadata)
            with contextlib.closing(file):
                for name in names:
                    file.add(name, specs[name], self._reader.pieces(name, tensors[name], self._cast))
                written.append(file.finish())
        return written

    def write_stream(self, tensors: Iterable[tuple[str, Any]], metadata: Mapping[str, str]) -> list[Written]:
        """Write tensors as an iterator gives them; each may be forgotten by its giver when the next is asked for."""
        seen: set[str] = set()
        written: list[Written] = []
        with contextlib.ExitStack() as stack:
            opened: dict[int, File] = {}
            for name, tensor in tensors:
                if name in seen:
                    raise BadTensorError(f"tensor {name!r} comes twice")
                seen.add(name)
                spec = spec_of(name, tensor, self._cast)
                file = opened.get(spec.width_bytes)
                if file is not None and not file.has_room(name, spec, self._shard_bytes):
                    written.append(file.finish())
                    file = None
                if file is None:
                    needed = _aligned(len(header_of({name: spec}, metadata)) + _OFFSETS_BYTES)
                    file = self._new(max(RESERVED_HEADER_BYTES, needed), metadata)
                    opened[spec.width_bytes] = file
                    stack.callback(file.close)
                file.add(name, spec, self._reader.pieces(name, tensor, self._cast))
            written.extend(file.finish() for file in opened.values())
        return sorted(written, key=lambda each: each.path)

    def _new(self, header_bytes: int, metadata: Mapping[str, str]) -> File:
        path = self._folder / f"{self._prefix}-{self._count:05}.safetensors"
        self._count += 1
        return File(path, header_bytes, metadata)


def plan(specs: Mapping[str, Spec], shard_bytes: int) -> list[list[str]]:
    """Names dealt to files of at most `shard_bytes` in the order given, in each file the widest elements first."""
    files: list[list[str]] = [[]]
    size = 0
    for name, spec in specs.items():
        if files[-1] and size + spec.size_bytes > shard_bytes:
            files.append([])
            size = 0
        files[-1].append(name)
        size += spec.size_bytes
    return [sorted(names, key=lambda name: -specs[name].width_bytes) for names in files]


def header_of(specs: Mapping[str, Spec], metadata: Mapping[str, str]) -> bytes:
    """The JSON header of a file that holds `specs` in this order."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, spec in specs.items():
        entries[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": (at, at + spec.size_bytes)}
        at += spec.size_bytes
    return json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data` (one dimension of bytes) at `offset`."""
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


_OFFSETS_BYTES: Final = 2 * 20
"""What the two offsets of an entry take at most."""


def _entry_bytes(name: str, spec: Spec) -> int:
    """At most what one tensor adds to a header."""
    return len(header_of({name: spec}, {})) + _OFFSETS_BYTES


def _aligned(size: int) -> int:
    """Rounded up so that data begins at a multiple of 8."""
    return -(-size // 8) * 8


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Say where it was that a file could not be written."""
    try:
        yield
    except OSError as error:
        raise StagingError(
            f"{path.parent}: cannot stage here: {error.strerror}; free room, or choose another staging folder"
        ) from None
