"""Deltas: made once for everyone who asks, from two slots, or from one slot and the transitions that lead on from it.

The last one made in each stream is kept as an unlinked file, because an engine's workers all ask for the same; it goes
when another is asked for, when a version that it was made from is withdrawn, and with the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Final

import structlog

from ..protocol.chain import plan_route
from ..protocol.errors import ProtocolError
from ..protocol.manifest import Manifest, Transition
from ..storage.composed import Leg, compose_legs
from ..storage.delta import Work, common_tensors, compare, write_delta
from ..storage.errors import ChunkCorruptError, ChunkMissingError, StorageError
from ..storage.slots import Slot
from .fleet.fleet import Fleet
from .local.errors import LoadInFullError, UnavailableError, UnknownVersionError
from .local.service import OpenDelta
from .replica import Replica
from .transition import chunk_readers, read_layout

_log: Final = structlog.get_logger(__name__)

THREADS: Final = 4
"""At most, for one delta: what an engine waits for, but not all that the daemon has."""


class _StoppedError(StorageError):
    """Nobody waits for the delta any more."""


@dataclass(frozen=True)
class _End:
    """Where a delta leads: a slot, or the end of a route from the slot where it starts."""

    manifest: bytes
    epoch: int
    version: int
    label: str
    slot: Slot | None
    route: tuple[Transition, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether the digest table has confirmed its bytes here."""
        return self.slot is not None and self.slot.proven


class _Kept:
    """A delta that was made, and the events that tell when its bytes must not be used any more."""

    def __init__(self, replica: Replica, start: Slot, end: _End, file: IO[bytes]) -> None:
        self.manifests = (start.manifest, end.manifest)
        self.file = file
        self._replica = replica
        self._voided = [(manifest, replica.readers.watch(manifest)) for manifest in self.manifests]

    @property
    def good(self) -> bool:
        """Whether neither version was withdrawn since."""
        return not any(event.is_set() for _, event in self._voided)

    def close(self) -> None:
        """Forget it. Whoever is reading it has a descriptor of their own."""
        self.file.close()
        for manifest, event in self._voided:
            self._replica.readers.unwatch(manifest, event)


