"""Anchors: skip and full transitions, made in the background so that late joiners get in cheaply.

The head keeps the last anchor's version in a frozen slot. What is due is encoded from there, from a registered base's
directory or from nothing to the version committed now, in threads of the lowest priority. A publish that needs a slot
ends the work; it is begun anew after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..protocol.anchoring import Anchor, due_anchors, due_renewals, size_of
from ..protocol.chain import plan_route
from ..protocol.errors import ProtocolError
from ..protocol.ids import short
from ..protocol.manifest import Header, Opening, OpeningPart, Route, Subject, Transition, TransitionPart
from ..protocol.messages import ObjectKind
from ..protocol.seal import INDEX_ENTRY, ChunkSealer
from ..storage.base import BaseSource
from ..storage.diff import Diff, DiffResult, DiffStoppedError, Made
from ..storage.errors import BaseDiffersError, SlotGoneError, StorageError
from ..storage.files import Files
from ..storage.held import HeldSlot
from ..storage.slots import Slot
from ..storage.space import Reservation
from ..storage.trust import Parent
from .config import Stream
from .desk import Desk, Signed, signed
from .making import MAX_CHUNK_BYTES, MIN_JOB_BYTES
from .replica import Replica
from .threads import stoppable
from .transition import read_digests, read_layout

_log: Final = structlog.get_logger(__name__)

BUSY_S: Final = 0.5
"""How often it is looked whether a publish has ended."""

RETRY_S: Final = 30.0
"""After an anchor that failed for another reason than a publish."""


class Anchors:
    """The anchors of one stream on its head. `run` is its task.

    `reserve` sets aside bytes for chunks, so that what is made in the background never fills the disk.
    """

    def __init__(
        self,
        replica: Replica,
        desk: Desk,
        key: Ed25519PrivateKey,
        options: Stream,
        is_busy: Callable[[], bool],
        reserve: Callable[[int], Reservation],
    ) -> None:
        self._replica = replica
        self._desk = desk
        self._key = key
        self._options = options
        self._is_busy = is_busy
        self._reserve = reserve
        self._frozen: Slot | None = None
        self._lost: set[bytes] = set()  # bases whose files are not where they were
        self._working: tuple[Diff, asyncio.Event] | None = None

    async def run(self) -> None:
        """Make what is due after each commit, until cancelled."""
        while True:
            changed = self._replica.changes()
            wait_s = None
            try:
                if not await self._look():
                    wait_s = BUSY_S
            except DiffStoppedError:
                _log.info("anchor put off for a publish", stream=self._replica.stream)
            except (StorageError, ProtocolError, OSError) as error:
                _log.warning("anchor not made", stream=self._replica.stream, reason=str(error))
                wait_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await changed.wait()

    async def give_way(self) -> bool:
        """Let go of a slot for a publish: end the work under way, else let the frozen one go. False without any."""
        if self._working is not None:
            diff, ended = self._working
            diff.stop.set()
            await ended.wait()
            return True
        if self._frozen is not None:
            self._replica.slots.unpin(self._frozen)
            self._frozen = None
            return True
        return False

    # -- what is due ----------------------------------------------------------------------------------------

    async def _look(self) -> bool:
        """Make what is due. False when it has to wait for a publish."""
        replica = self._replica
        current = replica.current()
        if current is None or self._is_busy():
            return False
        routes = self._desk.fleet.swarm.gossip.routes(replica.stream)
        for base in due_renewals(current.order, routes):
            self._renew(base, current)
        self._freeze(current)
        frozen = (self._frozen.manifest, self._frozen.version) if self._frozen else None
        due = due_anchors(
            current.manifest,
            current.version,
            routes,
            frozen=frozen,
            anchor_every=self._options.anchor_every,
            full_every=self._options.full_every,
        )
        for anchor in due:
            await self._make(anchor, current)
        if any(frozen is not None and anchor.source == frozen[0] for anchor in due):
            self._move_frozen(current)
        return True

    def _freeze(self, current: Slot) -> None:
        """Hold the last anchor's slot; after a restart the one that was held, if it is still here."""
        slots = self._replica.slots
        if self._frozen is not None or slots.count < 3 or not self._options.anchor_every:
            return
        kept = self._desk.catalog.get(self._setting)
        slot = slots.find(kept) if kept else None
        self._move_frozen(current if slot is None or slot.twin else slot)

    def _move_frozen(self, slot: Slot) -> None:
        slots = self._replica.slots
        with contextlib.suppress(SlotGoneError):
            slots.pin(slot)
            before, self._frozen = self._frozen, slot
            self._desk.catalog.put(self._setting, slot.manifest)
            if before is not None:
                slots.unpin(before)
            self._replica.slot_freed()

    @property
    def _setting(self) -> str:
        return f"anchor/{self._replica.stream}"

    # -- making ---------------------------------------------------------------------------------------------

    def _renew(self, base: Transition, current: Slot) -> None:
        """Sign the record of a base once more, for the newest version, with the same lists."""
        record = msgspec.structs.replace(
            base, epoch=current.epoch, version=current.version, attempt=secrets.token_bytes(16)
        )
        self._desk.announce(self._announcement(record))
        _log.info("base renewed", stream=base.stream, base=short(base.target), version=current.version)

    def _announcement(self, transition: Transition) -> list[Signed]:
        record = signed(ObjectKind.TRANSITION, transition, self._key)
        header = Header(Subject.TRANSITION, transition.stream, transition.epoch, transition.version, record[1])
        return [signed(ObjectKind.HEADER, header, self._key), record]

    async def _make(self, anchor: Anchor, target: Slot) -> None:
        view, stream = self._desk.fleet.view, self._replica.stream
        into = view.transition_to(stream, target.manifest)
        source = view.transition_to(stream, anchor.source) if anchor.source else None
        if into is None or (anchor.source and source is None):
            return  # their lists are not here
        attempt, key = secrets.token_bytes(16), secrets.token_bytes(32)
        layout = into.parts[0].layout
        # Never announced: it only lends the chunks their names' context.
        opening = Opening(
            stream,
            target.epoch,
            target.version,
            anchor.source,
            attempt,
            target.layout.size,
            (OpeningPart(self._desk.fleet.node, key, 0, layout),),
            (),
        )
        slots = self._replica.slots
        slots.pin(target)
        try:
            digests = await asyncio.to_thread(read_digests, self._desk.store, into)
            with contextlib.ExitStack() as stack:
                parent = None
                if source is not None:
                    parent = await asyncio.to_thread(self._parent, stack, anchor, source)
                    if parent is None:
                        return
                room = stack.enter_context(self._reserve(self._most_bytes(anchor, target)))
                files = HeldSlot(stack.enter_context(slots.hold(target)))
                found = await self._encode(files, parent, opening, room)
        finally:
            slots.unpin(target)
            self._replica.slot_freed()
        if bytes(found.digests) != digests:
            await asyncio.to_thread(self._discard, [made.name for made in found.chunks])
            raise StorageError(f"{target.path} holds a wrong block: it is mended first")
        objects = await asyncio.to_thread(self._sign, anchor, target, into, opening, found)
        self._desk.announce(objects)
        _log.info(
            "anchor made",
            stream=target.stream,
            kind=anchor.kind.name.lower(),
            source=short(anchor.source) if anchor.source else "",
            version=target.version,
            size_bytes=sum(made.size for made in found.chunks),
        )

    def _most_bytes(self, anchor: Anchor, target: Slot) -> int:
        """What an anchor may come to: a skip no more than the steps that it takes the place of, if they are known."""
        routes = self._desk.fleet.swarm.gossip.routes(self._replica.stream)
        steps = [each for each in routes if each.kind is Route.STEP]
        way = plan_route(frozenset((anchor.source,)), target.manifest, steps, size_of) if anchor.source else None
        return target.layout.size if way is None else sum(map(size_of, way))

    def _parent(self, stack: contextlib.ExitStack, anchor: Anchor, source: Transition) -> Parent | None:
        """The bytes that the anchor starts from, held as long as the stack; None when they are not here."""
        digests = read_digests(self._desk.store, source)
        slot = self._replica.slots.find(anchor.source)
        if slot is not None:
            return Parent(stack.enter_context(self._replica.slots.hold(slot)), digests)
        kept = self._desk.catalog.get(base_setting(anchor.source))
        if kept is None:
            self._miss(anchor, "nothing says where its files are")
            return None
        layout = read_layout(self._desk.store, source)
        try:
            base = BaseSource(Path(os.fsdecode(kept)), layout, anchor.source, Files())
        except BaseDiffersError as error:
            self._miss(anchor, str(error))
            return None
        return Parent(stack.enter_context(base), digests)

    def _miss(self, anchor: Anchor, reason: str) -> None:
        """A base is not to be had; said once, because it is due at each version from now on."""
        if anchor.source not in self._lost:
            _log.error("no skip from a base", stream=self._replica.stream, reason=reason)
            self._lost.add(anchor.source)

    async def _encode(self, files: HeldSlot, parent: Parent | None, opening: Opening, room: Reservation) -> DiffResult:
        desk = self._desk
        made: list[bytes] = []

        def keep(chunk: Made) -> None:
            made.append(chunk.name)
            room.spend(chunk.size)

        chunk_bytes = max(files.layout.size // (64 * desk.fleet.view.sites()), 1)
        diff = Diff(
            files,
            parent,
            None,
            desk.store,
            ChunkSealer(opening, 0).seal,
            made=keep,
            advanced=lambda _: None,
            codec=desk.codec,
            job_bytes=max(desk.memory_limit // (8 * desk.threads), MIN_JOB_BYTES),
            chunk_bytes=MAX_CHUNK_BYTES if parent is not None else min(chunk_bytes, MAX_CHUNK_BYTES),
            threads=max(1, desk.threads // 2),
            nice=True,
        )
        ended = asyncio.Event()
        self._working = (diff, ended)
        try:
            return await stoppable(diff)
        except BaseException:
            await asyncio.to_thread(self._discard, made)
            raise
        finally:
            self._working = None
            ended.set()

    def _discard(self, names: list[bytes]) -> None:
        for name in names:
            self._desk.store.remove(name)

    def _sign(
        self, anchor: Anchor, target: Slot, into: Transition, opening: Opening, found: DiffResult
    ) -> list[Signed]:
        desk = self._desk
        desk.store.sync(made.name for made in found.chunks)
        index = desk.keep_blob(b"".join(INDEX_ENTRY.pack(made.name, made.size) for made in found.chunks))
        size = sum(made.size for made in found.chunks)
        lists = into.parts[0]
        part = TransitionPart(
            desk.fleet.node, opening.parts[0].key, 0, len(found.chunks), size, lists.layout, lists.digests, index
        )
        transition = Transition(
            target.stream,
            target.epoch,
            target.version,
            anchor.kind,
            anchor.source,
            target.manifest,
            opening.attempt,
            (part,),
        )
        return self._announcement(transition)


def base_setting(manifest: bytes) -> str:
    """The catalog's key for the directory of a registered base."""
    return f"base/{manifest.hex()}"
