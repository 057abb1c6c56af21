"""An operating system that stops, fails or loses power at a chosen call: `Files` for the crash-point tests.

`Stopped` is raised by the n-th call and by every later one, as if the process had been killed there; a write may
be cut in half. What the kernel holds survives that. `lose_power` then also takes back what was never synced: any
subset of the unsynced pages of a file, and any number of the last unsynced changes of names.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patchswarm.storage.files import Files

PRIMITIVES = sorted(name for name in vars(Files) if not name.startswith("_") and name != "boot_id")
_PAGE = 4096
_NEED_SPACE = {"allocate", "make_folder", "commit"}


class Stopped(BaseException):
    """The process was killed here. Not an Exception: no handler of the program may live on."""


class FaultyFiles(Files):
    """Counts calls; at number `at` (from 0) does what `how` says.

    `stop`: the process ends before the call. `tear`: it ends in the middle of it, a write half done.
    `ENOSPC`, `EIO`: the call fails once with that error. `full`: from there on whatever needs space fails, until
    `how` is set to something else.
    """

    def __init__(self, at: int = -1, how: str = "stop") -> None:
        self.at = at
        self.how = how
        self.calls: list[str] = []
        self.stopped = False
        self.fired = False
        self._open: dict[int, Path] = {}
        self._counting = threading.Lock()

    def step(
        self, name: str, work: Callable[[], Any], tear: Callable[[], Any] | None = None, *, needs_space: bool = False
    ) -> Any:
        """One call: count it, and fail it if it is the one."""
        if self.stopped:
            raise Stopped(name)
        with self._counting:
            number = len(self.calls)
            self.calls.append(name)
        if self.how == "full":
            return self._when_full(number, work, needs_space=needs_space or name in _NEED_SPACE)
        if number != self.at:
            return work()
        self.fired = True
        if self.how in ("stop", "tear"):
            self.stopped = True
            if self.how == "tear" and tear is not None:
                tear()
            raise Stopped(f"{name}, call {number}")
        if name == "close":
            work()
        raise OSError(getattr(errno, self.how), os.strerror(getattr(errno, self.how)))

    def _when_full(self, number: int, work: Callable[[], Any], *, needs_space: bool) -> Any:
        self.fired = self.fired or number >= self.at
        if number >= self.at and needs_space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return work()

    def end(self) -> None:
        """Close what the killed process had open."""
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def opened(self, fd: int, path: Path) -> int:
        self._open[fd] = path
        return fd

    def path_of(self, fd: int) -> Path:
        return self._open[fd]


def _wrapped(name: str) -> Callable[..., Any]:
    plain = getattr(Files, name)

    def call(self: FaultyFiles, *args: Any, **options: Any) -> Any:
        return self.step(name, lambda: plain(self, *args, **options))

    return call


for _name in PRIMITIVES:
    setattr(FaultyFiles, _name, _wrapped(_name))


def _open_read(self: FaultyFiles, path: Path) -> int:
    return self.step("open_read", lambda: self.opened(Files.open_read(self, path), path))


def _open_write(self: FaultyFiles, path: Path) -> int:
    new = not path.exists()
    return self.step("open_write", lambda: self.opened(Files.open_write(self, path), path), needs_space=new)


def _close(self: FaultyFiles, fd: int) -> None:
    def work() -> None:
        del self._open[fd]  # before the number is free for another thread
        Files.close(self, fd)

    self.step("close", work)


def _pwrite(self: FaultyFiles, fd: int, data: memoryview, offset: int) -> int:
    return self.step(
        "pwrite",
        lambda: Files.pwrite(self, fd, data, offset),
        lambda: Files.pwrite(self, fd, data[: len(data) // 2], offset),
        needs_space=offset + len(data) > os.fstat(fd).st_size,
    )


FaultyFiles.open_read = _open_read  # type: ignore[method-assign]
FaultyFiles.open_write = _open_write  # type: ignore[method-assign]
FaultyFiles.close = _close  # type: ignore[method-assign]
FaultyFiles.pwrite = _pwrite  # type: ignore[method-assign]


class PowerLossFiles(FaultyFiles):
    """Remembers what was not synced, and takes a random part of it back in `lose_power`."""

    def __init__(self, stash: Path, at: int = -1) -> None:
        super().__init__(at, "stop")
        self._stash = stash
        self._stash.mkdir(parents=True, exist_ok=True)
        self._kept: dict[int, Path] = {}  # inode to a second name, so that contents outlive an unlink
        self._synced: dict[int, bytes] = {}  # inode to contents as last synced
        self._names: list[Callable[[], None]] = []  # how to undo each unsynced change of names, oldest first

    def _keep(self, path: Path, *, new: bool) -> int:
        inode = path.stat().st_ino
        if inode not in self._kept:
            second = self._stash / str(inode)
            os.link(path, second)
            self._kept[inode] = second
            self._synced[inode] = b"" if new else path.read_bytes()
        return inode

    def open_write(self, path: Path) -> int:
        new = not path.exists()
        fd = FaultyFiles.open_write(self, path)
        self._keep(path, new=new)
        if new:
            self._names.append(lambda: path.unlink(missing_ok=True))
        return fd

    def sync(self, fd: int) -> None:
        FaultyFiles.sync(self, fd)
        path = self.path_of(fd)
        if path.is_dir():
            self._names.clear()  # journals of names are ordered: what came before is durable as well
        else:
            inode = os.fstat(fd).st_ino
            self._synced[inode] = self._kept[inode].read_bytes()

    def rename(self, old: Path, new: Path) -> None:
        replaced = self._keep(new, new=False) if new.is_file() else None
        if old.is_file():
            self._keep(old, new=False)
        FaultyFiles.rename(self, old, new)
        self._open = {fd: _moved(path, old, new) for fd, path in self._open.items()}

        def undo() -> None:
            new.rename(old)
            if replaced is not None:
                os.link(self._kept[replaced], new)

        self._names.append(undo)

    def unlink(self, path: Path) -> None:
        inode = self._keep(path, new=False) if path.exists() else None
        FaultyFiles.unlink(self, path)
        if inode is not None:
            self._names.append(lambda: os.link(self._kept[inode], path))

    def make_folder(self, path: Path) -> None:
        new = not path.exists()
        FaultyFiles.make_folder(self, path)
        if new:
            self._names.append(path.rmdir)

    def remove_folder(self, path: Path) -> None:
        FaultyFiles.remove_folder(self, path)
        self._names.append(path.mkdir)

    def lose_power(self, rng: random.Random) -> None:
        """Take back a random part of what was not synced."""
        self.end()
        for inode, synced in self._synced.items():
            _tear(self._kept[inode], synced, rng)
        for _ in range(rng.randint(0, len(self._names))):
            self._names.pop()()
        for second in self._kept.values():
            second.unlink()


def _moved(path: Path, old: Path, new: Path) -> Path:
    return new / path.relative_to(old) if path.is_relative_to(old) else path


def _tear(path: Path, synced: bytes, rng: random.Random) -> None:
    now = path.read_bytes()
    if now == synced:
        return
    mode = rng.choice(["all", "none", "pages"])
    if mode == "all":
        return
    result = bytearray(now if mode == "pages" else synced)
    if mode == "pages":
        old = synced.ljust(len(now), b"\0")
        for at in range(0, len(now), _PAGE):
            if rng.random() < 0.5:
                result[at : at + _PAGE] = old[at : at + _PAGE]
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(result[: max(len(now), len(synced))])
