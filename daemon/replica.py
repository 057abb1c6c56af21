"""Replica: keeps one stream's slots at the version the fleet has, one route after the other.

A route is handed over when all its chunks are in the store. It is applied to a spare slot, committed by rename,
and then applied once more to the slot behind (a twin), so that the next step has one transition to apply. What
lies in the slots is proven and mended by `upkeep`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from ..protocol.errors import BaseMismatchError, ProtocolError
from ..protocol.ids import short
from ..protocol.layout import Layout
from ..protocol.manifest import Head, Transition
from ..protocol.ranges import iterate
from ..storage.chunks import ChunkStore
from ..storage.errors import (
    ChunkCorruptError,
    ChunkMissingError,
    ProofFailedError,
    SlotDamagedError,
    SlotsBusyError,
    StorageError,
)
from ..storage.slots import Slot, StreamSlots
from .fleet.fleet import Fleet
from .local_base import LocalBase
from .readers import Readers
from .rebuilding import Rebuilder
from .threads import finish
from .transition import read_digests, read_layout

T = TypeVar("T")

_log: Final = structlog.get_logger(__name__)

BUSY_RETRY_S: Final = 1.0
FAILURE_RETRY_S: Final = 5.0
DISK_BYTES_PER_S: Final = 1e9
"""On a disk, steps are so far apart by default that the whole model could be written in between at this rate."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong last, and when (Unix seconds)."""

    at: float
    detail: str


