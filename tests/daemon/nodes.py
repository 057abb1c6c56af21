"""Homes, identities and loopback listeners for the tests of identity, TLS and enrolment."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from patchswarm.daemon.config import Config
from patchswarm.daemon.fleet import authority, identity, tls
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.home import Home

UTC_NOW = dt.datetime.now(dt.UTC)


@dataclass(frozen=True)
class Head:
    """An initialised head: its home and what is in it."""

    home: Home
    config: Config
    identity: Identity

    @property
    def port(self) -> int:
        return int(self.config.node.listen.rpartition(":")[2])


def make_head(root: Path, listen: str | None = None, now: dt.datetime | None = None) -> Head:
    home = Home.at(root)
    config = identity.init(home, site="us-east/a", listen=listen or f"127.0.0.1:{free_port()}", now=now)
    return Head(home, config, Identity.load(home))


def make_member(
    head: Head,
    root: Path,
    *,
    now: dt.datetime = UTC_NOW,
    signer: Ed25519PrivateKey | None = None,
    ca: x509.Certificate | None = None,
) -> Home:
    """Another node of the head's cluster, or of what `signer` and `ca` pretend to be."""
    home = Home.at(root)
    key = Ed25519PrivateKey.generate()
    own = head.identity
    ca = ca or own.ca_certificate
    certificate, membership = authority.issue(signer or own.ca_key, ca, key.public_key().public_bytes_raw(), now)
    with home.making():
        identity.write_member(home, key, [certificate], membership, own.ca_certificate)
    return home


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Listener:
    """A TLS server that notes how it classified each connection whose handshake passed."""

    port: int
    accepted: asyncio.Queue[tls.Member | tls.Joiner | tls.Refused] = field(default_factory=asyncio.Queue)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(own: Identity, port: int = 0, handler: Handler | None = None) -> AsyncIterator[Listener]:
    """Accept connections as a node does; hand joiners to `handler`; close each at once afterwards."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitor = tls.classify(writer.get_extra_info("ssl_object"))
        listener.accepted.put_nowait(visitor)
        if handler is not None and isinstance(visitor, tls.Joiner):
            await handler(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(accept, "127.0.0.1", port, ssl=own.server_tls())
    listener = Listener(server.sockets[0].getsockname()[1])
    async with server:
        yield listener
