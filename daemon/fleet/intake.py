"""Intake: chunks that come are verified, kept, counted, and told of to the core and to this host."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final

import structlog

from ...protocol.swarm import Swarm
from .lane import Lane
from .tally import Scope, Tally
from .traffic import Kept, Traffic

_log: Final = structlog.get_logger(__name__)

FULL_DISK_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ChunkStored:
    """A chunk came from a peer, verified, and is in the store."""

    name: bytes


class Intake:
    """Takes what links bring, by their number in the core, and what comes by another way.

    `local` hears of each chunk that is kept. `spawn` runs a task; `carry_out` does what the core wants done then.
    """

    def __init__(
        self,
        swarm: Swarm,
        traffic: Traffic,
        tally: Tally,
        local: Callable[[ChunkStored], None],
        spawn: Callable[[Coroutine[object, object, None]], None],
        carry_out: Callable[[], None],
    ) -> None:
        self._swarm = swarm
        self._traffic = traffic
        self._tally = tally
        self._local = local
        self._spawn = spawn
        self._carry_out = carry_out

    def came(self, link: int, scope: Scope, lane: Lane | None, name: bytes, body: bytearray) -> None:
        """Take a chunk's unverified bytes; `lane` is None when they came over TLS."""
        self._swarm.chunk_here(link, name)
        self._traffic.came(len(body))
        self._spawn(self._keep(link, scope, lane, name, body))

    async def take(self, name: bytes, body: bytearray) -> Kept:
        """Verify a chunk that no peer brought, and keep it; the core is still to be told."""
        self._traffic.came(len(body))
        return await self._store(name, body, "wan")

    async def _keep(self, link: int, scope: Scope, lane: Lane | None, name: bytes, body: bytearray) -> None:
        kept = await self._store(name, body, scope)
        now_s = time.monotonic()
        match kept:
            case Kept.STORED:
                self._swarm.chunk_arrived(link, name, now_s, intact=True, secure=lane is None)
            case Kept.DAMAGED:
                _log.warning("damaged chunk", peer=link, over="TLS" if lane is None else "lane")
                if lane is not None:
                    lane.close()
                self._swarm.chunk_arrived(link, name, now_s, intact=False, secure=lane is None)
            case Kept.NO_ROOM:
                self._swarm.fetch.hold_off(now_s + FULL_DISK_WAIT_S)
                self._swarm.chunk_not_kept(link, name, now_s)
        self._carry_out()

    async def _store(self, name: bytes, body: bytearray, scope: Scope) -> Kept:
        kept = await self._traffic.keep(name, body)
        self._tally.count(kept, len(body), scope)
        if kept is Kept.STORED:
            self._local(ChunkStored(name))
        return kept
