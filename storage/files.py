"""The one module through which storage reaches the operating system.

`Files` has the primitives, each one call that can fail on its own; tests subclass it to fail the n-th, to tear
writes and to forget what was not synced. The functions below are made of primitives only. (SQLite does its own
I/O; its commits pass through `Files.commit` so that they too are a point where a test may stop the world.)
"""

# These are the system calls themselves, one to a method.
# ruff: noqa: PTH102, PTH105, PTH106, PTH108, PTH116

from __future__ import annotations

import errno
import mmap
import os
import sqlite3
import stat as stat_bits
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from .errors import NoSpaceError

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS: Final = Path("/proc/self/mountinfo")
_NO_SPACE: Final = {errno.ENOSPC, errno.EDQUOT}
_IOV_BYTES: Final = 1 << 30  # one read or write call moves less than 2 GiB on Linux, whatever is asked


class Entry(NamedTuple):
    """One name in a folder, and what it is without following symlinks."""

    name: str
    is_folder: bool
    is_file: bool


class Files:
    """Primitives. Nothing here retries, loops or hides an error."""

    def open_read(self, path: Path) -> int:
        """A descriptor for reading."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_write(self, path: Path) -> int:
        """A descriptor for reading and writing; the file is created when missing, never truncated."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def pread_into(self, fd: int, out: memoryview, offset: int) -> int:
        """Read into `out` from `offset`; the number of bytes read, possibly fewer."""
        return os.preadv(fd, [out[:_IOV_BYTES]], offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`, in memory that nothing else has touched: no zeroing, no copy."""
        return os.pread(fd, size, offset)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write `data` at `offset`; the number of bytes written, possibly fewer."""
        return os.pwrite(fd, data[:_IOV_BYTES], offset)

    def allocate(self, fd: int, size: int) -> None:
        """Make sure that bytes 0 to `size` exist on the device, so that writing them cannot fail for space."""
        os.posix_fallocate(fd, 0, size)

    def truncate(self, fd: int, size: int) -> None:
        """Set a file's size."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Wait until a file's data and size are on the device."""
        os.fsync(fd)

    def map(self, fd: int, size: int, *, writable: bool) -> mmap.mmap:
        """A shared mapping of a file's first `size` bytes."""
        return mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)

    def rename(self, old: Path, new: Path) -> None:
        """Rename, replacing a file (or an empty folder) of the new name."""
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        os.unlink(path)

    def make_folder(self, path: Path) -> None:
        """Make one folder; no error when it is there."""
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if not path.is_dir():
                raise

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def entries(self, path: Path) -> list[Entry]:
        """What a folder holds, sorted by name."""
        with os.scandir(path) as found:
            return sorted(
                Entry(each.name, each.is_dir(follow_symlinks=False), each.is_file(follow_symlinks=False))
                for each in found
            )

    def stat(self, path: Path) -> os.stat_result:
        """Size, times and kind of what is at `path`, symlinks followed."""
        return os.stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        """Size, times and kind of an open file."""
        return os.fstat(fd)

    def free_bytes(self, path: Path) -> int:
        """Bytes that this user may still write to the file system of `path`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: Path) -> int:
        """Bytes that the file system of `path` can hold in all."""
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def memory_bytes(self) -> int:
        """Bytes of memory that this machine has."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def is_in_memory(self, path: Path) -> bool:
        """Whether `path` is on tmpfs or ramfs."""
        device = os.stat(path).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in _MOUNTS.read_text().splitlines():
            fields = line.split(" ")
            if fields[2] == wanted:
                return fields[fields.index("-") + 1] in ("tmpfs", "ramfs")
        return False

    def commit(self, database: sqlite3.Connection) -> None:
        """Commit the open transaction of a database."""
        database.commit()

    def boot_id(self) -> bytes:
        """16 bytes that are the same until the machine boots again."""
        return bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn "no space left on device" into NoSpaceError that names `path`; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise NoSpaceError(
                f"no space left to write {path}: free some, or move it to a larger file system"
            ) from None
        raise


def read_file(files: Files, path: Path, *, limit: int) -> bytes:
    """The whole of a small file. Raises OSError; ValueError when it is over `limit` bytes."""
    fd = files.open_read(path)
    try:
        size = files.fstat(fd).st_size
        if size > limit:
            raise ValueError(f"{path} has {size} bytes, over the limit of {limit}")
        data = files.pread(fd, size, 0)
        while len(data) < size and (more := files.pread(fd, size - len(data), len(data))):
            data += more
        return data
    finally:
        files.close(fd)


def read_at(files: Files, fd: int, out: memoryview, offset: int) -> int:
    """Fill `out` from `offset`; fewer bytes only where the file ends."""
    done = 0
    while done < len(out):
        got = files.pread_into(fd, out[done:], offset + done)
        if got == 0:
            break
        done += got
    return done


def write_at(files: Files, fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`."""
    done = 0
    while done < len(data):
        done += files.pwrite(fd, data[done:], offset + done)


def write_file(
    files: Files, path: Path, data: bytes | bytearray | memoryview, *, sync: bool, temporary: Path | None = None
) -> None:
    """Put `data` under `path` so that a reader finds the old contents, or all of the new ones.

    With `sync`, the contents are on the device before the name is, and the name is before this returns.
    A failure leaves no temporary file behind unless the process dies.
    """
    temporary = temporary or path.with_name(path.name + ".new")
    with named(path):
        try:
            fd = files.open_write(temporary)
            try:
                write_at(files, fd, memoryview(data), 0)
                files.truncate(fd, len(data))  # afterwards: what the file had is written over, not freed first
                if sync:
                    files.sync(fd)
            finally:
                files.close(fd)
            files.rename(temporary, path)
        except OSError:
            remove_file(files, temporary)
            raise
        if sync:
            sync_folder(files, path.parent)


def sync_folder(files: Files, path: Path) -> None:
    """Wait until a folder's names are on the device."""
    fd = files.open_read(path)
    try:
        files.sync(fd)
    finally:
        files.close(fd)


def make_folders(files: Files, path: Path) -> None:
    """Make a folder and whatever above it is missing."""
    missing = []
    while not exists(files, path):
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        files.make_folder(each)


def exists(files: Files, path: Path) -> bool:
    """Whether there is something at `path`."""
    try:
        files.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def remove_file(files: Files, path: Path) -> None:
    """Remove a file's name; no error when it is gone."""
    try:
        files.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return


def remove_tree(files: Files, path: Path) -> None:
    """Remove a folder of our own with all below it, following no symlinks; no error when it is gone."""
    try:
        entries = files.entries(path)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_folder:
            remove_tree(files, path / entry.name)
        else:
            remove_file(files, path / entry.name)
    files.remove_folder(path)


def is_regular(found: os.stat_result) -> bool:
    """Whether a stat result is a regular file's."""
    return stat_bits.S_ISREG(found.st_mode)
