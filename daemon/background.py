"""Background work: threads that keep to a share of the time, and that end when their task is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..storage.errors import StorageError

T = TypeVar("T")


class Pace:
    """Keeps work within a share of the time: it rests after each piece. False once it is stopped.

    `done` hears of each piece's bytes, in the thread that works.
    """

    def __init__(self, share: float, done: Callable[[int], object] | None = None) -> None:
        self._rest = 1.0 / max(share, 0.001) - 1.0
        self._done = done
        self._stop = threading.Event()
        self._began_s = time.monotonic()

    def __call__(self, size_bytes: int) -> bool:
        """A piece of so many bytes is done. Waits; whether to go on."""
        if self._done is not None:
            self._done(size_bytes)
        # Time is what is shared: of the disk, and of the cores that hash.
        if self._stop.wait((time.monotonic() - self._began_s) * self._rest):
            return False
        self._began_s = time.monotonic()
        return True

    def stop(self) -> None:
        """End the work after its current piece."""
        self._stop.set()


async def in_thread(work: Callable[[Pace], T], share: float, done: Callable[[int], object] | None = None) -> T:
    """Run `work(pace)` in a thread. A cancellation stops it and waits for its end."""
    pace = Pace(share, done)
    running = asyncio.ensure_future(asyncio.to_thread(work, pace))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        pace.stop()
        with contextlib.suppress(StorageError, OSError):  # the cancellation is what counts now
            await running
        raise
