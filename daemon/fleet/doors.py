"""Doors: control connections until they are a member's: dialled and accepted, classified, refused in time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from ...protocol.swarm import Swarm
from . import tls
from .enrol import Issuer, serve_join
from .reach import Reach
from .shun import Shunned

_log: Final = structlog.get_logger(__name__)

DIAL_TIMEOUT_S: Final = 4.0
MAX_JOINERS: Final = 32
"""Strangers in the join exchange at a time; each has EXCHANGE_TIMEOUT_S for it."""

MAX_LINKS: Final = 4
"""Control connections of one node at a time; all but one are about to be closed."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Doors:
    """Lets members in. `meet` runs a member's connection to its end: its node key, the streams, the address dialled.

    `failed` hears of an address where nobody could be met.
    """

    def __init__(
        self,
        swarm: Swarm,
        issuer: Issuer,
        client_tls: ssl.SSLContext,
        reach: Reach,
        meet: Callable[[bytes, Streams, str | None], Awaitable[None]],
        failed: Callable[[str], None],
    ) -> None:
        self._swarm = swarm
        self._issuer = issuer
        self._client_tls = client_tls
        self.reach = reach
        self.shunned = Shunned()
        self.joiners = 0
        """Strangers in the join exchange."""
        self._meet = meet
        self._failed = failed

    async def dial(self, address: str) -> None:
        """Connect to where a member may be, and stay until that ends."""
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                host, port = await self.reach.resolve(address)
                streams = await asyncio.open_connection(host, port, ssl=self._client_tls)
        except (OSError, TimeoutError, ValueError) as error:  # a gossiped address may be anything (UnicodeError too)
            _log.debug("dial failed", address=address, reason=str(error) or type(error).__name__)
            self._failed(address)
            return
        await self._let_in(streams, address)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection whose handshake has passed."""
        match tls.classify(writer.get_extra_info("ssl_object")):
            case tls.Member():
                await self._let_in((reader, writer), None)
            case tls.Joiner() if self.joiners < MAX_JOINERS:
                self.joiners += 1
                try:
                    await serve_join(reader, writer, self._issuer)
                finally:
                    self.joiners -= 1
            case tls.Joiner():
                _log.info("connection refused", reason="too many joiners")
                writer.transport.abort()
            case tls.Refused(why):
                _log.debug("connection refused", reason=why)
                writer.transport.abort()

    async def _let_in(self, streams: Streams, address: str | None) -> None:
        _, writer = streams
        try:
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            key = tls.peer_node_key(writer.get_extra_info("ssl_object"))
        except (OSError, ValueError) as error:  # gone again, or no node's certificate
            self._turn_away(writer, address, str(error))
            return
        if self.shunned.is_shunned(key, time.monotonic()):
            self._turn_away(writer, address, "the node broke a rule a moment ago")
        elif sum(link.node_key == key for link in self._swarm.links.values()) >= MAX_LINKS:
            self._turn_away(writer, address, "the node has enough connections")
        else:
            await self._meet(key, streams, address)

    def _turn_away(self, writer: asyncio.StreamWriter, address: str | None, reason: str) -> None:
        _log.debug("connection refused", address=address, reason=reason)
        writer.transport.abort()
        if address is not None:
            self._failed(address)