class Replica:
    """One stream on this host. `run` is its task; the rest is called on the event loop.

    `min_interval_s` is the least time between two commits; None: what a disk needs to write the model.
    """

    def __init__(
        self,
        stream: str,
        slots: StreamSlots,
        fleet: Fleet,
        store: ChunkStore,
        *,
        base: Path | None,
        verify_first: bool,
        min_interval_s: float | None,
        threads: int,
    ) -> None:
        self.stream = stream
        self.slots = slots
        self.building_lock = asyncio.Lock()
        """Held by whoever builds in the slots: this replica, or the publisher on the head."""
        self.failure: Failure | None = None
        self.rebuilding: int | None = None
        self.rebuilt: Callable[[bytes], object] = lambda _manifest: None
        """Called, on the event loop, when all bytes of a version are in the slot behind and it is not committed yet."""

        self._fleet = fleet
        self._store = store
        self._rebuilder = Rebuilder(slots, store, threads=threads, verify_first=verify_first)
        self._min_interval_s = min_interval_s
        self._rested_at_s = 0.0  # monotonic: when the next version may be built
        self._threads = threads
        self._base = LocalBase(stream, base, fleet.view, store, threads)
        self._route: tuple[Transition, ...] | None = None
        self._behind: tuple[Transition, ...] = ()
        self._retry: asyncio.TimerHandle | None = None
        self._doubted: bytes | None = None  # the attempt that was contradicted last, all slots being right
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._committed_at: dict[bytes, float] = {}
        self.readers = Readers()

    @property
    def store(self) -> ChunkStore:
        """Where the chunks are."""
        return self._store

    @property
    def threads(self) -> int:
        """Threads that work on one version."""
        return self._threads

    # -- looking --------------------------------------------------------------------------------------------

    def current(self) -> Slot | None:
        """The committed version that may be served."""
        return self.slots.current()

    def changes(self) -> asyncio.Event:
        """An event that is set at the next commit, proof or withdrawal. Take it before looking, then wait."""
        return self._changed

    def committed_at(self, slot: Slot) -> float | None:
        """When this daemon committed a version, Unix seconds."""
        return self._committed_at.get(slot.manifest)

    def slot_freed(self) -> None:
        """A reader let go: work that waited for a slot can go on."""
        self._wake.set()

    async def expire_leases(self) -> None:
        """End leases that ran out, and go on with work that waited for their slots."""
        await asyncio.to_thread(self.slots.expire, time.time())
        if self._behind or self._route:
            self._wake.set()

    def unchecked(self) -> Slot | None:
        """The newest version that waits to be verified before it may be served: the machine was started anew."""
        waiting = [slot for slot in self.slots.slots() if slot.suspect and not slot.twin and not slot.withdrawn]
        return waiting[-1] if waiting and self.current() is None else None

    def needed(self) -> frozenset[bytes]:
        """Attempts whose chunks are about to be applied."""
        return frozenset(leg.attempt for leg in (*(self._route or ()), *self._behind))

    def checked(self) -> None:
        """A slot was proven, mended or dropped: say what is held now, and go on with what waited for it."""
        self._hold()
        current = self.current()
        if current is not None:
            self._fleet.set_head(_head(current))
        self._notify()
        self._wake.set()

    def lost(self) -> None:
        """Bytes that were counted on are gone: plan and fetch anew."""
        self._hold()
        self._fleet.rescan(self.stream)
        self._notify()

    def chunks_lost(self, names: Sequence[bytes]) -> None:
        """Damaged chunks were taken out of the store: fetch again what of them is wanted here."""
        if self._fleet.restore(self.stream, frozenset(names)):
            self.report(f"{len(names)} chunks in the store were damaged: removed, and fetched again where wanted")

    def report(self, detail: str) -> None:
        """Put what went wrong where the operator sees it."""
        self.failure = Failure(time.time(), detail)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- what the fleet says --------------------------------------------------------------------------------

    def start(self) -> None:
        """Tell the fleet what is held, so that it plans the way to the head."""
        self._hold()
        current = self.current()
        if current is not None:
            self._fleet.set_head(_head(current))

    def route_ready(self, route: tuple[Transition, ...]) -> None:
        """A way to the head is complete in the store."""
        self._route = route or None  # an empty one: the head is held
        self._wake.set()

    def lists_here(self) -> None:
        """The lists of some transition have come: a base may be compared now."""
        if self._waits_for_base():
            self._wake.set()

    def head_moved(self) -> None:
        """The manifest of a newer head has come: it may be the base itself, to which no route leads."""
        if self._base.source is not None:
            self._wake.set()

    def _waits_for_base(self) -> bool:
        return self._base.is_open and not self.slots.slots()

    def _held(self) -> frozenset[bytes]:
        """Versions whose bytes are here.

        One that waits for its verification after a reboot counts: steps from there are fetched meanwhile.
        """
        held = {slot.manifest for slot in self.slots.slots() if not slot.withdrawn}
        if self._base.source is not None:
            held.add(self._base.source.manifest)
        return frozenset(held)

    def _hold(self) -> None:
        self._fleet.hold(self.stream, self._held(), lists_first=self._waits_for_base())

    # -- the task -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work through routes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._try(self._compare_base)
            await self._try(self._serve_base)
            route = self._route
            if route and self._may_follow(route):
                self._route = None
                if not await self._try(partial(self._follow, route)) and self._route is None:
                    self._route = route if self._can_follow(route) else None
            if self._behind and self._route is None:
                await self._try(self._make_twin)
            if not self._route and not self._behind:
                await self._go_ahead()

    async def _go_ahead(self) -> None:
        """Apply what has come of the next version. Whatever is in the way, the version is built when it is complete."""
        ahead = self._rebuilder.ahead
        async with self.building_lock:
            current = self.current()
            series = self._fleet.view.coming(self.stream, current.manifest if current else b"")
            of = (series.transition or series.opening) if series is not None and self._may_begin(current) else None
            if series is None or of is None:
                try:
                    await finish(asyncio.to_thread(ahead.give_up))
                except (StorageError, OSError) as error:
                    _log.error("what was applied ahead could not be undone", stream=self.stream, reason=str(error))
                    self.report(f"what was applied ahead could not be undone: {error}")
                return
            lacking = ahead.lacks(series.attempt, series.have.data)
            if not lacking:
                return
            new = [(ordinal, series.chunks[ordinal][0]) for ordinal in iterate(lacking)]
            before = ahead.attempt
            try:
                await finish(asyncio.to_thread(ahead.go_on, of, current, new))
            except SlotsBusyError:
                pass  # a reader holds the slot: perhaps not when the next chunk comes
            except (StorageError, ProtocolError, OSError) as error:
                _log.info("not applied ahead", stream=self.stream, version=of.version, reason=str(error))
            finally:
                if ahead.attempt != before:
                    self._hold()  # a slot has other bytes from now on: no route starts from what it held

    def _may_begin(self, current: Slot | None) -> bool:
        """Whether a version may be begun before it is complete: readers of an only slot would have to wait for it."""
        if self.slots.count < 2 or self._rested_at_s > time.monotonic() or self.compares_base:
            return False
        if self.failure is not None:
            return False  # until a version is committed again, one step at a time
        return current is not None or not self.slots.slots()

    @asynccontextmanager
    async def quietly(self) -> AsyncIterator[None]:
        """Nothing is built in the slots, nor begun, as long as this is held."""
        async with self.building_lock:
            await finish(asyncio.to_thread(self._rebuilder.ahead.give_up))
            yield

    def chunk_came(self) -> None:
        """A chunk of the stream is in the store: of the next version, perhaps."""
        self._wake.set()

    def _can_follow(self, route: Sequence[Transition]) -> bool:
        """Whether a route that could not be built now may be built later: another is planned when its start is gone."""
        start = route[0].source
        return (not start or start in self._held()) and self._fleet.view.is_usable(self.stream, route)

    def _may_follow(self, route: Sequence[Transition]) -> bool:
        """Whether a route may be built now, or its time comes later."""
        start = route[0].source
        if start and self.slots.find(start) is None and any(s.manifest == start for s in self.slots.slots()):
            return False  # its start is being verified or mended: `checked` wakes us
        wait_s = self._rested_at_s - time.monotonic()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._wake.set)  # by then the route may be longer: all of it in one go
            return False
        return True

    async def _try(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do a piece of work. Returns False when it is to be tried again, which is then arranged."""
        try:
            async with self.building_lock:
                await work()
        except SlotsBusyError as error:
            self._fail(error, BUSY_RETRY_S)
            return False
        except (ChunkMissingError, ChunkCorruptError) as error:
            # The store lost what it had: plan again, the chunks are fetched anew.
            self._fail(error, FAILURE_RETRY_S)
            self._fleet.rescan(self.stream)
            return True
        except (StorageError, ProtocolError, OSError) as error:
            self._fail(error, FAILURE_RETRY_S)
            return False
        return True

    def _fail(self, error: Exception, retry_s: float) -> None:
        detail = str(error)
        if self.failure is None or self.failure.detail != detail:  # said once, however often it is tried again
            _log.warning("rebuild put off", stream=self.stream, reason=detail)
        self.failure = Failure(time.time(), detail)
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._loop.call_later(retry_s, self._wake.set)

    async def _compare_base(self) -> None:
        """Find out which version the local base is."""
        if self._waits_for_base() and await self._base.compare():
            self._hold()

    async def _serve_base(self) -> None:
        """Commit a copy of the base when it is the head: no route leads where one is already."""
        base, head = self._base.source, self._fleet.swarm.gossip.head(self.stream)
        if base is None or head is None or self.slots.slots() or self._fleet.view.manifest(base.manifest) != head:
            return
        slot = await finish(asyncio.to_thread(self._rebuilder.copy, base, head))
        _log.info("committed", stream=self.stream, version=slot.version, manifest=short(slot.manifest))
        self.committed(slot)

    async def _follow(self, route: Sequence[Transition]) -> None:
        """Rebuild and commit the version that `route` leads to."""
        manifest = self._fleet.view.manifest(route[-1].target)
        current = self.current()
        if manifest is None or (current is not None and current.order >= (manifest.epoch, manifest.version)):
            return
        self.rebuilding = manifest.version
        rebuilt = partial(self._loop.call_soon_threadsafe, self.rebuilt, route[-1].target)
        try:
            slot = await finish(asyncio.to_thread(self._rebuilder.rebuild, route, manifest, self._base.source, rebuilt))
        except (BaseMismatchError, ProofFailedError):
            await self._blame(route[0].source)
            raise
        finally:
            self.rebuilding = None
            self._hold()  # the slot that was built in holds something else now, or nothing
        self.failure = None
        _log.info("committed", stream=self.stream, version=slot.version, manifest=short(slot.manifest))
        self._behind = tuple(route)
        self.committed(slot)

    def committed(self, slot: Slot) -> None:
        """Tell everyone that a version is committed here."""
        self._committed_at = {
            each.manifest: self._committed_at.get(each.manifest, time.time()) for each in self.slots.slots()
        }
        pause_s = self._min_interval_s
        self._rested_at_s = time.monotonic() + (slot.layout.size / DISK_BYTES_PER_S if pause_s is None else pause_s)
        self._hold()
        self._fleet.set_head(_head(slot))
        self._notify()

    def make_twin_of(self, route: Sequence[Transition]) -> None:
        """Bring the slot behind to the committed version when there is time: it was committed by the publisher."""
        self._behind = tuple(route)
        self._wake.set()

    async def _blame(self, start: bytes) -> None:
        """What was built from `start` contradicts the trainer: a slot is damaged, or the transition is bad."""
        digests = await self.digests_of(start) if start else b""
        if digests is None:
            return  # nothing to judge by: it is tried again
        leg = self._rebuilder.applying
        if await asyncio.to_thread(self._damage, start, digests) or leg is None:
            return
        # Giving the spare back may have mended it, so only a second time speaks against the transition.
        attempt, before = leg.attempt, self._doubted
        self._doubted = attempt
        if attempt == before:
            self._fleet.mark_bad(self.stream, attempt)

    def _damage(self, manifest: bytes, digests: bytes) -> bool:
        """Whether any slot of a version is damaged; such a one is withdrawn. Its twin may be, on which was built."""
        found = [slot for slot in self.slots.slots() if manifest and slot.manifest == manifest and not slot.withdrawn]
        damaged = [slot for slot in found if self._is_damaged(slot, digests)]
        for slot in damaged:
            self.withdraw(slot)
        return bool(damaged)

    def _is_damaged(self, slot: Slot, digests: bytes) -> bool:
        try:
            return bool(self.slots.verify_slot(slot, digests))
        except SlotDamagedError:
            return True

    async def digests_of(self, manifest: bytes) -> bytes | None:
        """The digest table of a version, None when it is not in the store."""
        return await self._list_of(manifest, read_digests)

    async def layout_of(self, manifest: bytes) -> Layout | None:
        """The layout of a version, None when it is not in the store."""
        return await self._list_of(manifest, read_layout)

    async def _list_of(self, manifest: bytes, read: Callable[[ChunkStore, Transition], T]) -> T | None:
        transition = self._fleet.view.transition_to(self.stream, manifest)
        try:
            return None if transition is None else await asyncio.to_thread(read, self._store, transition)
        except (ChunkMissingError, ChunkCorruptError):
            return None

    @property
    def compares_base(self) -> bool:
        """Whether a local base may save the first transfer yet."""
        return self._base.source is not None or self._waits_for_base()

    async def _make_twin(self) -> None:
        """Bring the slot behind to the committed version."""
        route, self._behind = self._behind, ()
        current = self.current()
        if current is None or self.slots.count < 2 or current.manifest != route[-1].target:
            return
        try:
            await finish(asyncio.to_thread(self._rebuilder.twin, route, current))
        except SlotsBusyError:
            self._behind = route  # a leased slot is brought up to date when its reader lets go
        finally:
            self._hold()  # what the slot held before is not here any more
        self._notify()

    def withdraw(self, slot: Slot) -> Slot:
        """Stop serving a damaged slot, and cut its readers off. Called in a thread."""
        try:
            return self.slots.withdraw(slot)
        finally:
            self._loop.call_soon_threadsafe(self._cut_off, slot.manifest)

    def _cut_off(self, manifest: bytes) -> None:
        self.readers.cut_off(manifest)
        self._hold()
        self._notify()


def _head(slot: Slot) -> Head:
    return Head(slot.stream, slot.epoch, slot.version, slot.manifest)
