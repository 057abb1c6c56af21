"""Space: set aside before a download or a rebuild starts, so that two of them never count on the same bytes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from .errors import NoSpaceError
from .files import Files


class Reservation:
    """Bytes set aside on one file system, until closed. `spend` gives back what has been written. Thread-safe."""

    def __init__(self, space: Space, device: int, size_bytes: int) -> None:
        self._space = space
        self._device = device
        self._left_bytes = size_bytes
        self._lock = threading.Lock()

    def spend(self, size_bytes: int) -> None:
        """So many of the reserved bytes are on the file system now; more than reserved is fine."""
        with self._lock:
            spent = min(size_bytes, self._left_bytes)
            self._left_bytes -= spent
        self._space.give_back(self._device, spent)

    def close(self) -> None:
        """Give back the rest. No effect the second time."""
        self.spend(sys.maxsize)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Space:
    """What is set aside, by file system. Thread-safe. `margin_bytes` are never given out: the catalog must go on."""

    def __init__(self, files: Files | None = None, margin_bytes: int = 16 * 1024 * 1024) -> None:
        self._files = files or Files()
        self._margin_bytes = margin_bytes
        self._lock = threading.Lock()
        self._reserved: dict[int, int] = {}

    def reserve(self, folder: Path, size_bytes: int, what: str) -> Reservation:
        """Set aside `size_bytes` on the file system of `folder` for `what`. Raises NoSpaceError."""
        device = self._files.stat(folder).st_dev
        with self._lock:
            free = self._free_bytes(folder, device)
            if size_bytes > free:
                raise NoSpaceError(
                    f"{folder} has {max(free, 0)} bytes free and {what} needs {size_bytes}: free some, or give it more"
                )
            self._reserved[device] = self._reserved.get(device, 0) + size_bytes
        return Reservation(self, device, size_bytes)

    def free_bytes(self, folder: Path) -> int:
        """Bytes that could be reserved now on the file system of `folder`."""
        device = self._files.stat(folder).st_dev
        with self._lock:
            return max(self._free_bytes(folder, device), 0)

    def give_back(self, device: int, size_bytes: int) -> None:
        """What `Reservation` says."""
        with self._lock:
            self._reserved[device] -= size_bytes

    def _free_bytes(self, folder: Path, device: int) -> int:
        return self._files.free_bytes(folder) - self._reserved.get(device, 0) - self._margin_bytes


class SetAside:
    """What one user has set aside in the file system of `folder`, which changes with what it needs. Not thread-safe."""

    def __init__(self, space: Space, folder: Path, what: str) -> None:
        self._space = space
        self._folder = folder
        self._what = what
        self._reservation: Reservation | None = None

    def keep(self, size_bytes: int) -> None:
        """Set aside so much, in the place of what was before. Raises NoSpaceError, and nothing is set aside then."""
        self.give_back()
        if size_bytes:
            self._reservation = self._space.reserve(self._folder, size_bytes, self._what)

    def give_back(self) -> None:
        """Set nothing aside any more."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.close()
