"""A member that says whatever a test wants, over a real connection to a real daemon."""

import asyncio
import contextlib
import time

from daemon.nodes import Head, make_member

from patchswarm.daemon.fleet.identity import Identity
from patchswarm.protocol.framing import FrameDecoder, encode_frame
from patchswarm.protocol.manifest import SERIAL_BITS, NodeRecord
from patchswarm.protocol.messages import Hello, Pong, decode_message, encode_message
from patchswarm.protocol.signed import sign


class RawMember:
    """Holds a valid certificate and membership, and keeps to nothing else."""

    def __init__(self, head, root):
        self.head = head
        self.own = Identity.load(make_member(Head(head.home, head.config, head.identity), root))
        self.serial = 0
        self.heard = []
        self.decoder = FrameDecoder()

    async def dial(self):
        host, _, port = self.head.config.node.listen.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port), ssl=self.own.client_tls())
        return self

    def record(self, *, site="b", addresses=(), incarnation=bytes(16)):
        """A new record of its own, dated now."""

        self.serial += 1
        serial = (int(time.time()) << SERIAL_BITS) + self.serial
        own = self.own
        record = NodeRecord(own.node_public_key, incarnation, serial, site, addresses, (), own.membership)
        return sign(record, own.node_key)

    def say(self, *messages):
        for message in messages:
            self.raw(encode_frame(encode_message(message)))

    def raw(self, data):
        self.writer.write(data)

    async def greet(self):
        """Say hello and wait for the head's."""
        self.say(Hello(1, self.record()))
        await self.hear(Hello)
        return self

    async def hear(self, kind, within_s=10.0):
        """The next message of this kind; other ones are skipped. None once the head has hung up."""
        async with asyncio.timeout(within_s):
            while True:
                for at, message in enumerate(self.heard):
                    if isinstance(message, kind):
                        del self.heard[: at + 1]
                        return message
                self.heard.clear()
                try:
                    data = await self.reader.read(65536)
                except OSError:
                    return None
                if not data:
                    return None
                self.heard += map(decode_message, self.decoder.feed(data))

    async def hung_up(self, within_s=10.0):
        """Whether the head ends the connection."""

        class Never:
            pass

        return await self.hear(Never, within_s) is None

    def pong(self, ping):
        self.say(Pong(ping.stamp))

    async def close(self):
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()
