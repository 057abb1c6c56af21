"""Lives: what becomes of each version on this node, moment by moment, under an id that is the same on every node.

The id is the attempt's, which openings, manifests and pages carry. Moments are logged, counted and handed to whoever
listens.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

import structlog

from .local.model import VersionLife

_log: Final = structlog.get_logger(__name__)

KEPT: Final = 64
"""Versions per stream whose lives are remembered."""

_BEHIND: Final = 256
"""Moments that a slow listener may be behind; then it misses the oldest."""


class Moment(StrEnum):
    """What happens to a version, in the order in which it usually does."""

    ANNOUNCED = "announced"
    FIRST_BYTE = "first_byte"
    COMPLETE = "complete"
    REBUILT = "rebuilt"
    COMMITTED = "committed"
    VERIFIED = "verified"


Observer = Callable[[str, Moment, float], None]
"""Hears of each moment in a stream, with the seconds since the one before it (0 for a life's first)."""


class Lives:
    """The lives of all versions on this node. Its methods are called on the event loop."""

    def __init__(self, observe: Observer, clock: Callable[[], float] = time.time) -> None:
        self._observe = observe
        self._clock = clock
        self._lives: dict[str, OrderedDict[str, VersionLife]] = {}
        self._listeners: dict[asyncio.Queue[VersionLife], str] = {}

    def note(self, stream: str, epoch: int, version: int, trace: str, moment: Moment) -> None:
        """Something happens to a version. Only the first time counts."""
        lives = self._lives.setdefault(stream, OrderedDict())
        before = lives[trace].moments if trace in lives else {}
        if moment in before:
            return
        now_s = self._clock()
        since_s = max(now_s - max(before.values()), 0.0) if before else 0.0
        life = lives[trace] = VersionLife(
            stream=stream, epoch=epoch, version=version, trace=trace, moments={**before, moment.value: now_s}
        )
        if len(lives) > KEPT:
            lives.popitem(last=False)
        _log.info("version", stream=stream, version=version, trace=trace, moment=moment, after_s=round(since_s, 4))
        self._observe(stream, moment, since_s)
        for queue, wanted in self._listeners.items():
            if wanted == stream:
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(life)

    def of(self, stream: str) -> list[VersionLife]:
        """Lives of a stream's versions, newest first."""
        return list(reversed(self._lives.get(stream, {}).values()))

    @contextmanager
    def listening(self, stream: str) -> Iterator[asyncio.Queue[VersionLife]]:
        """A queue that gets a life each time something happens to it."""
        queue: asyncio.Queue[VersionLife] = asyncio.Queue(_BEHIND)
        self._listeners[queue] = stream
        try:
            yield queue
        finally:
            del self._listeners[queue]
