"""Service: what the local API asks of a node, answered from its fleet, replicas and publisher."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from ..protocol.errors import ProtocolError
from ..protocol.manifest import Manifest
from ..protocol.messages import ObjectKind
from ..storage.errors import LeaseGoneError, SlotGoneError, UnknownLeaseError
from ..storage.slots import Lease, Slot
from .deltas import Deltas
from .describing import known_version, lease_info, peer_statuses, publish_result, slot_check, version_info
from .errors import ConflictError, NotRisingError, RefusedError
from .fleet.fleet import Fleet
from .lives import Lives
from .local.errors import (
    InvalidRequestError,
    LocalError,
    NotPublisherError,
    PublishBusyError,
    UnknownStreamError,
    UnknownVersionError,
    VersionNotReadyError,
    VersionNotRisingError,
)
from .local.model import (
    HeadInfo,
    LastError,
    LeaseInfo,
    NodeStatus,
    PeerStatus,
    Progress,
    PublishProgress,
    PublishRequest,
    PublishResult,
    Readiness,
    SlotCheck,
    StreamState,
    StreamStatus,
    VersionInfo,
    VersionLife,
)
from .local.observing import ChunkMap, PatchContents, PatchInfo
from .local.service import OpenDelta, OpenVersion
from .metrics import Metrics
from .patches import Patches
from .publisher import Publisher
from .replica import Replica
from .upkeep import Upkeep
from .watch import Watch

HTTP_LEASE_S: Final = 24 * 3600.0
"""An open reader's own lease: it ends with the reader, which `read_timeout_s` bounds."""


