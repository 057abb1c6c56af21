"""Rebuilding: routes applied to a stream's slots. Blocking: for threads.

A version is built in the slot behind and committed by rename; the slot that is behind then gets the same route, and
ends as its twin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from ..protocol.errors import BaseMismatchError
from ..protocol.ids import short
from ..protocol.manifest import Manifest, Transition
from ..storage.base import BaseSource
from ..storage.building import Building
from ..storage.chunks import ChunkStore
from ..storage.errors import ChunkCorruptError, ChunkMissingError, ProofFailedError, StorageError
from ..storage.rebuild import ByteSource
from ..storage.slots import Slot, StreamSlots
from .ahead import Ahead
from .transition import chunk_readers, read_digests, read_layout

_log: Final = structlog.get_logger(__name__)

APPLIED_LEGS: Final = 4
"""A twin is copied when the route is longer: each transition looks at the whole model, as copying it does, once."""


class Rebuilder:
    """Builds versions of one stream from what is in the chunk store. One call at a time.

    With `verify_first` a version is held against its digest table before it is committed.
    """

    def __init__(self, slots: StreamSlots, store: ChunkStore, *, threads: int, verify_first: bool) -> None:
        self._slots = slots
        self._store = store
        self._threads = threads
        self._verify_first = verify_first
        self.ahead = Ahead(slots, store, threads)
        self.applying: Transition | None = None
        """The leg that was applied last: the one whose bytes did not fit, after a BaseMismatchError."""

    def rebuild(
        self,
        route: Sequence[Transition],
        manifest: Manifest,
        base: BaseSource | None,
        rebuilt: Callable[[], object] = lambda: None,
    ) -> Slot:
        """Build and commit the version that `route` leads to, from a slot, the local `base` or nothing.

        `rebuilt` is called when all its bytes are in the slot, before they are proven and committed.
        Raises BaseMismatchError or ProofFailedError when the bytes contradict the trainer's, SlotsBusyError,
        ChunkMissingError, ChunkCorruptError, StorageError; nothing is committed then.
        """
        begun = self.ahead.take(route[0])
        if begun is None:
            begun = self._slots.begin(read_layout(self._store, route[0]), self._source(route[0].source, base)), 0
        building = self._apply(route, *begun)
        try:
            rebuilt()
            proven = self._prove(building, route[-1]) if self._verify_first else False
            return building.commit(manifest.epoch, manifest.version, route[-1].target, manifest.label, proven=proven)
        except BaseException:
            building.abort()
            raise

    def copy(self, base: BaseSource, manifest: Manifest) -> Slot:
        """Commit a copy of the local base, which is the version of `manifest`."""
        self.ahead.give_up()
        building = self._slots.begin(base.layout, base)
        try:
            return building.commit(manifest.epoch, manifest.version, base.manifest, manifest.label, proven=False)
        except BaseException:
            building.abort()
            raise

    def twin(self, route: Sequence[Transition], current: Slot) -> None:
        """Bring the slot behind to the committed version: over a short `route` that serves, else by copying."""
        self.ahead.give_up()
        building = self._advanced(route)
        if building is None:
            building = self._slots.begin(current.layout, current)
        try:
            building.commit_twin(current.epoch, current.version, current.manifest, current.label, proven=False)
        except BaseException:
            building.abort()
            raise

    def _source(self, manifest: bytes, base: BaseSource | None) -> Slot | ByteSource | None:
        if not manifest:
            return None
        slot = self._slots.find(manifest)
        if slot is not None:
            return slot
        if base is not None and base.manifest == manifest:
            return base
        raise StorageError(f"version {short(manifest)}, from which the route starts, is not here any more")

    def _apply(self, route: Sequence[Transition], building: Building, applied: int) -> Building:
        """Apply every chunk of a route save those of its first leg that the bitmap `applied` holds."""
        try:
            for leg in route:
                building.advance(read_layout(self._store, leg))
                self._apply_leg(leg, building, applied)
                applied = 0
        except BaseException:
            building.abort()
            raise
        return building

    def _apply_leg(self, leg: Transition, building: Building, applied: int) -> None:
        self.applying = leg
        with ThreadPoolExecutor(self._threads, thread_name_prefix="apply") as pool:
            # Results are consumed as they come, so that the first failure stops the leg.
            for _ in pool.map(lambda read: building.apply(read()), chunk_readers(self._store, leg, applied)):
                pass

    def _prove(self, building: Building, leg: Transition) -> bool:
        if building.digests(self._threads) != read_digests(self._store, leg):
            raise ProofFailedError(
                f"{leg.stream} version {leg.version} was rebuilt to other bytes than the trainer's: not committed"
            )
        return True

    def _advanced(self, route: Sequence[Transition]) -> Building | None:
        """The slot behind with the route applied; None when there is none, when copying is less work, or it fails."""
        behind = self._slots.find(route[0].source) if route[0].source else None
        if behind is None or len(route) > APPLIED_LEGS:
            return None
        try:
            return self._apply(route, self._slots.begin(read_layout(self._store, route[0]), behind), 0)
        except BaseMismatchError as error:
            _log.warning("the slot behind is damaged", stream=behind.stream, version=behind.version, reason=str(error))
            self._slots.withdraw(behind)
        except (ChunkMissingError, ChunkCorruptError) as error:
            _log.info("the slot behind is copied", stream=behind.stream, reason=str(error))
        return None
