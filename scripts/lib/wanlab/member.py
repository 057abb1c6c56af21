"""A member of the fleet for chaos runs: the real daemon, watched from within, and lying for as long as it is told to.

    member.py WITNESS --home DIR

WITNESS is a folder: `wrong` gets a line with the sender's id for each chunk that came with other bytes than its
name says, whatever the daemon then does about it; `clock` holds how far this member's wall clock is off, in seconds;
`lies` holds what it does to others from now on, any of LIES.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from patchswarm.daemon.cli import main
from patchswarm.daemon.fleet.fleet import Fleet
from patchswarm.daemon.fleet.lane import Lane
from patchswarm.daemon.fleet.peer import Peer
from patchswarm.protocol.ids import digest
from patchswarm.protocol.messages import Have, Message

LIES = {
    "wrong": "every chunk it serves has a flipped bit",
    "other": "it serves the bytes of one chunk as those of another",
    "have": "it claims every chunk there could be",
    "silent": "it answers no request",
    "stall": "it sends half of each chunk, and then nothing",
    "trickle": "it sends chunks at 20 KiB/s",
}
EVERY_CHUNK = ((0, 4095),)
LOOK_S = 0.1
PIECE_BYTES = 2048


class Lies:
    """What `lies` says, looked up so often and no more: it is asked for each message."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_s = -LOOK_S
        self._told: frozenset[str] = frozenset()

    def __contains__(self, lie: str) -> bool:
        now_s = time.monotonic()
        if now_s >= self._looked_s + LOOK_S:
            self._looked_s = now_s
            self._told = frozenset(self._path.read_text().split()) if self._path.exists() else frozenset()
        return lie in self._told


def watch(folder: Path) -> None:
    """Note who sent wrong bytes, before the daemon looks at them."""
    come = Fleet.chunk_came

    def chunk_came(self: Fleet, peer: Peer, lane: Lane | None, name: bytes, body: bytearray) -> None:
        if digest(bytes(body)) != name:
            with (folder / "wrong").open("a") as file:
                file.write(self.swarm.links[peer.number].node.hex() + "\n")
        come(self, peer, lane, name, body)

    Fleet.chunk_came = chunk_came  # type: ignore[method-assign]


def follow_clock(path: Path) -> None:
    """Let this process's wall clock be off by what `path` says."""
    real = time.time

    def shifted() -> float:
        try:
            return real() + float(path.read_text())
        except (FileNotFoundError, ValueError):
            return real()

    time.time = shifted


def lie_about_bytes(lies: Lies) -> None:
    """Carry out "wrong" and "other"."""
    load = Fleet.load
    earlier: dict[int, bytes] = {}

    async def corrupted(self: Fleet, name: bytes) -> bytes | bytearray | None:
        sealed = await load(self, name)
        if sealed is None:
            return None
        if "other" in lies:  # of the same size, so that it is read to its end
            other = earlier.get(len(sealed))
            earlier[len(sealed)] = bytes(sealed)
            return other if other is not None else sealed
        if "wrong" in lies:
            sealed = bytearray(sealed)
            sealed[len(sealed) // 2] ^= 1
        return sealed

    Fleet.load = corrupted  # type: ignore[method-assign]


def lie_about_having(lies: Lies) -> None:
    """Carry out "have" and "silent"."""
    send, serve = Peer.send, Peer.serve

    def boast(self: Peer, message: Message) -> None:
        send(self, Have(message.attempt, EVERY_CHUNK) if isinstance(message, Have) and "have" in lies else message)

    def say_nothing(self: Peer, request: int, name: bytes, *, secure: bool) -> None:
        if "silent" not in lies:
            serve(self, request, name, secure=secure)

    Peer.send = boast  # type: ignore[method-assign]
    Peer.serve = say_nothing  # type: ignore[method-assign]


def dawdle(lies: Lies) -> None:
    """Carry out "stall" and "trickle"."""
    send = Lane.send

    async def slowly(self: Lane, name: bytes, sealed: bytes | bytearray) -> bool:
        if not ("stall" in lies or "trickle" in lies):
            return await send(self, name, sealed)
        transport = self._transport
        if transport is None:
            return False
        transport.write(self._codec.header(name, len(sealed)))
        for at in range(0, len(sealed), PIECE_BYTES):
            if "stall" in lies and at >= len(sealed) // 2:
                await self.gone.wait()
            if self._transport is not transport or transport.is_closing():
                return False
            transport.write(sealed[at : at + PIECE_BYTES])
            if "trickle" in lies:
                await asyncio.sleep(LOOK_S)
        return True

    Lane.send = slowly  # type: ignore[method-assign]


def run(witness: Path, arguments: list[str]) -> None:
    watch(witness)
    follow_clock(witness / "clock")
    lies = Lies(witness / "lies")
    lie_about_bytes(lies)
    lie_about_having(lies)
    dawdle(lies)
    sys.argv = ["patchswarm", "daemon", *arguments]
    main()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
