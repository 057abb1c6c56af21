"""Staging folders: where a version's files are written before the daemon reads them, and how none is left behind.

    ROOT/.lock                      held while folders are made and removed
    ROOT/STREAM.one-RANDOM/         one process's version; `lock` in it is held as long as that process works on it
    ROOT/STREAM.ranks-ID/           a version that several ranks write, ID from its label and attempt
        rank-00002/                 a rank's files; `done.json`, written last, says what is in them
    …/files/                        what is published

A process that dies leaves its folder without a holder, and the next one of the stream removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..client import Client
from .errors import StagingError

ENVIRONMENT: Final = "PATCHSWARM_STAGING"
DEFAULT_NAME: Final = ".staging"
"""In a slot directory, where it can be no stream's."""
_LOCK: Final = "lock"


def root_of(client: Client, given: Path | None = None) -> Path:
    """The staging folder: the one that is given, $PATCHSWARM_STAGING, or one beside the slots of `client`'s daemon.

    Beside the slots lies what the daemon can read and what is large enough. Raises LocalError when it cannot be asked.
    """
    if given is not None:
        return given
    if named := os.environ.get(ENVIRONMENT):
        return Path(named)
    return Path(client.node().slot_dir) / DEFAULT_NAME


@contextlib.contextmanager
def own_folder(root: Path, stream: str) -> Iterator[Path]:
    """A fresh folder for one version of one process, removed at the end; those of dead processes are removed first."""
    with _telling(root), _locked(root):
        _remove_dead(root, stream)
        folder = root / f"{stream}.one-{secrets.token_hex(6)}"
        folder.mkdir()
        holder = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(holder)


def ranks_folder(root: Path, stream: str, label: str, attempt: str) -> Path:
    """The folder that all ranks of one version use: the same on each, whoever makes it."""
    name = hashlib.sha256(f"{label}\x00{attempt}".encode()).hexdigest()[:16]
    folder = root / f"{stream}.ranks-{name}"
    with _telling(root), _locked(root):
        folder.mkdir(exist_ok=True)
    return folder


def rank_folder(folder: Path, rank: int) -> Path:
    """An empty folder for a rank's files: what an earlier try of the rank left in it is removed."""
    mine = folder / f"rank-{rank:05}"
    with _telling(folder):
        shutil.rmtree(mine, ignore_errors=True)
        mine.mkdir()
    return mine


def remove_older_ranks(root: Path, stream: str, than: Path) -> None:
    """Remove what ranks left of versions that were begun before `than`: nobody will commit those any more."""
    with contextlib.suppress(OSError), _locked(root):
        began = than.stat().st_ctime_ns
        for folder in root.glob(f"{stream}.ranks-*"):
            if folder != than and _newest(folder) < began:
                shutil.rmtree(folder, ignore_errors=True)


def _newest(folder: Path) -> int:
    """When something was last made in a folder of ranks or in one of its ranks."""
    return max(path.stat().st_ctime_ns for path in (folder, *folder.glob("rank-*"), *folder.glob("rank-*/*")))


def _remove_dead(root: Path, stream: str) -> None:
    for folder in root.glob(f"{stream}.one-*"):
        try:
            holder = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # died between making the folder and its lock
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # its process lives
        finally:
            os.close(holder)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    handle = os.open(root / f".{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _telling(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StagingError(
            f"{error.filename or root}: cannot stage here: {error.strerror}; give another folder as staging, or set "
            f"{ENVIRONMENT}"
        ) from None
