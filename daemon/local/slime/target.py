"""Writes versions as slime's folders: the change from one checkpoint to the next, or the whole where that must be.

A delta can only say that tensors changed. Where a side file, a header or the set of tensors did, and for a first
version, the whole checkpoint is written instead, which the format knows as well: hosts copy it and go on from there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from ....protocol.layout import Layout, Placed, Role
from ....storage.checkpoint import Source, scan
from ....storage.errors import StorageError
from ..trainer.arrays import Spec
from ..trainer.errors import StagingError
from ..trainer.selecting import files_below
from ..trainer.writing import header_of
from .format import (
    POSITION_LIMIT,
    ChecksumName,
    DeltaError,
    Encoding,
    Index,
    Packer,
    new_hasher,
    pieces,
    write_index,
)
from .source import THREADS

SHARD_BYTES: Final = 2 * 1000**3
"""Most bytes of packed changes in one file: a host reads each into memory as a whole."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor's change, packed."""

    name: str
    frame: bytes
    checksum: str


def write_delta(
    old: Path,
    new: Path,
    out: Path,
    *,
    version: int,
    base_version: int,
    encoding: Encoding,
    checksum: ChecksumName,
    more: dict[str, str] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> bool:
    """Write into the new folder `out` what turns the checkpoint in `old` into the one in `new`.

    False, and nothing written, when a delta cannot say it: then a full folder must be written. `more` goes into the
    index's metadata. Where a tensor is too large for the overwrite encoding's positions the version is written as XOR.
    """
    try:
        with scan(old) as before, scan(new) as after:
            if not same_but_for_tensors(before, after):
                return False
            largest = max((placed.region.size for placed in after.layout.placed()), default=0)
            index = Index(
                version=version,
                base_version=base_version,
                encoding="xor" if largest > POSITION_LIMIT else encoding,
                checksum=checksum,
                files={},
            )
            out.mkdir(parents=True)
            files = _write_shards(_changed(before, after, index), out, shard_bytes)
            write_index(out, msgspec.structs.replace(index, files=files), more or {})
    except StorageError as error:
        raise DeltaError(str(error)) from None
    except OSError as error:
        raise StagingError(f"{out.parent}: cannot write here: {error.strerror}") from None
    return True


def write_full(new: Path, out: Path) -> None:
    """Copy the checkpoint in `new` into the new folder `out`."""
    try:
        for path in files_below(new):
            target = out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(new / path, target)
    except OSError as error:
        raise StagingError(f"{out.parent}: cannot write here: {error.strerror}") from None


def same_but_for_tensors(before: Source, after: Source) -> bool:
    """Whether two checkpoints differ in the bytes of tensors at most."""
    if before.layout != after.layout or _has_twice(after.layout):
        return False
    for placed in after.layout.placed():
        if placed.region.role is not Role.TENSOR:
            for offset, size in pieces(placed.region.size):
                at = placed.offset + offset
                if not np.array_equal(before.read(placed.file, at, size), after.read(placed.file, at, size)):
                    return False
    return True


def _has_twice(layout: Layout) -> bool:
    """Whether a tensor is in two files: a delta names tensors by name alone."""
    names = [placed.region.name for placed in layout.placed() if placed.region.role is Role.TENSOR]
    return len(set(names)) != len(names)


def _changed(before: Source, after: Source, index: Index) -> Iterator[Packed]:
    """The packed changes of all tensors that have one, in order; a few tensors are in the works at once."""
    waiting: deque[Future[Packed | None]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for placed in after.layout.placed():
                if placed.region.role is not Role.TENSOR:
                    continue
                waiting.append(pool.submit(_pack, before, after, placed, index))
                if len(waiting) > 2 * THREADS and (packed := waiting.popleft().result()) is not None:
                    yield packed
            while waiting:
                if (packed := waiting.popleft().result()) is not None:
                    yield packed
        finally:
            for future in waiting:
                future.cancel()


def _pack(before: Source, after: Source, placed: Placed, index: Index) -> Packed | None:
    packer, hasher = Packer(index.encoding, placed.region.size), new_hasher(index.checksum)
    for offset, size in pieces(placed.region.size):
        at = placed.offset + offset
        new = after.read(placed.file, at, size)
        packer.add(before.read(placed.file, at, size), new, offset)
        hasher.update(new)
    return Packed(placed.region.name, packer.finish(), hasher.hexdigest()) if packer.changed else None


def _write_shards(changes: Iterator[Packed], out: Path, shard_bytes: int) -> dict[str, str]:
    """Write safetensors files of packed changes; the file of each tensor."""
    shards: list[_Shard] = []
    with contextlib.ExitStack() as stack:
        for packed in changes:
            if not shards or (shards[-1].size_bytes and shards[-1].size_bytes + len(packed.frame) > shard_bytes):
                shards.append(stack.enter_context(contextlib.closing(_Shard(out / f".data-{len(shards):05}"))))
            shards[-1].add(packed)
        files: dict[str, str] = {}
        for number, shard in enumerate(shards):
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
            shard.finish(out / name)
            files |= dict.fromkeys(shard.specs, name)
    return files


class _Shard:
    """One file of changes: its data first, under another name, because the header is known last."""

    def __init__(self, path: Path) -> None:
        self.specs: dict[str, Spec] = {}
        self.size_bytes = 0
        self._checksums: dict[str, str] = {}
        self._path = path
        self._data = path.open("w+b")

    def add(self, packed: Packed) -> None:
        self._data.write(packed.frame)
        self.specs[packed.name] = Spec("U8", (len(packed.frame),), len(packed.frame), 1)
        self._checksums[packed.name] = packed.checksum
        self.size_bytes += len(packed.frame)

    def finish(self, path: Path) -> None:
        header = header_of(self.specs, self._checksums)
        header = header.ljust(-(-len(header) // 8) * 8)
        self._data.seek(0)
        with path.open("xb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            shutil.copyfileobj(self._data, file, 1024 * 1024)
            file.flush()
            os.fsync(file.fileno())
        self.close()
        self._path.unlink()

    def close(self) -> None:
        self._data.close()
