"""Traffic: chunks on their way between lanes and the store, verified as they come, within the node's limits."""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import Final

import structlog

from ...storage.chunks import ChunkStore
from ...storage.errors import ChunkCorruptError, StorageError
from ..config import Limits
from .lane import Lane
from .pacing import Pacer

_log: Final = structlog.get_logger(__name__)

_TIMER_SLACK_S: Final = 0.001
_THREADS: Final = min(4, os.cpu_count() or 1)
"""More than there are cores only hand the interpreter to and fro."""

_RECENT_SHARE: Final = 8
"""Part of the memory limit that may hold chunks for those who ask for what has just come."""


class Kept(Enum):
    """What became of a chunk that came."""

    STORED = auto()
    DAMAGED = auto()
    NO_ROOM = auto()


class Traffic:
    """Loads and keeps chunks in threads. While too much waits for the store, every lane in `lanes()` stops reading."""

    def __init__(self, store: ChunkStore, limits: Limits, memory_limit: int, lanes: Callable[[], list[Lane]]) -> None:
        self._store = store
        self._memory_limit = memory_limit
        self._lanes = lanes
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="chunks")
        self._upload = Pacer(limits.upload)
        self._download = Pacer(limits.download)
        self._recent: OrderedDict[bytes, bytearray] = OrderedDict()
        self._recent_bytes = 0
        self._pending_bytes = 0
        self._paused_until_s = 0.0
        self._looking_again = False
        self._closed = False
        self.is_holding_back = False
        """Whether lanes are kept from reading: nobody can send anything then."""

    def set_limits(self, limits: Limits) -> None:
        """Go on with other rates."""
        self._upload.set_rate(limits.upload)
        self._download.set_rate(limits.download)

    def close(self) -> None:
        """Let the threads end; nothing is loaded any more."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def load(self, name: bytes) -> bytes | bytearray | None:
        """Sealed bytes of a chunk once the upload limit lets it go; None when it is gone."""
        sealed: bytes | bytearray | None = self._recent.get(name)
        if sealed is None and self._closed:
            return None
        if sealed is None:
            try:
                sealed = await asyncio.get_running_loop().run_in_executor(self._threads, self._store.get, name)
            except (StorageError, OSError) as error:
                _log.warning("chunk cannot be served", reason=str(error))
                return None
        wait_s = self._upload.book(len(sealed), time.monotonic())
        if wait_s:
            await asyncio.sleep(wait_s)
        return sealed

    def came(self, size: int) -> None:
        """Count a chunk that has arrived and will be given to `keep`."""
        self._pending_bytes += size
        now_s = time.monotonic()
        wait_s = self._download.book(size, now_s)
        if wait_s:
            self._paused_until_s = now_s + wait_s
            self._read_on()  # too early: looks again when the time has come
        if wait_s or self._pending_bytes > self._memory_limit // 4:
            self.is_holding_back = True
            for lane in self._lanes():
                lane.pause_reading()

    async def allowed(self) -> None:
        """Wait until the download limit lets more come in."""
        await asyncio.sleep(max(self._paused_until_s - time.monotonic(), 0.0))

    async def keep(self, name: bytes, body: bytearray) -> Kept:
        """Verify a chunk and store it."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._store.put, name, body)
        except ChunkCorruptError:
            return Kept.DAMAGED
        except (StorageError, OSError) as error:
            _log.error("chunk not stored", reason=str(error))
            return Kept.NO_ROOM
        finally:
            self._pending_bytes -= len(body)
            self._read_on()
        self._remember(name, body)
        return Kept.STORED

    def _remember(self, name: bytes, body: bytearray) -> None:
        """Have the verified bytes at hand for a while: what has just come is what others ask for."""
        if name not in self._recent:
            self._recent[name] = body
            self._recent_bytes += len(body)
        while self._recent_bytes > self._memory_limit // _RECENT_SHARE:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1])

    def _read_on(self) -> None:
        """Let lanes read again, once the store has caught up and the download limit allows."""
        early_s = self._paused_until_s - time.monotonic()
        if early_s > 0:  # also when a timer fires a little before its time: look again, or nobody ever would
            if not self._looking_again:
                self._looking_again = True
                asyncio.get_running_loop().call_later(early_s + _TIMER_SLACK_S, self._look_again)
            return
        if self._pending_bytes <= self._memory_limit // 8:
            self.is_holding_back = False
            for lane in self._lanes():
                lane.resume_reading()

    def _look_again(self) -> None:
        self._looking_again = False
        self._read_on()
