"""Attacker: a member that does not run the daemon at all, but says to others what no daemon would say.

    python -m wanlab.attacker HOME ATTACK[,ATTACK…] ADDRESS…

Holds the keys of HOME, connects to each address once for each attack, and begins again whenever it is hung up on,
until it is killed. It says how often it was hung up on, or not let in, when it is terminated.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgpack

from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.home import Home
from patchswarm.protocol.framing import MAX_FRAME_BYTES, encode_frame
from patchswarm.protocol.manifest import SERIAL_BITS, Header, NodeRecord, Subject
from patchswarm.protocol.messages import (
    Have,
    Headers,
    Hello,
    Lane,
    Message,
    Object,
    ObjectKind,
    Page,
    Ping,
    Request,
    encode_message,
)
from patchswarm.protocol.series import MAX_CHUNKS
from patchswarm.protocol.signed import sign

AGAIN_S: Final = 0.2
BATCH: Final = 500
TRICKLE_S: Final = 0.5
NAME, ATTEMPT = bytes(32), bytes(16)

BAD_FRAMES: Final = (
    b"\xff\xff\xff\xff",
    (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
    bytes(4),
    encode_frame(b"\x91" * 60_000 + b"\xc0"),
    encode_frame(b"\xdd\xff\xff\xff\xff"),
    encode_frame(b"\xdb\xff\xff\xff\xff"),
    encode_frame(b"\xdf\xff\xff\xff\xff"),
    encode_frame(b"\xc9\xff\xff\xff\xff\x01"),
    encode_frame(msgpack.packb([99, 1])),
    encode_frame(encode_message(Ping(1))[:-1]),
)
"""Lengths beyond every limit, nesting, arrays, strings, maps and extensions that claim to be huge, torn messages."""


class Attacker:
    """One identity against any number of addresses."""

    def __init__(self, home: Home) -> None:
        self._own = Identity.load(home)
        self._incarnation = os.urandom(16)
        self._serials = itertools.count()
        self._tls = self._own.client_tls()
        self.hung_up = 0
        self.over = False
        """Nothing is begun again: in Python 3.11 a task group that fails just then swallows a cancellation."""

    async def keep_on(self, attack: str, address: str) -> None:
        """Carry out an attack on one address until it is cancelled."""
        host, _, port = address.rpartition(":")
        while not self.over:
            try:
                await self._once(ATTACKS[attack], host, int(port))
            except* (OSError, EOFError):
                self.hung_up += 1
            await asyncio.sleep(AGAIN_S)

    async def _once(self, attack: Callable[[Attacker, Link], Awaitable[None]], host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            link = Link(reader, writer)
            await link.say(Hello(1, self.record()))
            await attack(self, link)
        finally:
            writer.transport.abort()

    def record(self) -> bytes:
        """A new record of its own."""
        own, serial = self._own, (int(time.time()) << SERIAL_BITS) + next(self._serials)
        return sign(
            NodeRecord(own.node_public_key, self._incarnation, serial, "site-b", (), (), own.membership), own.node_key
        )

    # -- attacks: each takes a link that has said hello ------------------------------------------------------

    async def flood(self, link: Link) -> None:
        """Ask for chunks that nobody has, as fast as the answers are read."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.read_all())
            tasks.create_task(self._ask(link))

    async def _ask(self, link: Link) -> None:
        for number in itertools.count():
            await link.say(*(Request(number * BATCH + each, NAME) for each in range(BATCH)))

    async def deaf(self, link: Link) -> None:
        """Ask without end and read nothing."""
        for number in itertools.count():
            await link.say(*(Ping(number) for _ in range(BATCH)))

    async def dribble(self, link: Link) -> None:
        """Send a message a byte at a time."""
        for byte in itertools.cycle(encode_frame(encode_message(Request(1, NAME)))):
            await link.send(bytes([byte]))
            await asyncio.sleep(TRICKLE_S)

    async def gossip(self, link: Link) -> None:
        """Say a new record of its own again and again, and headers of a stream that there is not."""
        for number in itertools.count():
            made_up = Header(Subject.MANIFEST, f"x{number % 99}", 1, number, NAME)
            await link.say(Object(ObjectKind.NODE, self.record()), Headers((sign(made_up, self._own.node_key),)))

    async def forge(self, link: Link) -> None:
        """Say what it cannot sign, or what no member may say."""
        await link.say(self._forgeries[next(self._serials) % len(self._forgeries)])
        await link.read_all()

    @property
    def _forgeries(self) -> tuple[Message, ...]:
        head = Header(Subject.MANIFEST, "lab", 1, 10_000, NAME)
        return (
            Headers((sign(head, self._own.node_key),)),
            Object(ObjectKind.STREAM, bytes(100)),
            Object(ObjectKind.NODE, bytes(100)),
            Object(ObjectKind.REVOCATION, bytes(100)),
            Object(ObjectKind.BEACON, bytes(100)),
            Page(bytes(100)),
            Have(ATTEMPT, ((0, MAX_CHUNKS),)),
            Lane(ATTEMPT, NAME),
        )

    async def frames(self, link: Link) -> None:
        """Send what is no message."""
        await link.send(BAD_FRAMES[next(self._serials) % len(BAD_FRAMES)])
        await link.read_all()


ATTACKS: Final = {
    "flood": Attacker.flood,
    "deaf": Attacker.deaf,
    "dribble": Attacker.dribble,
    "gossip": Attacker.gossip,
    "forge": Attacker.forge,
    "frames": Attacker.frames,
}


class Link:
    """One control connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, *messages: Message) -> None:
        """Send messages, as fast as the other side takes them."""
        await self.send(b"".join(encode_frame(encode_message(message)) for message in messages))

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises EOFError or OSError once it was hung up on."""
        if self._writer.is_closing():
            raise EOFError
        self._writer.write(data)
        await self._writer.drain()
        await asyncio.sleep(0)  # drain alone lets nobody else run while there is room

    async def read_all(self) -> None:
        """Read until it is hung up on. Raises EOFError then."""
        while await self._reader.read(65536):
            pass
        raise EOFError


async def run(home: Home, attacks: list[str], addresses: list[str]) -> int:
    """Say "ready", and attack until SIGTERM; how often it was hung up on."""
    attacker = Attacker(home)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    print("ready", flush=True)
    tasks = [asyncio.create_task(attacker.keep_on(attack, address)) for attack in attacks for address in addresses]
    ending = asyncio.create_task(over.wait())
    done, _ = await asyncio.wait((*tasks, ending), return_when=asyncio.FIRST_COMPLETED)
    attacker.over = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, ending, return_exceptions=True)
    for ended in done - {ending}:
        ended.result()  # a mistake of the attack's, not of those who are attacked
    return attacker.hung_up


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each write to who has hung up
    print(asyncio.run(run(Home.at(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:])))
