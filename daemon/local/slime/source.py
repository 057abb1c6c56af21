"""Reads a delta folder: applied to the checkpoint it builds on, it becomes a checkpoint that can be published."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ....protocol.layout import Placed, Role
from ....storage.checkpoint import Source, scan
from ....storage.errors import StorageError
from ..client import Client
from ..errors import UnknownStreamError, UnknownVersionError
from ..model import LeaseInfo
from ..trainer import staging
from ..trainer.errors import StagingError
from ..trainer.writing import write_at
from .format import DeltaError, Index, Unpacker, folder_name, new_hasher, number_of, pieces, read_index

THREADS: Final = min(8, os.cpu_count() or 1)
"""Tensors at once. Unpacking, XOR and checksums let go of the interpreter's lock."""


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor's packed change: where it stands in the delta's files, and the checksum of the new tensor."""

    file: int
    offset: int
    size_bytes: int
    checksum: str


@contextlib.contextmanager
def applied(folder: Path, client: Client, stream: str, root: Path) -> Iterator[Path]:
    """The checkpoint that a delta folder makes of the newest version of `stream`, below the staging folder `root`.

    That version must be the one that the delta builds on: its label says so (`weight_vNNNNNN`). Raises DeltaError
    when it is another, or when the delta is damaged or a tensor's checksum is not what the trainer says.
    """
    index = read_index(folder)
    try:
        with client.lease(stream) as lease, staging.own_folder(root, stream) as staged:
            check_base(stream, lease.info, index)
            out = staged / "files"
            apply_delta(folder, lease.path, out)
            yield out
    except (UnknownStreamError, UnknownVersionError):
        raise DeltaError(
            f"stream {stream!r} has no version here: publish the checkpoint that the engines were started with first, "
            f"with --label {folder_name(index.base_version)}"
        ) from None


def check_base(stream: str, newest: LeaseInfo, index: Index) -> None:
    """Raise DeltaError, saying what to do, unless the newest version is the one that the delta builds on."""
    name, wanted, found = folder_name(index.version), folder_name(index.base_version), number_of(newest.label)
    if found == index.version:
        raise DeltaError(f"{name} is published already, as version {newest.version} of {stream!r}")
    if found != index.base_version:
        raise DeltaError(
            f"the delta {name} builds on {wanted}, but the newest version of {stream!r}, {newest.version}, is labelled "
            f"{newest.label!r}: publish what lies between, or a full checkpoint with --label {wanted}"
        )


def apply_delta(folder: Path, base: Path, out: Path) -> None:
    """Write into the new folder `out` what the delta in `folder` makes of the checkpoint in `base`.

    Files that do not change become links into `base`. Raises DeltaError, and then `out` is of no use.
    """
    index = read_index(folder)
    try:
        with scan(folder) as delta, scan(base) as old:
            changes = _changes(folder, index, delta)
            _Application(index, delta, old, changes, out).run(base)
            delta.check_unchanged()
            old.check_unchanged()
    except StorageError as error:
        raise DeltaError(str(error)) from None
    except OSError as error:
        raise StagingError(f"{out.parent}: cannot stage here: {error.strerror}") from None


class _Application:
    def __init__(self, index: Index, delta: Source, old: Source, changes: dict[str, Change], out: Path) -> None:
        self._index = index
        self._delta = delta
        self._old = old
        self._changes = changes
        self._out = out

    def run(self, base: Path) -> None:
        tensors = {placed.region.name: placed for placed in self._old.layout.placed() if _is_tensor(placed)}
        if unknown := sorted(self._changes.keys() - tensors.keys()):
            raise DeltaError(
                f"{self._delta.directory} changes {len(unknown)} tensors that its base has not, such as "
                f"{unknown[0]!r}: it belongs to another model"
            )
        rewritten = {tensors[name].file for name in self._changes}
        self._out.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            fds: dict[int, int] = {}
            for number, file in enumerate(self._old.layout.files):
                target = self._out / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                if number in rewritten:
                    fds[number] = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                    stack.callback(os.close, fds[number])
                else:
                    target.symlink_to(base / file.path)
            work = [placed for placed in self._old.layout.placed() if placed.file in rewritten]
            with ThreadPoolExecutor(THREADS) as pool:
                try:
                    for _ in pool.map(lambda placed: self._write(placed, fds[placed.file]), work):
                        pass
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise

    def _write(self, placed: Placed, fd: int) -> None:
        """Write one region's new bytes."""
        change = self._changes.get(placed.region.name) if _is_tensor(placed) else None
        size = placed.region.size
        if change is None:
            for offset, length in pieces(size):
                write_at(fd, self._old.read(placed.file, placed.offset + offset, length).data, placed.offset + offset)
            return
        packed = self._delta.read(change.file, change.offset, change.size_bytes)
        unpacker = Unpacker(placed.region.name, packed, size, self._index.encoding)
        hasher = new_hasher(self._index.checksum)
        for offset, length in pieces(size):
            piece = self._old.read(placed.file, placed.offset + offset, length)
            unpacker.apply(piece, offset)
            hasher.update(piece)
            write_at(fd, piece.data, placed.offset + offset)
        unpacker.finish()
        if hasher.hexdigest() != change.checksum:
            raise DeltaError(
                f"tensor {placed.region.name!r} has another checksum than {self._delta.directory} says: the base is "
                "not the one it builds on, or the delta is damaged"
            )


def _changes(folder: Path, index: Index, delta: Source) -> dict[str, Change]:
    """Every tensor's change, all of those that the index names and no other."""
    changes: dict[str, Change] = {}
    checksums: dict[int, dict[str, str]] = {}
    for placed in delta.layout.placed():
        path, region = delta.layout.files[placed.file].path, placed.region
        if region.role is Role.HEADER:
            checksums[placed.file] = _metadata(delta, placed)
        elif _is_tensor(placed):
            checksum = checksums[placed.file].get(region.name)
            if index.files.get(region.name) != path or region.dtype != "U8" or checksum is None:
                raise DeltaError(f"{folder / path}: tensor {region.name!r} is not what the index says, or not packed")
            changes[region.name] = Change(placed.file, placed.offset, region.size, checksum)
    if missing := sorted(index.files.keys() - changes.keys()):
        raise DeltaError(
            f"{folder}: the change of tensor {missing[0]!r} should be in {index.files[missing[0]]!r} and is not there: "
            "the delta is incomplete"
        )
    return changes


def _metadata(delta: Source, header: Placed) -> dict[str, str]:
    raw = delta.read(header.file, 8, header.region.size - 8) if header.region.size > 8 else np.empty(0, np.uint8)
    metadata = json.loads(raw.tobytes()).get("__metadata__") or {}
    return metadata if isinstance(metadata, dict) else {}


def _is_tensor(placed: Placed) -> bool:
    return placed.region.role is Role.TENSOR
