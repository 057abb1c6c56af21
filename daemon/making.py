"""Making: one checkpoint directory becomes one signed version, seeded while it is still being encoded.

The order of things: the opening is signed and announced; chunks are encoded, checked and listed in signed pages;
the manifest and the transition record are made durable; the head's own slot is committed; then they are announced.
A publish that dies before the manifest leaves no version, and its retry is another attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..protocol.ids import digest, short
from ..protocol.manifest import (
    BlobRef,
    Header,
    Manifest,
    ManifestPart,
    Opening,
    OpeningPart,
    Route,
    Subject,
    Transition,
    TransitionPart,
)
from ..protocol.messages import ObjectKind
from ..protocol.roster import build_roster, chunks_for
from ..protocol.seal import INDEX_ENTRY, ChunkSealer
from ..storage.building import Building
from ..storage.checkpoint import Source
from ..storage.diff import Diff, DiffResult
from ..storage.errors import SlotsBusyError, StorageError
from ..storage.slots import Slot
from ..storage.trust import Parent
from .desk import Desk, Signed, signed
from .pages import Pages
from .replica import Replica
from .threads import hand_over, owned, stoppable
from .transition import read_digests

_log: Final = structlog.get_logger(__name__)

MIN_CHUNK_BYTES: Final = 32 * 1024
MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024
MIN_JOB_BYTES: Final = 4 * 1024 * 1024
MAX_JOB_BYTES: Final = 64 * 1024 * 1024
FIRST_PATCH_SHARE: Final = 1 / 150
"""Guess of a step's patch over the full size, before any step has been measured."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be made. `parent` is None when the version goes out whole. If `streamed`, peers fetch meanwhile.

    `parent_checks` are those that the making of the parent gave, empty when it was made elsewhere or before a restart.
    """

    stream: str
    epoch: int
    version: int
    label: str
    attempt: bytes
    key: bytes
    source: Source
    parent: Slot | None
    parent_checks: bytes
    streamed: bool


@dataclass(frozen=True, slots=True)
class Published:
    """A version that exists now, and what it cost."""

    slot: Slot
    full_bytes: int
    patch_bytes: int
    elements: int
    changed: int
    chunks: int
    seconds: dict[str, float]
    """By stage, summed over threads; `total` and `commit` on the wall."""
    checks: bytes
    """Of its blocks, for the making of the next version."""


class Making:
    """The making of one version. The caller holds the replica's `building_lock`.

    `make_way` lets go of a slot that background work holds; False when there is none.
    """

    def __init__(
        self,
        desk: Desk,
        draft: Draft,
        replica: Replica,
        key: Ed25519PrivateKey,
        progress: Callable[[int, int], None],
        make_way: Callable[[], Awaitable[bool]],
    ) -> None:
        self._desk = desk
        self._draft = draft
        self._replica = replica
        self._key = key
        self._progress = progress
        self._make_way = make_way
        self._size = draft.source.layout.size
        self._done_bytes = 0
        self._layout: BlobRef | None = None
        self._seconds: dict[str, float] = {}
        gossip, view = desk.fleet.swarm.gossip, desk.fleet.view
        # Asked here, on the event loop: what the fleet knows must not be read from a thread.
        self._head = gossip.head_digest(draft.stream) or b""
        self._known = None if draft.parent is None else view.transition_to(draft.stream, draft.parent.manifest)
        self._lists: list[bytes] = []  # chunks of the lists that were made here
        self._diff: Diff | None = None

    async def run(self, *, register_only: bool) -> Published:
        """Make it. Cancelled before the manifest is signed it leaves nothing; afterwards it is finished first."""
        began = time.perf_counter()
        try:
            self._layout = await asyncio.to_thread(self._layout_ref)
            if register_only:
                building, found = await owned(self._copy, lambda made: made[0].abort())
            else:
                building, found = await self._encode()
        except BaseException:
            await self._give_up()
            raise
        finishing = asyncio.ensure_future(self._finish(building, found, register_only=register_only))
        try:
            slot, transition = await asyncio.shield(finishing)
        except asyncio.CancelledError:
            await finishing
            raise
        self._seconds["total"] = time.perf_counter() - began
        return self._result(slot, transition, found)

    def _layout_ref(self) -> BlobRef:
        """The layout as sealed chunks: those of the parent when it has not changed."""
        encoded = self._draft.source.layout.encode()
        if self._known is not None:
            ref = self._known.parts[0].layout
            if ref.root == digest(encoded) and all(self._desk.store.has(name) for name, _ in ref.chunks):
                return ref
        return self._keep_list(encoded)

    def _keep_list(self, data: bytes) -> BlobRef:
        ref = self._desk.keep_blob(data)
        self._lists += [name for name, _ in ref.chunks]
        return ref

    async def _give_up(self) -> None:
        """Leave nothing of the attempt in the store. Peers drop what they have of it with the next opening."""
        self._desk.fleet.give_up(self._draft.attempt)
        await asyncio.to_thread(self._discard)

    def _discard(self) -> None:
        for name in [*self._lists, *(self._diff.names if self._diff else ())]:
            try:
                self._desk.store.remove(name)
            except OSError as error:
                _log.warning("chunk of a publish that was given up stays", chunk=short(name), reason=str(error))

    # -- encoding -------------------------------------------------------------------------------------------

    def _copy(self) -> tuple[Building, DiffResult]:
        """Take the bytes into a slot and send nothing: the hosts have them."""
        draft = self._draft
        building = self._replica.slots.begin(draft.source.layout, draft.source)
        try:
            found = DiffResult(bytearray(building.digests(self._desk.threads)))
            draft.source.check_unchanged()
        except BaseException:
            building.abort()
            raise
        return building, found

    async def _encode(self) -> tuple[Building, DiffResult]:
        """Run the pass in threads while pages of what it made go out."""
        draft = self._draft
        building = await self._begin(draft.parent)
        try:
            opening, announcement = self._opening()
            if self._draft.streamed:
                self._announce(announcement)
            pages = Pages(opening, self._key, self._desk.fleet, streamed=self._draft.streamed)
            loop = asyncio.get_running_loop()
            sealer = ChunkSealer(opening, 0)
            with contextlib.ExitStack() as stack:
                parent = None
                if draft.parent is not None:
                    files = stack.enter_context(self._replica.slots.hold(draft.parent))
                    parent = Parent(files, await asyncio.to_thread(self._parent_digests), draft.parent_checks)
                job_bytes, chunk_bytes = self._sizes(opening)
                diff = self._diff = Diff(
                    draft.source,
                    parent,
                    building,
                    self._desk.store,
                    sealer.seal,
                    made=lambda made: hand_over(loop, pages.add, made),
                    advanced=lambda size: hand_over(loop, self._advance, size),
                    codec=self._desk.codec,
                    job_bytes=job_bytes,
                    chunk_bytes=chunk_bytes if draft.parent is None else MAX_CHUNK_BYTES,
                    threads=self._desk.threads,
                )
                try:
                    found = await stoppable(diff)
                finally:
                    pages.close()
            if not self._draft.streamed:
                self._announce(announcement)
            pages.flush()
        except BaseException as error:
            await asyncio.to_thread(building.abort)
            _log.warning("publish given up", stream=draft.stream, version=draft.version, reason=str(error))
            raise
        if found.distrusted_blocks:
            _log.error("blocks of the parent were damaged and sent whole", blocks=found.distrusted_blocks)
        if found.mended_jobs:
            _log.error("the spare slot was damaged and got the parent's bytes", runs=found.mended_jobs)
        return building, found

    async def _begin(self, source: Slot | None) -> Building:
        """A slot to build in. Work in the background lets go of its slots when it must."""
        while True:
            try:
                return await owned(
                    partial(self._replica.slots.begin, self._draft.source.layout, source), Building.abort
                )
            except SlotsBusyError:
                if not await self._make_way():
                    raise

    def _opening(self) -> tuple[Opening, list[Signed]]:
        """The opening, and what announces it."""
        draft = self._draft
        assert self._layout is not None
        opening = Opening(
            draft.stream,
            draft.epoch,
            draft.version,
            draft.parent.manifest if draft.parent else b"",
            draft.attempt,
            self._size,
            (OpeningPart(self._desk.fleet.node, draft.key, 0, self._layout),),
            build_roster(
                self._desk.fleet.swarm.gossip.lively(),
                self._desk.fleet.node,
                int(self._patch_share() * self._size / MIN_CHUNK_BYTES),
            ),
        )
        body = signed(ObjectKind.OPENING, opening, self._key)
        return opening, [self._header(Subject.OPENING, body), body]

    def _announce(self, opening: list[Signed]) -> None:
        self._desk.announce(opening)
        draft = self._draft
        _log.info("announced", stream=draft.stream, version=draft.version, attempt=short(draft.attempt))

    def _parent_digests(self) -> bytes:
        return b"" if self._known is None else read_digests(self._desk.store, self._known)

    def _sizes(self, opening: Opening) -> tuple[int, int]:
        """(input of one job, contents of one chunk), in bytes: so that every border has chunks to bring in."""
        share = self._patch_share()
        target = share * self._size / chunks_for(len(site.borders) for site in opening.roster)
        chunk = int(min(max(target, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES))
        memory = max(self._desk.memory_limit // (4 * self._desk.threads), MIN_JOB_BYTES)
        return int(min(max(chunk / share, MIN_JOB_BYTES), MAX_JOB_BYTES, memory)), chunk

    def _patch_share(self) -> float:
        """The patch over the version, by what the last one was."""
        known = self._known
        if self._draft.parent is None:
            return 1.0
        if known is None or known.kind is not Route.STEP or not self._size:
            return FIRST_PATCH_SHARE
        return max(sum(part.size for part in known.parts) / self._size, 1e-5)

    def _advance(self, size: int) -> None:
        self._done_bytes += size
        self._progress(self._done_bytes, self._size)

    # -- finishing ------------------------------------------------------------------------------------------

    async def _finish(self, building: Building, found: DiffResult, *, register_only: bool) -> tuple[Slot, Transition]:
        """Sign, make durable, commit, announce: from here on the version exists."""
        began = time.perf_counter()
        draft = self._draft
        objects: list[Signed] = []
        try:
            manifest, transition, objects = await asyncio.to_thread(self._sign, found, register_only=register_only)
            await asyncio.to_thread(self._desk.catalog.put_objects, objects)
            slot = await asyncio.to_thread(
                building.commit, draft.epoch, draft.version, manifest, draft.label, proven=True
            )
        except BaseException:
            await asyncio.to_thread(building.abort)
            await asyncio.to_thread(self._take_back, objects)
            await self._give_up()
            raise
        for kind, _, data in objects:
            self._desk.fleet.publish(kind, data)
        self._replica.committed(slot)
        self._replica.make_twin_of((transition,))
        self._seconds["commit"] = time.perf_counter() - began
        _log.info("published", stream=draft.stream, version=draft.version, manifest=short(manifest))
        return slot, transition

    def _take_back(self, objects: list[Signed]) -> None:
        """Not announced yet: a restart must not find a version that its publisher was told has failed."""
        try:
            self._desk.catalog.forget([name for _, name, _ in objects], durable=True)
        except StorageError as error:
            _log.error("version that failed stays in the catalog", version=self._draft.version, reason=str(error))

    def _sign(self, found: DiffResult, *, register_only: bool) -> tuple[bytes, Transition, list[Signed]]:
        draft, desk = self._draft, self._desk
        assert self._layout is not None
        desk.store.sync(made.name for made in found.chunks)
        digests = self._keep_list(bytes(found.digests))
        index = self._keep_list(b"".join(INDEX_ENTRY.pack(made.name, made.size) for made in found.chunks))
        part = TransitionPart(
            desk.fleet.node,
            draft.key,
            0,
            len(found.chunks),
            sum(made.size for made in found.chunks),
            self._layout,
            digests,
            index,
        )
        manifest = signed(
            ObjectKind.MANIFEST,
            Manifest(
                draft.stream,
                draft.epoch,
                draft.version,
                self._head,
                draft.attempt,
                draft.label,
                self._size,
                (ManifestPart(self._layout.root, digests.root),),
            ),
            self._key,
        )
        target = manifest[1]
        if register_only:
            kind, source = Route.BASE, target
        elif draft.parent is None:
            kind, source = Route.FULL, b""
        else:
            kind, source = Route.STEP, draft.parent.manifest
        transition = Transition(draft.stream, draft.epoch, draft.version, kind, source, target, draft.attempt, (part,))
        record = signed(ObjectKind.TRANSITION, transition, self._key)
        headers = [self._header(Subject.MANIFEST, manifest), self._header(Subject.TRANSITION, record)]
        return target, transition, [*headers, manifest, record]

    def _header(self, subject: Subject, body: Signed) -> Signed:
        header = Header(subject, self._draft.stream, self._draft.epoch, self._draft.version, body[1])
        return signed(ObjectKind.HEADER, header, self._key)

    def _result(self, slot: Slot, transition: Transition, found: DiffResult) -> Published:
        return Published(
            slot,
            self._size,
            sum(part.size for part in transition.parts),
            found.elements,
            found.changed,
            len(found.chunks),
            found.seconds | self._seconds,
            bytes(found.checks),
        )
