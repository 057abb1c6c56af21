"""Reader: learns from a mirror what is new, and takes from it the chunks that no peer offers.

Nothing there is trusted. Objects are verified as those of any peer, a list that is older than what is known changes
nothing, and chunks whose bytes are not what their name says are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

import structlog

from ...protocol.errors import ProtocolError
from ...protocol.ids import short
from ...protocol.manifest import MirrorRecord, Transition
from ...protocol.messages import ObjectKind
from ...protocol.mirror import MAX_LIST_BYTES, chunk_path, list_path, open_list
from ...protocol.mirrored import Order
from ...protocol.signed import object_digest
from ..fleet.fleet import Fleet
from ..fleet.traffic import Kept
from .bucket import Bucket, BucketError, NotThereError, TooLongError

_log: Final = structlog.get_logger(__name__)

TURN_S: Final = 0.5
CALM: Final = 12
"""With peers, and nothing that they lack, a mirror is looked at so many times more seldom."""

MAX_WAIT_S: Final = 60.0
"""Longest time between two tries at a mirror that fails."""

FETCHES: Final = 8
"""Chunks asked for at a time."""


class Reader:
    """Reads the mirror for the streams that `follows` names. `report(stream, what)` tells the operator."""

    def __init__(
        self,
        bucket: Bucket,
        fleet: Fleet,
        follows: Callable[[str], bool],
        report: Callable[[str, str], None],
        *,
        poll_s: float,
        memory_limit: int,
    ) -> None:
        self._bucket = bucket
        self._fleet = fleet
        self._follows = follows
        self._report = report
        self._poll_s = poll_s
        self._limit_bytes = memory_limit // 8
        self._looked_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # in a row
        self._problems: dict[str, str] = {}  # by stream, while looking at its list fails
        self._said: dict[str, str] = {}  # by stream, what was wrong last
        self._tags: dict[str, tuple[MirrorRecord, str]] = {}
        self._fetching: dict[asyncio.Task[None], int] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._looking())
            while True:
                self._order(tasks)
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TURN_S):
                        await self._wake.wait()

    # -- what is new ----------------------------------------------------------------------------------------

    async def _looking(self) -> None:
        while True:
            for stream, record in list(self._fleet.swarm.gossip.mirrors.items()):
                if not self._follows(stream) or not self._is_due(stream):
                    continue
                try:
                    await self.look(stream, record)
                except (BucketError, ProtocolError) as error:
                    self._failures[stream] = self._failures.get(stream, 0) + 1
                    self._problems[stream] = str(error)
                    self._tell(stream, f"mirror not read: {error}")
            await asyncio.sleep(TURN_S)

    def _is_due(self, stream: str) -> bool:
        looked_s = self._looked_s.get(stream)
        if looked_s is None:
            return True
        wait_s = self._poll_s if self._is_needed(stream) else CALM * self._poll_s
        if failures := self._failures.get(stream):
            wait_s = max(wait_s, min(2.0**failures, MAX_WAIT_S))
        return time.monotonic() - looked_s >= wait_s

    def _is_needed(self, stream: str) -> bool:
        """Whether nobody is there to be asked, or nobody has what is wanted."""
        swarm = self._fleet.swarm
        return not any(swarm.connected()) or swarm.fetch.mirrored.lacks(stream, time.monotonic())

    def problems(self) -> list[str]:
        """Streams whose list cannot be read, and why."""
        return [f"stream {stream} cannot be read from the mirror: {what}" for stream, what in self._problems.items()]

    async def look(self, stream: str, record: MirrorRecord) -> None:
        """Learn what the mirror's list of a stream says, if it has changed. Raises BucketError and ProtocolError."""
        self._looked_s[stream] = time.monotonic()
        known, tag = self._tags.get(stream, (None, ""))
        try:
            got = await self._bucket.get(list_path(record), MAX_LIST_BYTES, tag if known == record else "")
        except NotThereError:  # nothing was put there yet
            self._fleet.swarm.fetch.mirrored.holds(stream, frozenset())
            self._failures.pop(stream, None)
            self._problems.pop(stream, None)
            return
        if got is not None:
            objects = await asyncio.to_thread(open_list, got.data, record)
            for what in self._fleet.learn(objects):
                self._tell(stream, f"the mirror's list has an object that does not hold: {what}")
            self._tags[stream] = record, got.tag
            self._fleet.mirror_holds(stream, self._attempts(objects))
        self._failures.pop(stream, None)
        self._problems.pop(stream, None)
        self._wake.set()

    def _attempts(self, objects: list[tuple[ObjectKind, bytes]]) -> frozenset[bytes]:
        """Attempts of the transitions in a list, those that are believed."""
        transitions = self._fleet.swarm.gossip.transitions
        names = [object_digest(data, Transition) for kind, data in objects if kind is ObjectKind.TRANSITION]
        return frozenset(transitions[name].attempt for name in names if name in transitions)

    # -- chunks ---------------------------------------------------------------------------------------------

    def _order(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to take what is to be taken now, within the limits."""
        room = self._limit_bytes - sum(self._fetching.values())
        while len(self._fetching) < FETCHES and room > 0:
            orders = self._fleet.swarm.fetch.mirrored.orders(1, time.monotonic())
            if not orders:
                return
            for order in orders:
                task = tasks.create_task(self._fetch(order))
                self._fetching[task] = order.size
                task.add_done_callback(self._fetched)
                room -= order.size

    def _fetched(self, task: asyncio.Task[None]) -> None:
        del self._fetching[task]
        self._wake.set()

    async def _fetch(self, order: Order) -> None:
        arrived = lacks = False
        try:
            kept = await self._take(order)
            arrived, lacks = kept is Kept.STORED, kept is Kept.DAMAGED
        except (NotThereError, TooLongError):
            lacks = True
            self._tell(order.stream, "the mirror lacks a chunk that its list names", chunk=short(order.name))
        except BucketError as error:
            self._tell(order.stream, f"mirror not read: {error}")
        finally:
            self._fleet.swarm.fetch.mirrored.close(order, time.monotonic(), arrived=arrived, lacks=lacks)

    async def _take(self, order: Order) -> Kept:
        """Take one chunk into the store, if it is right. Raises BucketError."""
        await self._fleet.download_allowed()
        record = self._fleet.swarm.gossip.mirrors[order.stream]
        got = await self._bucket.get(chunk_path(record, order.name), order.size)
        assert got is not None  # no tag was given
        kept = await self._fleet.keep(order.name, bytearray(got.data))
        if kept is Kept.DAMAGED:
            what = "the mirror has other bytes under a chunk's name: refused"
            self._tell(order.stream, what, chunk=short(order.name))
        return kept

    def _tell(self, stream: str, what: str, **more: str) -> None:
        """Say what is wrong, once; the operator sees it in the stream's status while the mirror is needed."""
        if self._said.get(stream) != what:
            self._said[stream] = what
            _log.warning("mirror", stream=stream, what=what, **more)
        if self._is_needed(stream):
            self._report(stream, what)
