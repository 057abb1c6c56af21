"""Node: assembles one daemon from its parts, and answers for it on the local socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from ..protocol.codec.chunk import CodecOptions, warm_up
from ..protocol.effects import Dropped, HeadMoved, IndexHere, RouteReady, StreamKnown
from ..protocol.ids import short
from ..storage.catalog import Catalog
from ..storage.chunks import ChunkStore
from ..storage.errors import StorageError
from ..storage.recovery import open_catalog
from ..storage.scrub import ScrubReport, scrub_chunks
from ..storage.slot_dir import Found, SlotDirectory, open_slot_dir
from ..storage.slots import StreamSlots
from ..storage.space import Space
from . import memory
from .anchors import Anchors
from .attending import attend
from .background import in_thread
from .beacons import Beacons
from .blocks import BlockReader
from .config import Config, Local, Stream
from .desk import Desk
from .errors import HomeError
from .fleet.enrol import Issuer
from .fleet.fleet import Fleet, LocalEffect
from .fleet.identity import Identity
from .fleet.intake import ChunkStored
from .fleet.listener import bind
from .home import Home, read_token
from .joining import Joining
from .lives import Lives
from .local.api import LocalConfig, serve_local
from .local.gateway.run import configured, keep_gateway
from .local.rights import Right
from .manager import ServiceManager
from .metrics import Metrics
from .mirroring import Mirroring
from .patches import Patches
from .publisher import Publisher
from .replica import Replica
from .retention import Retention
from .room import Room
from .service import NodeService
from .units import parse_address
from .upkeep import Upkeep
from .witness import Witness

_log: Final = structlog.get_logger(__name__)

QUIET_S: Final = 2.0
"""How long a start may take before a reason is given."""

LEASE_CHECK_S: Final = 1.0
RETENTION_S: Final = 30.0


async def serve(root: Path, config: Config, identity: Identity, manager: ServiceManager) -> None:
    """Run a daemon on the home at `root` until cancelled. Raises DaemonError when it cannot start."""
    home = Home.at(root)
    listening = bind(config.node.listen) if config.node.listen else None
    with contextlib.ExitStack() as stack:
        if listening is not None:
            stack.callback(listening.close)
        memory.keep_freed()
        await _compile()
        _keep_what_is_loaded()
        try:
            catalog, rebuilt = open_catalog(home.catalog, config.storage.slot_dir)
            stack.callback(catalog.close)
            slot_dir = open_slot_dir(config.storage.slot_dir, catalog)
            store = ChunkStore(home.chunks)
        except (StorageError, OSError) as error:
            raise HomeError(str(error)) from None
        if rebuilt is not None:
            _log.error(
                "the catalog was damaged or lost and is made anew: what is missing in it comes from the other nodes",
                reason=rebuilt.reason,
                kept_as=str(rebuilt.kept_as or ""),
                objects=rebuilt.objects,
                leases_lost=rebuilt.leases_lost,
            )
        _tell(slot_dir)
        node = Node(config, identity, Issuer.of(home, identity, config), store, catalog, slot_dir, home.chunks)
        await node.run(listening, partial(attend, node, home, manager))


async def _compile() -> None:
    """Have the codec's kernels compiled or loaded; nothing answers before, so say it when that takes a while."""
    slow = asyncio.get_running_loop().call_later(
        QUIET_S, _log.info, "compiling kernels, once on this host: half a minute or so"
    )
    try:
        await asyncio.to_thread(warm_up)
    finally:
        slow.cancel()


def _keep_what_is_loaded() -> None:
    """Take modules and kernels out of the garbage collector's rounds.

    Looking through a hundred and fifty thousand objects that stay stops every thread for a tenth of a second, several
    times in a publish.
    """
    gc.collect()
    gc.freeze()


def _tell(slot_dir: SlotDirectory) -> None:
    """Say what is unusual about the slot directory."""
    match slot_dir.found:
        case Found.EMPTIED:
            _log.warning("slot_dir is empty, it was not before: versions are rebuilt", slot_dir=str(slot_dir.path))
        case Found.MOVED:
            _log.info("slot_dir was moved", slot_dir=str(slot_dir.path))
        case _:
            pass


