"""Roles: what one process of a measurement does: send, relay or take in. Run as a module, one role each.

    python -m bulkpath.roles ROLE KIND PORT CHUNKS SIZE FOLDER

PORT is the next process's, 0 for the last. Prints {"port": …} when it listens, {"cpu_s": …, "wall_s": …} at its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import uvloop

from patchswarm.daemon import memory
from patchswarm.daemon.config import Limits
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.fleet.lane import Lane
from patchswarm.daemon.fleet.traffic import Kept, Traffic
from patchswarm.daemon.home import Home
from patchswarm.protocol.ids import digest
from patchswarm.storage.chunks import ChunkStore

from .channels import Control, Sender, connect, listening
from .material import DISTINCT, contents, sealer

WINDOW = 16
"""Chunks that a process has taken and not finished with; beyond it, it reads no more."""

MEMORY_LIMIT = 512 * 1024 * 1024


class Clock:
    """CPU and wall seconds of this process from `start` on."""

    def __init__(self) -> None:
        self._since: tuple[float, float] | None = None

    def start(self) -> None:
        """Begin, once."""
        if self._since is None:
            self._since = (time.process_time(), time.monotonic())

    def say(self) -> None:
        """Print what was used."""
        assert self._since is not None
        cpu_s, wall_s = self._since
        print(json.dumps({"cpu_s": time.process_time() - cpu_s, "wall_s": time.monotonic() - wall_s}), flush=True)


async def send(out: Sender, chunks: int, size: int, clock: Clock, *, seal: bool) -> None:
    """Send chunks, sealing and naming each in a thread ahead of the socket, or sealed beforehand."""
    loop = asyncio.get_running_loop()
    plain = [contents(number, size) for number in range(DISTINCT)]
    making = sealer()

    def make(number: int) -> tuple[bytes, bytes]:
        sealed = making.seal(number, plain[number])
        return digest(sealed), sealed

    ready = [] if seal else [make(number) for number in range(DISTINCT)]
    clock.start()
    ahead: asyncio.Queue[asyncio.Future[tuple[bytes, bytes]]] = asyncio.Queue(4)

    async def prepare() -> None:
        for number in range(chunks):
            await ahead.put(loop.run_in_executor(None, make, number % DISTINCT))

    async with asyncio.TaskGroup() as tasks:
        if seal:
            tasks.create_task(prepare())
        for number in range(chunks):
            await out.send(*(await (await ahead.get()) if seal else ready[number % DISTINCT]))
        await out.close()


class Taking:
    """The receiving side: verifies and stores what comes, then opens it or passes it on."""

    def __init__(self, folder: Path, out: Sender | None, clock: Clock) -> None:
        self._store = ChunkStore(folder)
        self._lanes: list[Lane] = []
        self._traffic = Traffic(self._store, Limits(), MEMORY_LIMIT, lambda: self._lanes)
        self._out = out
        self._clock = clock
        self._opener = sealer()
        self._order: dict[bytes, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: list[BaseException] = []
        self._sending = asyncio.Lock()

    def expect(self, size: int) -> None:
        """Know which ordinal each name has, as an index page would say."""
        making = sealer()
        for number in range(DISTINCT):
            self._order[digest(making.seal(number, contents(number, size)))] = number

    def came(self, control: Control | None, name: bytes, body: bytearray) -> None:
        """A chunk is here."""
        if name not in self._order:
            name = list(self._order)[(int.from_bytes(name, "big") - 1) % DISTINCT]  # pieces say a number
        if isinstance(control, Lane) and control not in self._lanes:
            self._lanes.append(control)
        self._traffic.came(len(body))
        task = asyncio.get_running_loop().create_task(self._take(name, body))
        self._tasks.add(task)
        if len(self._tasks) >= WINDOW:
            for lane in self._lanes:
                lane.pause_reading()
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = task.exception()
        if error is not None:
            self._failed.append(error)
        if len(self._tasks) < WINDOW // 2:
            for lane in self._lanes:
                lane.resume_reading()

    async def _take(self, name: bytes, body: bytearray) -> None:
        if await self._traffic.keep(name, body) is not Kept.STORED:
            raise RuntimeError("a chunk was not kept")
        if self._out is None:
            await asyncio.to_thread(self._open, name, body)
        else:
            sealed = await self._traffic.load(name)
            assert sealed is not None
            async with self._sending:
                await self._out.send(name, sealed)
            self._store.remove(name)

    def _open(self, name: bytes, body: bytearray) -> None:
        self._opener.open(self._order[name], memoryview(body))
        self._store.remove(name)

    async def finish(self) -> None:
        """Wait for all that came."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._failed:
            raise self._failed[0]
        self._traffic.close()


async def take(role: str, kind: str, port: int, size: int, folder: Path, clock: Clock) -> None:
    """Be a relay ("relay"), the end of the path ("open"), or a sink that forgets all ("sink")."""
    identity = Identity.load(Home.at(folder / "home"))
    out = await connect(kind, port, identity.client_tls()) if port else None
    taking = Taking(folder / f"store-{os.getpid()}", out, clock)
    if role != "sink":
        taking.expect(size)

    def received(control: Control | None, name: bytes, body: bytearray) -> None:
        clock.start()
        if role != "sink":
            taking.came(control, name, body)

    async with listening(kind, size + 16, identity.server_tls(), received) as (own_port, ended):
        print(json.dumps({"port": own_port}), flush=True)
        if kind in ("plain", "tls"):
            clock.start()
        await ended.wait()
        await taking.finish()
        if out is not None:
            await out.close()


async def run(role: str, kind: str, port: int, chunks: int, size: int, folder: Path) -> None:
    """One role, to its end."""
    clock = Clock()
    if role in ("send", "seal"):
        identity = Identity.load(Home.at(folder / "home"))
        await send(await connect(kind, port, identity.client_tls()), chunks, size, clock, seal=role == "seal")
    else:
        await take(role, kind, port, size, folder, clock)
    clock.say()


if __name__ == "__main__":
    name, kind, port, chunks, size, folder = sys.argv[1:]
    memory.keep_freed()  # as the daemon does
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(name, kind, int(port), int(chunks), int(size), Path(folder)))
