"""One connected peer: its control connection, its lanes, and the chunks it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final, Protocol

import structlog

from ...protocol.errors import ProtocolError
from ...protocol.framing import FrameDecoder, encode_frame
from ...protocol.ids import short
from ...protocol.messages import (
    PIECE_BYTES,
    Message,
    Piece,
    Reason,
    Reject,
    decode_message,
    encode_message,
)
from ...protocol.messages import (
    Lane as LaneOffer,
)
from .lane import Lane
from .meter import Meter

_log: Final = structlog.get_logger(__name__)

LANE_WAIT_S: Final = 2.0
"""How long the first chunks wait for a lane before they go over TLS."""

MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
"""Control bytes that may wait for a peer: one that reads nothing is dropped, not fed."""

MAX_SERVING: Final = 4096
_READ_BYTES: Final = 256 * 1024


class Fleet(Protocol):
    """What a peer needs of the fleet it belongs to."""

    def message(self, peer: Peer, message: Message) -> None:
        """Take a control message."""

    def lane_offered(self, peer: Peer, offer: LaneOffer) -> None:
        """Take the offer of a lane."""

    def piece_of(self, peer: Peer, request: int) -> tuple[bytes, int] | None:
        """(name, size) of the chunk that was asked under this number."""

    def chunk_came(self, peer: Peer, lane: Lane | None, name: bytes, body: bytearray) -> None:
        """Take a chunk's unverified bytes; `lane` is None when they came over TLS."""

    async def load(self, name: bytes) -> bytes | None:
        """Sealed bytes of a chunk, None when it is gone."""

    def chunk_left(self, peer: Peer, name: bytes) -> None:
        """A chunk was handed to the network for a peer, or could not be."""


class Peer:
    """Runs from hello to goodbye. `number` is the link's number in the protocol core."""

    def __init__(
        self, fleet: Fleet, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str | None
    ) -> None:
        self.number = -1
        self.address = address
        self.lanes: list[Lane] = []
        self.lane_opened = asyncio.Event()
        self.upload = Meter()
        self._fleet = fleet
        self._reader = reader
        self._writer = writer
        self._serving: asyncio.Queue[tuple[int, bytes, bool]] = asyncio.Queue(MAX_SERVING)
        self._pieces: dict[int, bytearray] = {}

    async def run(self) -> None:
        """Read and serve until either side closes. Returns the peer's fault or the path's end; raises neither."""
        serving = asyncio.create_task(self._serve())
        try:
            await self._read()
        except ProtocolError as error:
            _log.warning("peer broke a rule", peer=self.number, reason=str(error))
        except (OSError, EOFError) as error:
            _log.debug("link ended", peer=self.number, reason=str(error) or type(error).__name__)
        finally:
            serving.cancel()
            self.close()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    def send(self, message: Message) -> None:
        """Queue a control message; a peer that lets too much pile up is closed."""
        if self._writer.is_closing():
            return
        self._writer.write(encode_frame(encode_message(message)))
        if self._writer.transport.get_write_buffer_size() > MAX_QUEUED_BYTES:
            _log.warning("peer does not read", peer=self.number)
            self.close()

    def serve(self, request: int, name: bytes, *, secure: bool) -> None:
        """Queue a chunk for the peer."""
        try:
            self._serving.put_nowait((request, name, secure))
        except asyncio.QueueFull:
            self.send(Reject(request, Reason.BUSY))
            self._fleet.chunk_left(self, name)

    def close(self) -> None:
        """Close the connection and its lanes; `run` then returns."""
        for lane in list(self.lanes):
            lane.close()
        self._writer.transport.abort()

    async def flush(self) -> None:
        """Wait a moment for queued messages to leave."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(0.5):
                await self._writer.drain()

    def lane_up(self, lane: Lane) -> None:
        """A lane to this peer is open."""
        self.lanes.append(lane)
        self.lane_opened.set()

    def lane_down(self, lane: Lane) -> None:
        """A lane to this peer is gone."""
        if lane in self.lanes:
            self.lanes.remove(lane)

    # -- reading --------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        decoder = FrameDecoder()
        while data := await self._reader.read(_READ_BYTES):
            for body in decoder.feed(data):
                self._dispatch(decode_message(body))

    def _dispatch(self, message: Message) -> None:
        match message:
            case LaneOffer():
                self._fleet.lane_offered(self, message)
            case Piece():
                self._add_piece(message)
            case _:
                self._fleet.message(self, message)

    def _add_piece(self, piece: Piece) -> None:
        asked = self._fleet.piece_of(self, piece.request)
        if asked is None:
            return  # it came by another way meanwhile
        name, size = asked
        body = self._pieces.setdefault(piece.request, bytearray())
        if piece.size != size or piece.offset != len(body) or len(body) + len(piece.data) > size:
            raise ProtocolError(f"pieces of chunk {short(name)} do not follow each other")
        body += piece.data
        if len(body) == size:
            del self._pieces[piece.request]
            self._fleet.chunk_came(self, None, name, body)

    # -- serving --------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            request, name, secure = await self._serving.get()
            try:
                await self._serve_one(request, name, secure=secure)
            finally:
                self._fleet.chunk_left(self, name)

    async def _serve_one(self, request: int, name: bytes, *, secure: bool) -> None:
        sealed = await self._fleet.load(name)
        if sealed is None:
            self.send(Reject(request, Reason.MISSING))
            return
        if secure or not await self._over_lane(name, sealed):
            await self._over_tls(request, sealed)
        self.upload.add(len(sealed), time.monotonic())

    async def _over_lane(self, name: bytes, sealed: bytes) -> bool:
        if not self.lanes and not self.lane_opened.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LANE_WAIT_S):
                    await self.lane_opened.wait()
            self.lane_opened.set()  # waited once; from now on a missing lane means TLS
        return bool(self.lanes) and await self.lanes[0].send(name, sealed)

    async def _over_tls(self, request: int, sealed: bytes) -> None:
        for offset in range(0, len(sealed), PIECE_BYTES):
            self.send(Piece(request, offset, len(sealed), sealed[offset : offset + PIECE_BYTES]))
            try:
                await self._writer.drain()
            except OSError:
                return  # `run` sees the same end