class Node:
    """One running daemon: the fleet on one side, this host on the other, a replica for each stream between them."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        issuer: Issuer,
        store: ChunkStore,
        catalog: Catalog,
        slot_dir: SlotDirectory,
        chunks: Path,
    ) -> None:
        self.config = config
        self._store = store
        self._catalog = catalog
        self._threads = len(os.sched_getaffinity(0))
        self._is_head = identity.publisher_key is not None
        self._slot_dir = slot_dir
        space = self._space = Space()
        self._chunks = chunks
        # On a file system of their own the slots may take everything: only the home's has a catalog to go on.
        shared = slot_dir.path.stat().st_dev == chunks.stat().st_dev
        self._slot_space = space if shared else Space(margin_bytes=0)
        self.replicas: dict[str, Replica] = {}
        self.upkeeps: dict[str, Upkeep] = {}
        self._unusable: set[str] = set()
        self.fleet = Fleet(identity, config, issuer, store, catalog, self._take)
        desk = Desk(self.fleet, store, catalog, CodecOptions(), config.storage.memory_limit, self._threads)
        self._desk = desk
        self._key = identity.publisher_key
        self._anchors: dict[str, Anchors] = {}
        self.publisher = Publisher(identity, desk, self.replica, self._make_way)
        self.fleet.blocks.read = BlockReader(self.replicas).read
        self._room = Room(space, chunks, self._slots_of)
        self.fleet.swarm.fetch.routing.room = self._room.ask
        self._retention = Retention(self.fleet, store, config.storage, publisher=self._is_head)
        self._mirroring = None
        if config.mirror.url:
            self._mirroring = Mirroring(
                config.mirror,
                desk,
                self._key,
                follows=config.streams.follows,
                owns=self.publisher.owns,
                report=self._report,
            )
        metrics = Metrics(self.fleet, self.replicas)
        lives = Lives(metrics.observe)
        self._witness = Witness(self.fleet, lives)
        self.service = NodeService(
            self.fleet,
            self.replicas,
            self.upkeeps,
            self.publisher,
            config.streams.follows,
            lives,
            metrics,
            Patches(self.fleet, store),
            config.storage.slot_dir,
            self._mirroring.problems if self._mirroring is not None else list,
        )
        self._tasks = asyncio.TaskGroup()

    async def run(
        self, listening: socket.socket | None, attend: Callable[[], Coroutine[object, object, None]] | None = None
    ) -> None:
        """Serve until cancelled; `attend` runs from when the sockets answer."""
        local = self.config.local
        async with (
            self._tasks,
            self.fleet.running(listening),
            serve_local(self.service, _local_config(local)),
        ):
            self._tasks.create_task(self._expiring())
            self._tasks.create_task(self._retaining())
            self._tasks.create_task(self._scrubbing())
            if self._key is not None:
                self._tasks.create_task(Beacons(self.publisher, self.fleet, self._key).run())
            if self._mirroring is not None:
                self._tasks.create_task(self._mirroring.run())
            if self.config.gateway.listen:
                gateway = configured(self.config.gateway, local.socket)
                self._tasks.create_task(keep_gateway(gateway))
            _log.info("ready", node=short(self.fleet.node), site=self.config.node.site, socket=str(local.socket))
            if attend is not None:
                self._tasks.create_task(attend())
            try:
                await asyncio.Event().wait()
            finally:
                await self.fleet.leave()

    def reconfigure(self, config: Config) -> None:
        """Go on with another configuration, of which `reloading.RELOADABLE` may differ."""
        self.config = config
        self.fleet.set_limits(config.limits)
        self._retention.set_limits(config.storage)
        for upkeep in self.upkeeps.values():
            upkeep.set_pace(every_s=config.storage.verify_every_s, share=config.storage.upkeep_share)

    def replica(self, stream: str) -> Replica:
        """The replica of a stream, made and started when it is new."""
        known = self.replicas.get(stream)
        if known is not None:
            return known
        storage = self.config.storage
        # The head keeps one slot more: the one that skip and full transitions are made from.
        count = min(storage.slots + 1, 4) if self._is_head else storage.slots
        slots = StreamSlots(
            storage.slot_dir / stream, stream, self._catalog, count=count, threads=self._threads, space=self._slot_space
        )
        slots.open()
        options = self.config.stream.get(stream, Stream())
        pause_s = 0.0 if self._slot_dir.in_memory else None
        made = Replica(
            stream,
            slots,
            self.fleet,
            self._store,
            base=options.base,
            verify_first=storage.verify == "full",
            min_interval_s=pause_s if storage.min_interval_s == "auto" else storage.min_interval_s,
            threads=self._threads,
        )
        self.replicas[stream] = made
        upkeep = Upkeep(made, self.fleet.blocks.fetch, every_s=storage.verify_every_s, share=storage.upkeep_share)
        self.upkeeps[stream] = upkeep
        made.start()
        self._tasks.create_task(made.run())
        self._tasks.create_task(upkeep.run())
        self._tasks.create_task(self._tending(made))
        self._tasks.create_task(self._witness.follow(made))
        self._tasks.create_task(Joining(made, self.fleet).run())
        if self._key is not None:
            anchors = Anchors(
                made,
                self._desk,
                self._key,
                options,
                partial(self.publisher.holds_back, stream),
                partial(self._space.reserve, self._chunks, what=f"an anchor of {stream}"),
            )
            self._anchors[stream] = anchors
            self._tasks.create_task(anchors.run())
        self.service.stream_appeared()
        return made

    async def _make_way(self, stream: str) -> bool:
        """End background work on the slots of a stream, for a publish."""
        return stream in self._anchors and await self._anchors[stream].give_way()

    def _take(self, effect: LocalEffect) -> None:
        """Do what the fleet wants done on this host."""
        self._witness.saw(effect)
        match effect:
            case StreamKnown(stream) | HeadMoved(stream):
                if self.config.streams.follows(stream) and stream not in self._unusable:
                    self._follow(stream)
            case RouteReady(stream, route):
                if stream in self.replicas:
                    self.replicas[stream].route_ready(route)
            case ChunkStored(name):
                for stream in self.fleet.streams_of(name):
                    if stream in self.replicas:
                        self.replicas[stream].chunk_came()
            case IndexHere():
                for replica in self.replicas.values():
                    replica.lists_here()
            case Dropped(_, names):
                self._remove_soon(names)

    def _report(self, stream: str, what: str) -> None:
        """Put what went wrong with a stream where the operator sees it."""
        if stream in self.replicas:
            self.replicas[stream].report(what)

    def _remove_soon(self, names: tuple[bytes, ...]) -> None:
        work = asyncio.to_thread(self._remove, names)
        try:
            self._tasks.create_task(work)
        except RuntimeError:  # the node is stopping, in the middle of a publish: no task is begun any more
            work.close()
            self._remove(names)

    def _remove(self, names: tuple[bytes, ...]) -> None:
        with _going_on("chunks not deleted"):
            for name in names:
                self._store.remove(name)

    def _follow(self, stream: str) -> None:
        try:
            self.replica(stream).head_moved()
        except (StorageError, OSError) as error:  # its folder is not ours, or of a later format: others go on
            self._unusable.add(stream)
            _log.error("stream cannot be followed", stream=stream, reason=str(error))

    async def _expiring(self) -> None:
        """Each second: end leases that ran out, and make room for what waits for it."""
        while True:
            await asyncio.sleep(LEASE_CHECK_S)
            with _going_on("leases not looked after"):
                for replica in list(self.replicas.values()):
                    await replica.expire_leases()
            with _going_on("no room made"):
                await self._make_room()

    async def _make_room(self) -> None:
        """Where there is no room for what is wanted, delete what nobody needs; if there is none still, say so."""
        if not self._room.short:
            return
        for replica in list(self.replicas.values()):
            await self._retention.shrink(replica)
        await self._retention.sweep(at_once=True)
        for stream in list(self._room.short):
            self.fleet.rescan(stream)  # asks for room once more
        for stream, what in self._room.short.items():
            self.replicas[stream].report(what)

    def _slots_of(self, stream: str) -> StreamSlots | None:
        return self.replicas[stream].slots if stream in self.replicas else None

    async def _retaining(self) -> None:
        while True:
            await asyncio.sleep(RETENTION_S)
            for replica in list(self.replicas.values()):
                with _going_on("old chunks not deleted"):
                    await self._retention.run(replica)
            with _going_on("chunks that belong to nothing not deleted"):
                await self._retention.sweep()

    async def _tending(self, replica: Replica) -> None:
        """After each commit: delete what is over the limits."""
        while True:
            await replica.changes().wait()
            with _going_on("old chunks not deleted"):
                await self._retention.run(replica)

    async def _scrubbing(self) -> None:
        """Hash every chunk again now and then; a damaged one is taken away, and fetched again where it is wanted."""
        while True:
            await asyncio.sleep(self.config.storage.verify_every_s)
            report = ScrubReport()
            with _going_on("chunks not checked"):
                await in_thread(partial(scrub_chunks, self._store, report=report), self.config.storage.upkeep_share)
            if report.damaged_chunks:
                _log.error("damaged chunks removed", chunks=[name.hex()[:12] for name in report.damaged_chunks[:8]])
                for replica in self.replicas.values():
                    replica.chunks_lost(report.damaged_chunks)


def _local_config(local: Local) -> LocalConfig:
    """Where the local API listens, and what it takes. Raises HomeError for a token that cannot be read."""
    others = Right.of(local.socket_rights)
    if not local.tcp:
        return LocalConfig(local.socket, local.mode_bits, others=others)
    publish, admin = (
        read_token(path) if path.exists() else "" for path in (local.publish_token_file, local.admin_token_file)
    )
    return LocalConfig(
        local.socket, local.mode_bits, parse_address(local.tcp), read_token(local.token_file), publish, admin, others
    )


@contextlib.contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Work that is done again soon: a disk or catalog that fails now must not end the daemon, which still serves."""
    try:
        yield
    except (StorageError, OSError) as error:
        _log.error(what, reason=str(error))
