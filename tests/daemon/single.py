"""One daemon inside the test's own event loop, without its command line: its publisher, replicas, store and catalog."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from patchswarm.daemon.config import Config
from patchswarm.daemon.fleet.enrol import Issuer
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.fleet.listener import bind
from patchswarm.daemon.home import Home
from patchswarm.daemon.node import Node
from patchswarm.storage.catalog import Catalog
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.slot_dir import open_slot_dir

from .nodes import UTC_NOW, Head, free_port, make_head, make_member


class Single:
    """A node, running as long as its context lasts."""

    def __init__(self, home: Home, config: Config) -> None:
        self.home = home
        self.config = config
        self.identity = Identity.load(home)
        self.catalog = Catalog(home.catalog)
        self.store = ChunkStore(home.chunks)
        slot_dir = open_slot_dir(config.storage.slot_dir, self.catalog)
        issuer = Issuer.of(home, self.identity, config)
        self.node = Node(config, self.identity, issuer, self.store, self.catalog, slot_dir, home.chunks)
        self.fleet = self.node.fleet

    async def publish(self, stream, directory, **options):
        return await self.node.publisher.publish(stream, directory, lambda *_: None, **options)

    async def committed(self, stream, version, within_s=30.0):
        """Wait until a version is committed here; its slot."""
        await until(lambda: stream in self.node.replicas, within_s)
        replica = self.node.replicas[stream]
        async with asyncio.timeout(within_s):
            while True:
                changed, current = replica.changes(), replica.current()
                if current is not None and current.version >= version:
                    return current
                await changed.wait()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Single]:
        listening = bind(self.config.node.listen) if self.config.node.listen else None
        self._task = task = asyncio.create_task(self.node.run(listening))
        try:
            await until(lambda: task.done() or self.config.local.socket.exists())
            yield self
            if task.done() and not task.cancelled():
                await task  # the daemon ended: say why
        finally:
            try:
                await self.stop()
            finally:
                if listening is not None:
                    listening.close()

    async def stop(self) -> None:
        """End the daemon before its context does, so that the home is free for another life."""
        self._task.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        finally:
            self.catalog.close()


async def until(condition, within_s=20.0):
    """Wait for what no event tells of: files that a thread deletes, what another daemon has heard."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def head_of(root: Path, *, tcp: bool = False, **storage) -> AsyncIterator[Single]:
    """A running head with this storage configuration, its API on loopback TCP as well where that is wanted."""
    made = make_head(root / "head")
    config = msgspec.structs.replace(made.config, storage=msgspec.structs.replace(made.config.storage, **storage))
    if tcp:
        local = msgspec.structs.replace(config.local, tcp=f"127.0.0.1:{free_port()}")
        config = msgspec.structs.replace(config, local=local)
    async with Single(made.home, config).running() as head:
        yield head


@contextlib.asynccontextmanager
async def member_of(
    head: Single,
    root: Path,
    name: str = "member",
    *,
    site: str = "b",
    enrolled: dt.datetime = UTC_NOW,
    listen: str = "",
) -> AsyncIterator[Single]:
    """A running member of the head's cluster that dials the head, and accepts nobody unless it has an address."""
    home = make_member(Head(head.home, head.config, head.identity), root / name, now=enrolled)
    node = msgspec.structs.replace(
        head.config.node, site=site, listen=listen, advertise=(), seeds=(head.config.node.listen,)
    )
    local = msgspec.structs.replace(head.config.local, socket=home.root / "s", tcp="")
    storage = msgspec.structs.replace(head.config.storage, slot_dir=home.root / "slots")
    config = msgspec.structs.replace(head.config, node=node, local=local, storage=storage)
    async with Single(home, config).running() as member:
        yield member


@contextlib.contextmanager
def short_path():
    """A short directory: a socket's path has at most 107 bytes."""
    root = Path(tempfile.mkdtemp(prefix="ps-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
