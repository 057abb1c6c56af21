"""Copies a version's files out of the daemon into a directory of one's own: all of them, or nothing."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...protocol.errors import LayoutError
from ...protocol.layout import check_path
from ..errors import BadInputError, reason
from .connection import DaemonAddress, read_json, stream_path
from .errors import ConnectionLostError, LocalError
from .model import FileInfo, FileList, LeaseInfo, VersionInfo

_BUFFER_BYTES: Final = 1024 * 1024


def pull_files(
    address: DaemonAddress,
    lease: LeaseInfo,
    out: Path,
    *,
    timeout_s: float,
    progress: Callable[[int, int], None] | None,
) -> VersionInfo:
    """Write the leased version's files below `out`, which appears when all are there. `progress(done, total)` bytes.

    Raises BadInputError when `out` is not free or cannot be written; LocalError when the daemon fails.
    """
    out = out.resolve()  # a link to an empty directory is filled where it points
    check_free(out)
    making = out.parent / f".{out.name}.pulling-{secrets.token_hex(4)}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        making.mkdir()
        try:
            version = _fetch(address, lease, making, timeout_s, progress)
            making.rename(out)  # replaces an empty directory, and nothing else
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    except OSError as error:
        raise BadInputError(f"{error.filename or out}: cannot write here: {reason(error)}") from None
    return version


def check_free(out: Path) -> None:
    """Raise BadInputError unless `out` does not exist or is an empty directory."""
    try:
        if out.is_dir() and not any(out.iterdir()):
            return
    except OSError as error:
        raise BadInputError(f"{out}: cannot look here: {reason(error)}") from None
    if out.exists() or out.is_symlink():
        raise BadInputError(f"{out}: exists and is not an empty directory; choose another place")


def _fetch(
    address: DaemonAddress,
    lease: LeaseInfo,
    folder: Path,
    timeout_s: float,
    progress: Callable[[int, int], None] | None,
) -> VersionInfo:
    root = stream_path(lease.stream, "versions", lease.version, "files")
    with address.exchange("GET", root, timeout_s=timeout_s) as response:
        listing = read_json(response, FileList)
    if listing.version.manifest != lease.manifest:
        raise LocalError(
            f"version {lease.version} of {lease.stream!r} changed while it was pulled", remedy="pull again"
        )
    total = sum(file.size_bytes for file in listing.files)
    done = 0
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    for file in listing.files:
        target = folder / _checked(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        path = stream_path(lease.stream, "versions", lease.version, "files", file.path)
        left = file.size_bytes
        with target.open("xb", buffering=0) as output, address.exchange("GET", path, timeout_s=timeout_s) as response:
            while size := response.readinto(buffer):
                rest = buffer[:size]
                while rest:
                    rest = rest[output.write(rest) :]
                left -= size
                done += size
                if progress is not None:
                    progress(done, total)
        if left:
            raise ConnectionLostError(
                f"{file.path}: {file.size_bytes - left} of {file.size_bytes} bytes came", remedy="pull again"
            )
    return listing.version


def _checked(file: FileInfo) -> str:
    """The file's path, once more checked: whatever a daemon says, nothing is written outside the directory."""
    try:
        check_path(file.path)
    except LayoutError as error:
        raise LocalError(f"the daemon names a file that cannot be written: {error}") from None
    return file.path
