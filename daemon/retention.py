"""Retention: which transitions' chunks stay on this host, and what is deleted.

Kept are the transitions to the newest versions within the limits, whatever a planned route or the work under way
needs, and on the publisher one complete way in from nothing and from each registered base. A chunk goes when no kept
transition names it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

import structlog

from ..protocol.chain import plan_route
from ..protocol.errors import SealError
from ..protocol.manifest import Route, Transition
from ..storage.chunks import ChunkStore
from ..storage.errors import StorageError
from ..storage.retention import Kept, Limits
from ..storage.retention import surplus as surplus_of
from .config import Storage
from .fleet.fleet import Fleet
from .replica import Replica
from .transition import chunk_names

_log: Final = structlog.get_logger(__name__)

SWEEP_S: Final = 600.0
"""So long after the start, chunks that belong to nothing known may still turn out to belong to something."""

SWEEP_CHUNKS: Final = 256


def entry_routes(transitions: Iterable[Transition], head: bytes) -> set[bytes]:
    """Attempts on the cheapest ways to `head` from nothing and from each base: the ways in that must stay complete."""
    known = list(transitions)
    starts = [frozenset[bytes](), *(frozenset((each.target,)) for each in known if each.kind is Route.BASE)]
    routes = (plan_route(start, head, known, lambda each: sum(part.size for part in each.parts)) for start in starts)
    return {leg.attempt for route in routes for leg in route or ()}


def surplus(
    transitions: Iterable[Transition],
    limits: Limits,
    *,
    pinned: AbstractSet[bytes],
    since: dict[bytes, float],
    now: float,
) -> list[Transition]:
    """Transitions whose chunks need not be kept, oldest first. `pinned` are attempts that stay.

    `limits.count` counts versions; `since` says when each attempt came (Unix seconds). Lists-only records (BASE)
    stay: they are small, and say which bytes a base must have.
    """
    known = {each.attempt: each for each in transitions if each.kind is not Route.BASE}
    versions = sorted({(each.epoch, each.version) for each in known.values()})
    newest = set(versions if limits.count is None else versions[len(versions) - min(limits.count, len(versions)) :])
    old = [each for each in known.values() if (each.epoch, each.version) not in newest and each.attempt not in pinned]
    rest = [
        Kept(each.attempt, (each.epoch, each.version), sum(part.size for part in each.parts), since.get(attempt, now))
        for attempt, each in known.items()
        if each not in old
    ]
    over = surplus_of(rest, Limits(None, limits.size_bytes, limits.age_s), pinned, now)
    gone = [*old, *(known[each.key] for each in over)]
    return sorted(gone, key=lambda each: (each.epoch, each.version))


def delete_chunks(
    store: ChunkStore, gone: Iterable[Transition], kept: Iterable[Transition], named: Iterable[bytes] = ()
) -> int:
    """Delete the chunks of `gone` that none of `kept` names; returns how many. Blocking.

    `named` are chunks of `gone` that are known otherwise: pages named them, and the index never came.
    """
    doomed = set(named)
    for transition in gone:
        doomed.update(_list_names(transition))
        try:
            doomed.update(chunk_names(store, transition))
        except (StorageError, SealError) as error:
            _log.debug("chunks not listed", version=transition.version, reason=str(error))
    for transition in kept:
        if not doomed:
            break
        doomed.difference_update(_list_names(transition))
    here = [name for name in doomed if store.has(name)]
    for name in here:
        store.remove(name)
    return len(here)


def _list_names(transition: Transition) -> list[bytes]:
    return [name for part in transition.parts for ref in part.blobs for name, _ in ref.chunks]


class Retention:
    """The retention of all streams on this host. Its methods are called on the event loop."""

    def __init__(self, fleet: Fleet, store: ChunkStore, storage: Storage, *, publisher: bool) -> None:
        self._fleet = fleet
        self._store = store
        self._publisher = publisher
        self.set_limits(storage)
        self._since: dict[str, dict[bytes, float]] = {}
        self._unclaimed = set(store.names())  # by what this daemon knows of; found in the store when it started
        self._began_s = time.monotonic()

    def set_limits(self, storage: Storage) -> None:
        """Keep as many versions, bytes and seconds as this says."""
        self._limits = Limits(storage.retain_versions, storage.retain_bytes or None, storage.retain_age_s or None)

    async def run(self, replica: Replica) -> None:
        """Delete what is over the limits in one stream."""
        await self._delete(replica, self._limits)

    async def shrink(self, replica: Replica) -> None:
        """Delete everything that is not needed: the disk is full."""
        await self._delete(replica, Limits(count=1, size_bytes=0))
        await asyncio.to_thread(self._store.free_spares)

    async def _delete(self, replica: Replica, limits: Limits) -> None:
        gossip, view, now = self._fleet.swarm.gossip, self._fleet.view, time.time()
        stream = replica.stream
        head = gossip.head_digest(stream)
        if head is None:
            return
        known = gossip.routes(stream)
        here = [each for each in known if view.has_chunks(each)]
        before = self._since.get(stream, {})
        since = self._since[stream] = {each.attempt: before.get(each.attempt, now) for each in here}
        pinned = view.planned(stream) | replica.needed()
        if self._publisher:
            pinned |= entry_routes(known, head)
        gone = surplus(here, limits, pinned=pinned, since=since, now=now)
        if not gone:
            return
        # The lists of what the slots hold stay: they are what the slots are verified by.
        held = {slot.manifest for slot in replica.slots.slots()}
        kept = [each for each in known if each not in gone or each.target in held]
        series = self._fleet.swarm.fetch.stock.series
        named = [name for each in gone for name, _ in series[each.attempt].chunks.values()]
        count = await asyncio.to_thread(delete_chunks, self._store, gone, kept, named)
        for each in gone:
            self._fleet.forget_chunks(each.attempt)
        if count:
            _log.info("old chunks deleted", stream=stream, transitions=len(gone), chunks=count)

    async def sweep(self, *, at_once: bool = False) -> None:
        """Delete chunks of an earlier run that nothing names: of publishes and downloads that a crash cut short.

        They are of no use once every stream is at its head; whatever happens after SWEEP_S, or `at_once`.
        """
        if not self._unclaimed or not (at_once or self._is_settled() or time.monotonic() > self._began_s + SWEEP_S):
            return
        stock, count = self._fleet.swarm.fetch.stock, 0
        while self._unclaimed:
            some = [self._unclaimed.pop() for _ in range(min(SWEEP_CHUNKS, len(self._unclaimed)))]
            # Asked anew for each few: what is wanted of them meanwhile stays.
            lost = [name for name in some if not stock.is_named(name)]
            count += await asyncio.to_thread(delete_chunks, self._store, (), (), lost)
        if count:
            _log.info("chunks that belong to nothing deleted", chunks=count)

    def _is_settled(self) -> bool:
        """Whether every stream is at its head, and every index in the store has been read."""
        fetch = self._fleet.swarm.fetch
        following = fetch.routing.following.values()
        series = [each for each in fetch.stock.series.values() if each.transition and not each.missing_meta()]
        return (
            bool(following)
            and all(each.route == () for each in following)
            and all(each.named == each.expected() for each in series)
        )