class NodeService:
    """Implements `local.service.LocalService`."""

    def __init__(
        self,
        fleet: Fleet,
        replicas: dict[str, Replica],
        upkeeps: dict[str, Upkeep],
        publisher: Publisher,
        follows: Callable[[str], bool],
        lives: Lives,
        metrics: Metrics,
        patches: Patches,
        slot_dir: Path,
        mirror_problems: Callable[[], list[str]],
    ) -> None:
        self._fleet = fleet
        self._mirror_problems = mirror_problems
        self._replicas = replicas
        self._upkeeps = upkeeps
        self._publisher = publisher
        self._follows = follows
        self._lives = lives
        self._metrics = metrics
        self._patches = patches
        self._slot_dir = slot_dir
        self._deltas = Deltas(fleet)
        self._appeared = asyncio.Event()
        self._watch = Watch(fleet, publisher)

    def stream_appeared(self) -> None:
        """Wake those who wait for a stream that this node did not know yet."""
        self._appeared.set()
        self._appeared = asyncio.Event()

    # -- streams --------------------------------------------------------------------------------------------

    def streams(self) -> list[StreamStatus]:
        """Every stream this node follows, sorted by name."""
        return [self.status(stream) for stream in sorted(self._replicas)]

    def status(self, stream: str) -> StreamStatus:
        """One stream."""
        replica = self._replica(stream)
        gossip = self._fleet.swarm.gossip
        current = replica.current()
        head = gossip.head_header(stream)
        lag = self._fleet.view.lag(stream, (current.epoch, current.version) if current else None)
        failure = replica.failure
        return StreamStatus(
            stream=stream,
            state=self._state(replica, current),
            publisher=self._publisher.owns(stream),
            current=version_info(replica, current) if current else None,
            head=HeadInfo(epoch=head.epoch, version=head.version, manifest=head.digest.hex()) if head else None,
            lag=lag.versions,
            lag_s=lag.seconds,
            proven=current.proven if current else False,
            progress=self._progress(stream),
            last_error=LastError(at=failure.at, detail=failure.detail) if failure else None,
            head_age_s=self._watch.head_age_s(stream),
        )

    def _state(self, replica: Replica, current: Slot | None) -> StreamState:
        head = self._fleet.swarm.gossip.head_header(replica.stream)
        if self._publisher.is_publishing(replica.stream):
            return StreamState.PUBLISHING
        if replica.rebuilding is not None:
            return StreamState.REBUILDING
        if replica.unchecked() is not None:
            return StreamState.VERIFYING
        if head is None:
            return StreamState.WAITING if current is None else StreamState.CURRENT
        if current is not None and current.manifest == head.digest:
            return StreamState.CURRENT
        if replica.failure is not None:
            return StreamState.ERROR
        return StreamState.FETCHING if self._fleet.view.planned(replica.stream) else StreamState.BEHIND

    def _progress(self, stream: str) -> Progress | None:
        checking = self._upkeeps[stream].checking
        if checking is not None:
            version, done, total = checking.version, checking.done_bytes, checking.total_bytes
            return Progress(version=version, stage="verify", done_bytes=done, total_bytes=total)
        fetching = self._fleet.view.fetching(stream)
        if fetching is None:
            return None
        version, done, total = fetching
        return Progress(version=version, stage="fetch", done_bytes=done, total_bytes=total)

    async def versions(self, stream: str) -> list[VersionInfo]:
        """Committed versions that this node knows, newest first."""
        replica = self._replica(stream)
        slots = {slot.manifest: slot for slot in replica.slots.slots() if not slot.twin}
        known = [
            version_info(replica, slots[name]) if name in slots else known_version(name, manifest)
            for name, manifest in self._manifests(stream)
        ]
        return sorted(known, key=lambda info: (info.epoch, info.version), reverse=True)

    def _manifests(self, stream: str) -> list[tuple[bytes, Manifest]]:
        return [(name, each) for name, each in self._fleet.swarm.gossip.manifests.items() if each.stream == stream]

    async def wait(
        self, stream: str, at_least: int, timeout_s: float, *, epoch: int | None = None
    ) -> VersionInfo | None:
        """The current version as soon as it is at least this one, or None after `timeout_s`.

        A stream that nobody has announced yet may be waited for too: an engine starts before its trainer.
        """
        deadline = time.monotonic() + timeout_s
        while stream not in self._replicas and timeout_s > 0 and self._follows(stream):
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                    await self._appeared.wait()
            except TimeoutError:
                raise VersionNotReadyError(
                    f"stream {stream!r} is not announced after {timeout_s:g} s", remedy="wait longer, or check its name"
                ) from None
        replica = self._replica(stream)
        while True:
            changed = replica.changes()
            current = replica.current()
            if current is not None and _reached(current, at_least, epoch):
                return version_info(replica, current)
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                    await changed.wait()
            except TimeoutError:
                return None

    # -- publishing and reading -----------------------------------------------------------------------------

    async def publish(
        self, stream: str, request: PublishRequest, progress: Callable[[PublishProgress], None]
    ) -> PublishResult:
        """Publish a checkpoint directory."""

        def relay(done_bytes: int, total_bytes: int) -> None:
            progress(PublishProgress(stage="encode", done_bytes=done_bytes, total_bytes=total_bytes))

        try:
            made = await self._publisher.publish(
                stream,
                Path(request.directory),
                relay,
                version=request.version,
                label=request.label,
                register_only=request.base,
                streamed=request.streamed,
            )
        except RefusedError as error:
            raise NotPublisherError(str(error), remedy="") from None
        except NotRisingError as error:
            raise VersionNotRisingError(str(error), remedy="", newest=error.newest) from None
        except ConflictError as error:
            raise PublishBusyError(str(error), remedy="") from None
        return publish_result(made)

    async def lease(self, stream: str, version: int | None, ttl_s: float, group: Sequence[str] = ()) -> LeaseInfo:
        """Hold a version's slot, once all of a group have the version."""
        replica = self._replica(stream)
        lease = await self._take_lease(replica, version, ttl_s, durable=True)
        try:
            for prefix in group:
                self._check_host(prefix, lease)
        except LocalError:
            await self._let_go(replica, lease)
            raise
        return lease_info(replica, lease)

    def _check_host(self, prefix: str, lease: Lease) -> None:
        """Raise VersionNotReadyError unless the one node whose id begins so says that it has the lease's version."""
        records = self._fleet.swarm.gossip.nodes
        found = [node for node in records if node.hex().startswith(prefix)]
        if len(found) != 1:
            what = f"names {len(found)} nodes" if found else "names no node that is known here"
            raise InvalidRequestError(f"group: {prefix!r} {what}", remedy="'patchswarm peers --json' shows their ids")
        head = next((each for each in records[found[0]].heads if each.stream == lease.stream), None)
        if head is None or head.manifest != lease.manifest:
            has = f"version {head.version}" if head else "nothing yet"
            raise VersionNotReadyError(
                f"version {lease.version} of {lease.stream} is not on all hosts of the group: {prefix} has {has}"
            )

    async def renew(self, stream: str, lease: str, ttl_s: float) -> LeaseInfo:
        """Hold it `ttl_s` from now."""
        replica = self._replica(stream)
        renewed = await asyncio.to_thread(replica.slots.renew, lease, ttl_s, time.time())
        return lease_info(replica, renewed)

    async def release(self, stream: str, lease: str) -> None:
        """Let go."""
        replica = self._replica(stream)
        await asyncio.to_thread(replica.slots.release, lease)
        replica.slot_freed()

    async def verify(self, stream: str, *, repair: bool) -> list[SlotCheck]:
        """Hold every slot against its digest table."""
        self._replica(stream)
        return [slot_check(found) for found in await self._upkeeps[stream].check_all(mend=repair)]

    @asynccontextmanager
    async def open_version(self, stream: str, version: int | None) -> AsyncIterator[OpenVersion]:
        """Hold a version open for one reader."""
        replica = self._replica(stream)
        lease = await self._take_lease(replica, version, HTTP_LEASE_S, durable=False)
        slot = replica.slots.find(lease.manifest)
        voided = replica.readers.watch(lease.manifest)
        try:
            if slot is None:
                raise UnknownVersionError(f"version {lease.version} of {stream} is not here any more")
            yield OpenVersion(lease.path, slot.layout, version_info(replica, slot), voided)
        finally:
            replica.readers.unwatch(lease.manifest, voided)
            await self._let_go(replica, lease)

    @asynccontextmanager
    async def open_delta(self, stream: str, start: int, end: int | None) -> AsyncIterator[OpenDelta]:
        """What changes from one version to another."""
        async with self._deltas.open(self._replica(stream), start, end) as opened:
            yield opened

    async def _let_go(self, replica: Replica, lease: Lease) -> None:
        """End a reader's lease; it may be over already, by its time or with a withdrawn version."""
        with contextlib.suppress(UnknownLeaseError, LeaseGoneError):
            await asyncio.to_thread(replica.slots.release, lease.id)
        replica.slot_freed()

    async def _take_lease(self, replica: Replica, version: int | None, ttl_s: float, *, durable: bool) -> Lease:
        try:
            # A thread's turn may take longer to come than the lease itself takes.
            at_once = replica.slots.try_lease(version, ttl_s, time.time(), durable=durable)
        except SlotGoneError as error:
            raise UnknownVersionError(str(error)) from None
        if at_once is not None:
            return at_once
        taking = asyncio.ensure_future(
            asyncio.to_thread(replica.slots.lease, version, ttl_s, time.time(), durable=durable)
        )
        try:
            return await asyncio.shield(taking)
        except SlotGoneError as error:
            raise UnknownVersionError(str(error)) from None
        except asyncio.CancelledError:
            with contextlib.suppress(SlotGoneError):  # nobody will hear of it: a slot must not be held for that
                await self._let_go(replica, await taking)
            raise

    # -- watching -------------------------------------------------------------------------------------------

    def lives(self, stream: str) -> list[VersionLife]:
        """What happened to the newest versions, newest first."""
        self._replica(stream)
        return self._lives.of(stream)

    def listening(self, stream: str) -> contextlib.AbstractContextManager[asyncio.Queue[VersionLife]]:
        """A queue that gets a version's life each time something happens to it."""
        self._replica(stream)
        return self._lives.listening(stream)

    def patches(self, stream: str) -> list[PatchInfo]:
        """The transitions that are known, newest version first."""
        self._replica(stream)
        return self._patches.known(stream)

    async def patch(self, stream: str, version: int) -> PatchContents:
        """What a patch changes."""
        self._replica(stream)
        return await self._patches.contents(stream, version)

    def fetching(self, stream: str) -> list[ChunkMap]:
        """What is on its way."""
        self._replica(stream)
        return self._patches.fetching(stream)

    def metrics(self) -> bytes:
        """Everything that is counted, in Prometheus's text format."""
        return self._metrics.text()

    # -- the node -------------------------------------------------------------------------------------------

    def peers(self) -> list[PeerStatus]:
        """The other nodes this one knows."""
        return peer_statuses(self._fleet)

    def node(self) -> NodeStatus:
        """The node itself, and what is wrong with it."""
        fleet = self._fleet
        return NodeStatus(
            node=fleet.node.hex(),
            site=fleet.site,
            certificate_ends_at=fleet.standing.ends_at,
            problems=[
                *fleet.standing.problems(),
                *self._watch.problems(self._replicas),
                *self._mirror_problems(),
            ],
            slot_dir=str(self._slot_dir),
        )

    async def accept(self, kind: str, data: bytes) -> bool:
        """Take a word of the CA, make it durable and spread it."""
        try:
            return await self._fleet.accept(ObjectKind[kind.upper()], data)
        except ProtocolError as error:
            raise InvalidRequestError(
                f"not to be spread: {error}", remedy="have it signed by this cluster's CA, or a key that it let issue"
            ) from None

    def ready(self) -> Readiness:
        """Whether this node serves current weights."""
        reasons = [reason for stream in sorted(self._replicas) if (reason := self._unready(stream))]
        return Readiness(not reasons, reasons)

    def close(self) -> None:
        """Let go of what is kept for readers."""
        self._deltas.close()

    def _unready(self, stream: str) -> str | None:
        status, unchecked = self.status(stream), self._replicas[stream].unchecked()
        if unchecked is not None:
            return f"stream {stream}: version {unchecked.version} is being verified after a reboot"
        if status.state is StreamState.CURRENT or status.publisher:
            return None
        if status.current is None:
            return f"stream {stream}: nothing committed yet"
        return f"stream {stream}: {status.state}, {status.lag} versions behind" if status.lag > 0 else None

    def _replica(self, stream: str) -> Replica:
        replica = self._replicas.get(stream)
        if replica is None:
            known = ", ".join(sorted(self._replicas)) or "none yet"
            raise UnknownStreamError(f"this node follows no stream {stream!r}; it follows: {known}")
        return replica


def _reached(current: Slot, at_least: int, epoch: int | None) -> bool:
    if epoch is None:
        return current.version >= at_least
    return current.order >= (epoch, at_least)
