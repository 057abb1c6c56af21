"""The one port that faces the fleet: TLS control connections, joiners and lanes are told apart by their first bytes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from ...protocol.lane import MAGIC, PREAMBLE_BYTES
from ..errors import InUseError, reason
from ..units import parse_address

_log: Final = structlog.get_logger(__name__)

FIRST_BYTES_S: Final = 10.0
"""Time that a connection has to say what it is and finish its handshake."""

MAX_HALF_OPEN: Final = 256
"""Connections that have not said what they are. One more, and the oldest goes: strangers keep nobody out for long."""

MAX_HALF_OPEN_EACH: Final = 64
"""Those of one address: one more, and the oldest of the same address goes."""

_TLS_HANDSHAKE: Final = 0x16  # RFC 8446, section 5.1: ContentType handshake

Control = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Plain = Callable[[socket.socket, bytes], Awaitable[None]]


def bind(address: str) -> socket.socket:
    """A listening socket. Raises InUseError when the port is taken, and for an address that is not this host's."""
    host, port = parse_address(address)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, proto)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen(512)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InUseError(
                f"{address} is in use by another program: stop it, or set node.listen to a free port"
            ) from None
        raise InUseError(f"cannot listen on {address}: {reason(error)}") from None
    return listening


class Listener:
    """Accepts on one socket until cancelled. `control` gets each TLS connection, `lane` each lane's preamble."""

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext, control: Control, lane: Plain) -> None:
        self._listening = listening
        self._tls = tls
        self._control = control
        self._lane = lane
        self._half_open: dict[asyncio.Timeout, str] = {}  # to the address it comes from; oldest first

    async def run(self) -> None:
        """Accept until cancelled; then every connection it accepted is closed too."""
        loop = asyncio.get_running_loop()
        with self._listening:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    try:
                        accepted, _ = await loop.sock_accept(self._listening)
                    except OSError as error:
                        # Out of descriptors, or the peer was gone already: neither ends the listener.
                        _log.warning("accept failed", reason=str(error))
                        await asyncio.sleep(0.1)
                        continue
                    tasks.create_task(self._one(accepted))

    async def _one(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with self._limited(str(accepted.getpeername()[0])):
                first = await _peek(accepted)
                if first == _TLS_HANDSHAKE:
                    reader, writer = await _streams(accepted, self._tls)
                else:
                    preamble = await _read_exactly(accepted, PREAMBLE_BYTES)
            if first == _TLS_HANDSHAKE:
                await self._control(reader, writer)
            else:
                await self._lane(accepted, preamble)
        except (OSError, TimeoutError, EOFError) as error:
            # A stranger, a scan or a broken path (ssl.SSLError is an OSError): nothing of ours is wrong.
            _log.debug("connection refused", reason=str(error) or type(error).__name__)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
        except Exception:
            # A mistake of ours that a stranger has brought to light: it costs this connection, not the node.
            _log.exception("connection given up")
            accepted.close()

    @asynccontextmanager
    async def _limited(self, host: str) -> AsyncIterator[None]:
        """As long as a connection has not said what it is: in time, and only so many. Raises TimeoutError."""
        async with asyncio.timeout(FIRST_BYTES_S) as patience:
            same = [each for each, its_host in self._half_open.items() if its_host == host]
            crowded = same if len(same) >= MAX_HALF_OPEN_EACH else self._half_open
            if len(same) >= MAX_HALF_OPEN_EACH or len(self._half_open) >= MAX_HALF_OPEN:
                oldest = next(iter(crowded))
                del self._half_open[oldest]
                with contextlib.suppress(RuntimeError):  # it is about to go anyway: its time is up in this very turn
                    oldest.reschedule(asyncio.get_running_loop().time())
            self._half_open[patience] = host
            try:
                yield
            finally:
                self._half_open.pop(patience, None)


async def _peek(connection: socket.socket) -> int:
    """The first byte, left in the socket. Raises EOFError when there is none, or neither TLS nor a lane begins so."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    first = connection.recv(1, socket.MSG_PEEK)
    if not first:
        raise EOFError("closed before the first byte")
    if first[0] not in (_TLS_HANDSHAKE, MAGIC[0]):
        raise EOFError(f"begins with byte {first[0]}: neither TLS nor a lane")
    return first[0]


async def _read_exactly(connection: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        more = await loop.sock_recv(connection, size - len(data))
        if not more:
            raise EOFError("closed within the preamble")
        data += more
    return data


async def _streams(accepted: socket.socket, tls: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, accepted, ssl=tls, ssl_handshake_timeout=FIRST_BYTES_S
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
