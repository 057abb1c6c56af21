"""Block desk: asks peers for blocks of a version and checks them, and sends those that slots here hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from ...protocol.errors import ProtocolError
from ...protocol.ids import digest
from ...protocol.messages import PIECE_BYTES, BlockPiece, BlockReject, Reason
from ...protocol.swarm import Swarm
from ...storage.verify import DIGEST_BYTES

if TYPE_CHECKING:
    from .peer import Peer

LOOK_S: Final = 0.5
"""How often it is looked whether anybody is left to be asked."""

SENT_AT_ONCE: Final = 8
"""Blocks read for peers at a time: bounds the memory they take."""

SENT_EACH: Final = 2
"""And so many of them for one peer: what one does not take keeps nobody else waiting."""

DRAIN_S: Final = 10.0
"""Time in which a peer has to take a piece of a block."""

ReadBlock = Callable[[bytes, int], Awaitable[bytes | None]]
"""(manifest, block) to its verified bytes, None when no clean slot here holds them."""


@dataclass(slots=True)
class _Job:
    """Blocks of one version that somebody here waits for."""

    digests: bytes
    left: set[int]
    got: dict[int, bytes] = field(default_factory=dict)
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class BlockDesk:
    """The blocks that come and go. `carry_out` is called after each call into the core."""

    def __init__(self, swarm: Swarm, carry_out: Callable[[], None], now: Callable[[], float]) -> None:
        self.read: ReadBlock = _nothing
        """Set by the node: how a block is read from a slot."""
        self._swarm = swarm
        self._carry_out = carry_out
        self._now = now
        self._jobs: dict[bytes, _Job] = {}
        self._pieces: dict[tuple[int, int], bytearray] = {}
        self._sending = asyncio.Semaphore(SENT_AT_ONCE)
        self._sending_each: WeakKeyDictionary[Peer, asyncio.Semaphore] = WeakKeyDictionary()
        self._turn = asyncio.Lock()

    async def fetch(self, manifest: bytes, numbers: Iterable[int], digests: bytes) -> dict[int, bytes]:
        """Blocks of a version, each verified by its digest table; those that nobody gives are left out."""
        async with self._turn:
            job = self._jobs[manifest] = _Job(digests, set(numbers))
            blocks = self._swarm.blocks
            try:
                blocks.want(manifest, job.left, self._now())
                self._carry_out()
                while job.left and not job.left <= blocks.given_up(manifest):
                    job.moved.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await job.moved.wait()
            finally:
                del self._jobs[manifest]
                blocks.unwant(manifest)
            return job.got

    def take(self, number: int, piece: BlockPiece) -> bytearray | None:
        """Take a piece of a block that was asked of a link; the whole block with its last one, to be `check`ed.

        Raises ProtocolError when pieces do not follow each other.
        """
        asked = self._swarm.blocks.flight(number, piece.request)
        if asked is None:
            return None  # nobody waits for it any more
        key = (number, piece.request)
        body = self._pieces.setdefault(key, bytearray())
        if piece.offset != len(body) or len(body) + len(piece.data) > piece.size:
            raise ProtocolError(f"pieces of block {asked[1]} do not follow each other")
        body += piece.data
        return self._pieces.pop(key) if len(body) == piece.size else None

    async def check(self, number: int, request: int, body: bytearray) -> None:
        """Verify a block that has come, and give it to who waits for it."""
        asked = self._swarm.blocks.flight(number, request)
        job = self._jobs.get(asked[0]) if asked is not None else None
        if asked is None or job is None:
            return
        block = asked[1]
        name = await asyncio.to_thread(digest, body)
        good = name == job.digests[DIGEST_BYTES * block :][:DIGEST_BYTES]
        if good and block in job.left:
            job.left.discard(block)
            job.got[block] = bytes(body)
        self._swarm.blocks.arrived(number, request, self._now(), good=good)
        job.moved.set()
        self._carry_out()

    async def send(self, peer: Peer, request: int, manifest: bytes, block: int) -> None:
        """Answer a peer's request."""
        each = self._sending_each.setdefault(peer, asyncio.Semaphore(SENT_EACH))
        try:
            async with each, self._sending:
                data = await self.read(manifest, block)
                if data is None:
                    peer.send(BlockReject(request, Reason.MISSING))
                    return
                for offset in range(0, len(data), PIECE_BYTES):
                    peer.send(BlockPiece(request, offset, len(data), data[offset : offset + PIECE_BYTES]))
                    async with asyncio.timeout(DRAIN_S):
                        await peer.drained()
        except TimeoutError:
            peer.close()  # it takes nothing, and keeps others waiting for their turn
        except OSError:
            pass  # the link is gone, and its requests with it
        finally:
            self._swarm.blocks.served(peer.number)

    def gone(self, number: int) -> None:
        """A link is gone: so is what had come of its blocks."""
        for key in [key for key in self._pieces if key[0] == number]:
            del self._pieces[key]


async def _nothing(_manifest: bytes, _block: int) -> bytes | None:
    return None