class Deltas:
    """The deltas of one node. Used on the event loop."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kept: dict[str, _Kept] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def open(self, replica: Replica, start: int, end: int | None) -> AsyncIterator[OpenDelta]:
        """The delta between two versions, the current one for an `end` of None, as long as the context lasts.

        Raises UnknownVersionError when the first is not held here or the second not to be had; LoadInFullError.
        """
        async with self._turns.setdefault(replica.stream, asyncio.Lock()):
            begin = self._start(replica, start)
            finish = self._end(replica, begin, end)
            kept = self._kept.get(replica.stream)
            if kept is None or kept.manifests != (begin.manifest, finish.manifest) or not kept.good:
                self._forget(replica.stream)
                kept = self._kept[replica.stream] = await self._make(replica, begin, finish)
            descriptor = os.dup(kept.file.fileno())
        voided = replica.readers.watch(finish.manifest)
        try:
            size = os.fstat(descriptor).st_size
            yield OpenDelta(
                descriptor=descriptor,
                size_bytes=size,
                start=start,
                start_manifest=begin.manifest.hex(),
                epoch=finish.epoch,
                version=finish.version,
                manifest=finish.manifest.hex(),
                proven=begin.proven and finish.proven,
                voided=voided,
            )
        finally:
            replica.readers.unwatch(finish.manifest, voided)
            os.close(descriptor)

    def close(self) -> None:
        """Forget all."""
        for stream in list(self._kept):
            self._forget(stream)

    def _forget(self, stream: str) -> None:
        kept = self._kept.pop(stream, None)
        if kept is not None:
            kept.close()

    @staticmethod
    def _start(replica: Replica, version: int) -> Slot:
        found = _slot(replica, version)
        if found is None:
            raise UnknownVersionError(
                f"version {version} of {replica.stream} is not held here",
                remedy="keep a lease on what the engine has until the next version is applied, or load that in full",
            )
        return found

    def _end(self, replica: Replica, begin: Slot, version: int | None) -> _End:
        slot = replica.current() if version is None else _slot(replica, version)
        if slot is None and version is None:
            raise UnknownVersionError(f"{replica.stream} has no version that is served now", remedy="name one, or wait")
        if slot is not None:
            return _End(slot.manifest, slot.epoch, slot.version, slot.label, slot)
        manifests = [
            (name, each)
            for name, each in self._fleet.swarm.gossip.manifests.items()
            if each.stream == replica.stream and each.version == version
        ]
        for name, manifest in sorted(manifests, key=_epoch, reverse=True):
            steps = [leg for leg in self._fleet.view.complete(replica.stream) if leg.source]
            route = plan_route({begin.manifest}, name, steps, lambda _: 0)
            if route is not None:
                return _End(name, manifest.epoch, manifest.version, manifest.label, None, route)
        raise UnknownVersionError(
            f"version {version} of {replica.stream} is neither held here nor reached from version {begin.version}",
            remedy="wait until it is committed",
        )

    async def _make(self, replica: Replica, begin: Slot, end: _End) -> _Kept:
        stop = threading.Event()
        voided = [(name, replica.readers.watch(name)) for name in (begin.manifest, end.manifest)]
        making = asyncio.ensure_future(asyncio.to_thread(_write, replica, begin, end, stop))
        try:
            file = await asyncio.shield(making)
            if any(event.is_set() for _, event in voided):
                file.close()
                raise UnavailableError(f"a version of {replica.stream} was withdrawn meanwhile", remedy="ask again")
            return _Kept(replica, begin, end, file)
        except (ChunkMissingError, ChunkCorruptError) as error:
            raise UnavailableError(
                f"chunks on the way to version {end.version} are gone ({error})", remedy="ask again"
            ) from None
        except ProtocolError as error:
            raise LoadInFullError(f"a transition to version {end.version} does not fit ({error})") from None
        except asyncio.CancelledError:
            stop.set()
            with contextlib.suppress(Exception):  # the cancellation is what counts now
                (await making).close()
            raise
        finally:
            for name, event in voided:
                replica.readers.unwatch(name, event)


def _write(replica: Replica, begin: Slot, end: _End, stop: threading.Event) -> IO[bytes]:
    """Make the delta. Blocking."""
    words = {
        "format": "patchswarm delta 1",
        "stream": replica.stream,
        "from": str(begin.version),
        "from_manifest": begin.manifest.hex(),
        "to": str(end.version),
        "to_manifest": end.manifest.hex(),
        "label": end.label,
    }
    threads = min(replica.threads, THREADS)
    folder = replica.store.root
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(replica.slots.hold(begin))
        if end.slot is not None:
            new = stack.enter_context(replica.slots.hold(end.slot))
            tensors = common_tensors(old.layout, new.layout)
            return write_delta(tensors, _until(compare(tensors, old, new), stop), folder, words, threads)
        legs = [Leg(read_layout(replica.store, leg), chunk_readers(replica.store, leg)) for leg in end.route]
        tensors = common_tensors(old.layout, legs[-1].layout if legs else old.layout)
        _log.info(
            "delta along transitions", stream=replica.stream, start=begin.version, end=end.version, legs=len(legs)
        )
        return write_delta(tensors, _until(compose_legs(tensors, old, legs), stop), folder, words, threads)


def _until(works: Iterable[Work], stop: threading.Event) -> Iterator[Work]:
    for work in works:
        if stop.is_set():
            raise _StoppedError("nobody waits for the delta any more")
        yield work


def _slot(replica: Replica, version: int) -> Slot | None:
    """The slot that is served as a version: of the highest epoch that has it."""
    found = [slot for slot in replica.slots.slots() if slot.version == version and not slot.twin]
    good = [slot for slot in found if not slot.withdrawn and not slot.suspect]
    return good[-1] if good else None


def _epoch(item: tuple[bytes, Manifest]) -> int:
    return item[1].epoch
