"""Channels: the three ways in which bytes go from one process to the next: a plain socket, a lane, pieces over TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from patchswarm.daemon.fleet.congestion import unshared
from patchswarm.daemon.fleet.lane import Lane
from patchswarm.protocol.framing import FrameDecoder, encode_frame
from patchswarm.protocol.lane import LaneCodec
from patchswarm.protocol.messages import PIECE_BYTES, Piece, decode_message, encode_message

HOST = "127.0.0.1"
_KEY = bytes(32)
_READ_BYTES = 256 * 1024

Received = Callable[[bytes, bytearray], None]
"""Takes a chunk's name and its bytes."""


class Sender(Protocol):
    """One end of a channel."""

    async def send(self, name: bytes, sealed: bytes | bytearray) -> None:
        """Send a chunk once there is room for it."""

    async def close(self) -> None:
        """Close when all has left."""


class Control(Protocol):
    """The other end, as far as it can be held up."""

    def pause_reading(self) -> None:
        """Read no more for now."""

    def resume_reading(self) -> None:
        """Read on."""


class _Lane:
    def __init__(self, lane: Lane, transport: asyncio.Transport) -> None:
        self._lane = lane
        self._transport = transport

    async def send(self, name: bytes, sealed: bytes | bytearray) -> None:
        if not await self._lane.send(name, sealed):
            raise ConnectionError("the lane broke")

    async def close(self) -> None:
        self._transport.close()
        await self._lane.gone.wait()


class _Stream:
    """Bytes as they are, or chunks in pieces as control connections carry them."""

    def __init__(self, writer: asyncio.StreamWriter, *, pieces: bool) -> None:
        self._writer = writer
        self._pieces = pieces
        self._request = 0

    async def send(self, name: bytes, sealed: bytes | bytearray) -> None:
        if not self._pieces:
            self._writer.write(sealed)
            await self._writer.drain()
            return
        del name
        self._request += 1
        for offset in range(0, len(sealed), PIECE_BYTES):
            data = bytes(sealed[offset : offset + PIECE_BYTES])
            self._writer.write(encode_frame(encode_message(Piece(self._request, offset, len(sealed), data))))
            await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def _lane(
    expected: Callable[[bytes], int | None],
    received: Callable[[Lane, bytes, bytearray], None],
    closed: Callable[[Lane], None],
    *,
    dialler: bool,
) -> Lane:
    return Lane(LaneCodec(_KEY, dialler=dialler), unshared(), expected, received, closed)


async def connect(kind: str, port: int, context: ssl.SSLContext) -> Sender:
    """The sending end of a channel of this kind: "plain", "tls" (both plain copies), "lane" or "pieces" (over TLS)."""
    if kind == "lane":
        transport, lane = await asyncio.get_running_loop().create_connection(
            lambda: _lane(lambda _: None, lambda *_: None, lambda _: None, dialler=True), HOST, port
        )
        return _Lane(lane, transport)
    secure = context if kind in ("tls", "pieces") else None
    _, writer = await asyncio.open_connection(HOST, port, ssl=secure)
    return _Stream(writer, pieces=kind == "pieces")


class _Discard(asyncio.BufferedProtocol):
    """Takes bytes into one buffer and forgets them."""

    def __init__(self, size: int, ended: asyncio.Event) -> None:
        self._buffer = bytearray(size)
        self._ended = ended

    def get_buffer(self, sizehint: int) -> bytearray:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._ended.set()


@asynccontextmanager
async def listening(
    kind: str, size: int, context: ssl.SSLContext, received: Callable[[Control | None, bytes, bytearray], None]
) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """The receiving end: its port, and an event that is set when its one connection has ended.

    Chunks of `size` bytes go to `received`; the plain copies forget what comes.
    """
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    if kind == "lane":
        server = await loop.create_server(
            lambda: _lane(lambda _: size, received, lambda _: ended.set(), dialler=False), HOST, 0
        )
    elif kind == "pieces":

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _read_pieces(reader, lambda name, body: received(None, name, body))
            writer.close()
            ended.set()

        server = await asyncio.start_server(read, HOST, 0, ssl=context)
    else:
        secure = context if kind == "tls" else None
        server = await loop.create_server(lambda: _Discard(size, ended), HOST, 0, ssl=secure)
    async with server:
        yield server.sockets[0].getsockname()[1], ended


async def _read_pieces(reader: asyncio.StreamReader, received: Received) -> None:
    """What `Peer` does with pieces; the request's number is the name."""
    decoder = FrameDecoder()
    body = bytearray()
    while data := await reader.read(_READ_BYTES):
        for frame in decoder.feed(data):
            piece = decode_message(frame)
            assert isinstance(piece, Piece)
            body += piece.data
            if len(body) == piece.size:
                received(piece.request.to_bytes(4, "big"), body)
                body = bytearray()
