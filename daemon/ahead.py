"""Ahead: the next version applied while its chunks still come in, so that little is left to do when the last one has.

Only a complete route commits what was begun. What comes to nothing is undone: the slot it was written to gets its
bytes back from its twin. Blocking: for threads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import structlog

from ..protocol.ids import short
from ..protocol.manifest import Opening, Transition
from ..protocol.seal import ChunkSealer
from ..storage.building import Building
from ..storage.chunks import ChunkStore
from ..storage.errors import SlotsBusyError
from ..storage.slots import Slot, StreamSlots
from .transition import read_layout

_log: Final = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Begun:
    attempt: bytes
    building: Building
    firsts: list[int]
    """Where each part's chunks begin, rising."""
    sealers: list[ChunkSealer]
    applied: int = 0
    """Bitmap of ordinals."""


class Ahead:
    """At most one version of one stream, on its way. One call at a time."""

    def __init__(self, slots: StreamSlots, store: ChunkStore, threads: int) -> None:
        self._slots = slots
        self._store = store
        self._threads = threads
        self._begun: _Begun | None = None
        self._refused: bytes = b""

    @property
    def attempt(self) -> bytes:
        """The attempt that is being applied, empty when none is."""
        return self._begun.attempt if self._begun is not None else b""

    def lacks(self, attempt: bytes, here: int) -> int:
        """Of the chunks that are here, a bitmap, those still to be applied; none for an attempt that did not fit."""
        if attempt == self._refused:
            return 0
        return here & ~self._begun.applied if self._begun is not None and self._begun.attempt == attempt else here

    def go_on(self, of: Opening | Transition, source: Slot | None, new: Iterable[tuple[int, bytes]]) -> None:
        """Apply chunks, ordinal and name, of a version that starts from `source`; begins it if need be.

        Raises SlotsBusyError where it cannot be begun now, what else `StreamSlots.begin` and `Building.apply` raise,
        SealError and ChunkMissingError. What was begun is given up then, and not begun again: it is judged when it is
        complete.
        """
        if self.attempt != of.attempt:
            self.give_up()
        try:
            self._begun = self._begun or self._begin(of, source)
            self._apply(self._begun, list(new))
        except SlotsBusyError:
            raise
        except BaseException:
            self._refused = of.attempt
            self.give_up()
            raise

    def take(self, leg: Transition) -> tuple[Building, int] | None:
        """Hand over what was begun of `leg`, and the bitmap of what is applied of it; gives up anything else."""
        begun = self._begun
        if begun is None or begun.attempt != leg.attempt:
            self.give_up()
            return None
        self._begun = None
        return begun.building, begun.applied

    def give_up(self) -> None:
        """Undo what was begun, if anything."""
        begun, self._begun = self._begun, None
        if begun is not None:
            _log.info("what was applied ahead is undone", attempt=short(begun.attempt))
            begun.building.abort()

    def _begin(self, of: Opening | Transition, source: Slot | None) -> _Begun:
        building = self._slots.begin(read_layout(self._store, of), source)
        firsts = [part.first for part in of.parts]
        return _Begun(of.attempt, building, firsts, [ChunkSealer(of, part) for part in range(len(of.parts))])

    def _apply(self, begun: _Begun, new: list[tuple[int, bytes]]) -> None:
        def one(place: tuple[int, bytes]) -> None:
            ordinal, name = place
            part = bisect_right(begun.firsts, ordinal) - 1
            begun.building.apply(begun.sealers[part].open(ordinal, self._store.get(name)))

        if len(new) == 1:  # as they come over a slow link: threads would take longer to start than to work
            one(new[0])
        else:
            with ThreadPoolExecutor(min(self._threads, len(new)) or 1, thread_name_prefix="ahead") as pool:
                for _ in pool.map(one, new):
                    pass
        for ordinal, _ in new:
            begun.applied |= 1 << ordinal
