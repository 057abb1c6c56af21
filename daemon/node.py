"""Node: assembles one daemon from its parts, and answers for it on the local socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Final

import structlog

from ..protocol.codec.chunk import CodecOptions, warm_up
from ..protocol.effects import Dropped, HeadMoved, IndexHere, RouteReady, StreamKnown
from ..protocol.ids import short
from ..storage.catalog import Catalog
from ..storage.chunks import ChunkStore
from ..storage.slots import StreamSlots
from .config import Config
from .fleet.enrol import Issuer
from .fleet.fleet import Fleet, LocalEffect
from .fleet.identity import Identity
from .fleet.listener import bind
from .home import Home
from .local.api import LocalConfig, serve_local
from .making import Desk
from .publisher import Publisher
from .replica import Replica
from .retention import delete_chunks, surplus
from .service import NodeService
from .units import parse_address

_log: Final = structlog.get_logger(__name__)

LEASE_CHECK_S: Final = 1.0
RETENTION_S: Final = 30.0


async def serve(root: Path, config: Config, identity: Identity) -> None:
    """Run a daemon on the home at `root` until cancelled. Raises DaemonError when it cannot start."""
    home = Home.at(root)
    listening = bind(config.node.listen) if config.node.listen else None
    with contextlib.ExitStack() as stack:
        if listening is not None:
            stack.callback(listening.close)
        await asyncio.to_thread(warm_up)
        catalog = Catalog(home.catalog)
        stack.callback(catalog.close)
        store = ChunkStore(home.chunks)
        node = Node(config, identity, Issuer.of(home, identity, config), store, catalog)
        await node.run(listening)


class Node:
    """One running daemon: the fleet on one side, this host on the other, a replica for each stream between them."""

    def __init__(self, config: Config, identity: Identity, issuer: Issuer, store: ChunkStore, catalog: Catalog) -> None:
        self._config = config
        self._store = store
        self._catalog = catalog
        self._threads = os.cpu_count() or 1
        self._is_head = identity.publisher_key is not None
        self.replicas: dict[str, Replica] = {}
        self.fleet = Fleet(identity, config, issuer, store, catalog, self._take)
        desk = Desk(self.fleet, store, catalog, CodecOptions(), config.storage.memory_limit, self._threads)
        self.publisher = Publisher(identity, desk, self.replica)
        self.service = NodeService(self.fleet, self.replicas, self.publisher, config.streams.follows)
        self._tasks = asyncio.TaskGroup()

    async def run(self, listening: socket.socket | None) -> None:
        """Serve until cancelled."""
        local = self._config.local
        tcp = parse_address(local.tcp) if local.tcp else None
        token = local.token_file.read_text().strip() if tcp else ""
        async with (
            self._tasks,
            self.fleet.running(listening),
            serve_local(self.service, LocalConfig(local.socket, local.mode_bits, tcp, token)),
        ):
            self._tasks.create_task(self._expiring())
            self._tasks.create_task(self._retaining())
            _log.info("ready", node=short(self.fleet.node), site=self._config.node.site, socket=str(local.socket))
            await asyncio.Event().wait()

    def replica(self, stream: str) -> Replica:
        """The replica of a stream, made and started when it is new."""
        known = self.replicas.get(stream)
        if known is not None:
            return known
        storage = self._config.storage
        # The head keeps one slot more: the one that skip and full transitions are made from.
        count = min(storage.slots + 1, 4) if self._is_head else storage.slots
        slots = StreamSlots(storage.slot_dir / stream, stream, self._catalog, count=count, threads=self._threads)
        slots.open()
        base = self._config.stream[stream].base if stream in self._config.stream else None
        made = Replica(
            stream,
            slots,
            self.fleet,
            self._store,
            base=base,
            verify_first=storage.verify == "full",
            threads=self._threads,
        )
        self.replicas[stream] = made
        made.start()
        self._tasks.create_task(made.run())
        self.service.stream_appeared()
        return made

    def _take(self, effect: LocalEffect) -> None:
        """Do what the fleet wants done on this host."""
        match effect:
            case StreamKnown(stream) | HeadMoved(stream):
                if self._config.streams.follows(stream):
                    self.replica(stream).head_moved()
            case RouteReady(stream, route):
                if stream in self.replicas:
                    self.replicas[stream].route_ready(route)
            case IndexHere():
                for replica in self.replicas.values():
                    replica.lists_here()
            case Dropped(_, names):
                self._tasks.create_task(asyncio.to_thread(self._remove, names))

    def _remove(self, names: tuple[bytes, ...]) -> None:
        for name in names:
            self._store.remove(name)

    async def _expiring(self) -> None:
        while True:
            await asyncio.sleep(LEASE_CHECK_S)
            for replica in list(self.replicas.values()):
                await replica.expire_leases()

    async def _retaining(self) -> None:
        while True:
            await asyncio.sleep(RETENTION_S)
            for stream in list(self.replicas):
                await self._retain(stream)

    async def _retain(self, stream: str) -> None:
        gossip = self.fleet.swarm.gossip
        head = gossip.head_digest(stream)
        if head is None:
            return
        known = gossip.routes(stream)
        planned = self.fleet.view.planned(stream)
        keep = self._config.storage.retain_versions
        gone = surplus(known, head, keep, planned=planned, publisher=self._is_head)
        gone = [each for each in gone if self.fleet.view.has_chunks(each)]
        if gone:
            kept = [each for each in known if each not in gone]
            count = await asyncio.to_thread(delete_chunks, self._store, gone, kept)
            for each in gone:
                self.fleet.forget_chunks(each.attempt)
            _log.info("old chunks deleted", stream=stream, transitions=len(gone), chunks=count)
