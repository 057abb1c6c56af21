"""One connected peer: its control connection, its lanes, and the chunks it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

import structlog

from ...protocol.allowance import Allowance
from ...protocol.errors import ProtocolError
from ...protocol.framing import FrameDecoder, encode_frame
from ...protocol.ids import short
from ...protocol.messages import (
    PIECE_BYTES,
    BlockPiece,
    Lossy,
    Message,
    Piece,
    Reason,
    Reject,
    Renew,
    Renewed,
    Widen,
    decode_message,
    encode_message,
)
from ...protocol.messages import Lane as LaneOffer
from .congestion import unshared
from .lane import Lane
from .meter import Meter

_log: Final = structlog.get_logger(__name__)

LANE_WAIT_S: Final = 2.0
"""How long chunks wait for a lane before they go over TLS."""

UNSURE_BYTES: Final = 16 * 1024 * 1024
"""Of what was written to a lane, the last so many bytes may still be on their way."""

LANE_RETRY_S: Final = 5.0
"""How long a peer is without lanes before another is offered to it."""

MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
"""Control bytes that may wait for a peer: one that reads nothing is dropped, not fed."""

MAX_SERVING: Final = 4096
GROWTH_S: Final = 1.0
"""How often it is looked whether more lanes would carry more."""

GROWTH_GAIN: Final = 1.1
_READ_BYTES: Final = 256 * 1024
_WORDS_AT_ONCE: Final = 64
"""Messages of one peer that are heard before others have their turn."""


class PeerOwner(Protocol):
    """What a peer needs of the fleet it belongs to."""

    def message(self, peer: Peer, message: Message) -> None:
        """Take a control message."""

    def lane_offered(self, peer: Peer, offer: LaneOffer) -> None:
        """Take the offer of a lane."""

    def offer_lane(self, peer: Peer) -> None:
        """Offer the peer one more lane, if the limit allows."""

    def path_is_lossy(self, peer: Peer) -> None:
        """Take the peer's word that packets get lost between its site and another."""

    def renewal(self, peer: Peer, message: Renew | Renewed) -> None:
        """Take a word about certificates."""

    def piece_of(self, peer: Peer, request: int) -> tuple[bytes, int] | None:
        """(name, size) of the chunk that was asked under this number."""

    def block_piece(self, peer: Peer, piece: BlockPiece) -> None:
        """Take a piece of a block."""

    def chunk_came(self, peer: Peer, lane: Lane | None, name: bytes, body: bytearray) -> None:
        """Take a chunk's unverified bytes; `lane` is None when they came over TLS."""

    async def load(self, name: bytes) -> bytes | bytearray | None:
        """Sealed bytes of a chunk once the upload limit lets it go; None when it is gone."""

    def chunk_left(self, peer: Peer, name: bytes) -> None:
        """A chunk was handed to the network for a peer, or could not be."""

    def count_sent(self, peer: Peer, size_bytes: int) -> None:
        """Bytes of a chunk leave for a peer."""


class Peer:
    """Runs from hello to goodbye. `number` is the link's number in the protocol core."""

    def __init__(
        self, owner: PeerOwner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str | None
    ) -> None:
        self.number = -1
        self.address = address
        self.lanes: list[Lane] = []
        self.congestion = unshared()
        """What is known of the path, together with the other peers of the site."""
        self.upload = Meter()
        self.broke_rule = False
        self._owner = owner
        self._reader = reader
        self._writer = writer
        self._tasks = asyncio.TaskGroup()
        self._over_lanes: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(MAX_SERVING)
        self._secure: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(MAX_SERVING)
        self._queued: dict[int, bytes] = {}  # requests in either queue that were not withdrawn
        self._pieces: dict[int, bytearray] = {}
        self._busy = asyncio.Event()  # a chunk waits for a lane, or there is none
        self._busy.set()
        self._began_s = time.monotonic()
        self._best_rate = 0.0
        self._allowance = Allowance(self._began_s)
        self._came_bytes = 0  # over TLS, and over lanes that are gone
        self._closed = False
        self._leaving = False
        self._sending = 0  # chunks on their way to the network
        self._at_rest = asyncio.Event()
        self._at_rest.set()

    @property
    def remote(self) -> tuple[str, int]:
        """IP address and port at the other end. Raises OSError when the connection is gone."""
        name = self._writer.get_extra_info("peername")
        if not name:
            raise ConnectionResetError("the connection is gone")
        return str(name[0]), int(name[1])

    @property
    def came_bytes(self) -> int:
        """Bytes of chunks that have come from the peer so far, parts of chunks included."""
        return self._came_bytes + sum(lane.came_bytes for lane in self.lanes)

    async def run(self) -> None:
        """Read and serve until either side closes. Logs the peer's fault or the path's end; raises neither."""
        try:
            async with self._tasks:
                self._tasks.create_task(self._serve_secure())
                self._tasks.create_task(self._without_lanes())
                self._tasks.create_task(self._widen())
                try:
                    await self._read()
                finally:
                    self.close()
        except* EOFError:
            _log.debug("link closed by the peer", peer=self.number)
        except* ProtocolError as errors:
            self.broke_rule = True
            _log.warning("peer broke a rule", peer=self.number, reason=str(errors.exceptions[0]))
        except* OSError as errors:
            _log.debug("link ended", peer=self.number, reason=str(errors.exceptions[0]))
        except* Exception:
            # A mistake of ours that something this peer said has brought to light: it costs this link, not the node.
            _log.exception("link given up", peer=self.number)
        finally:
            self.close()

    def send(self, message: Message) -> None:
        """Queue a control message; a peer that lets too much pile up is closed."""
        if self._writer.is_closing():
            return
        self._allowance.answered(message, time.monotonic())
        self._writer.write(encode_frame(encode_message(message)))
        if self._writer.transport.get_write_buffer_size() > MAX_QUEUED_BYTES:
            _log.warning("peer does not read", peer=self.number)
            self.close()

    def serve(self, request: int, name: bytes, *, secure: bool) -> None:
        """Queue a chunk for the peer; while this node leaves, turn the request away."""
        if self._leaving:
            self.send(Reject(request, Reason.STOPPING))
            self._owner.chunk_left(self, name)
            return
        queue = self._secure if secure else self._over_lanes
        if queue.full() or request in self._queued:
            self.send(Reject(request, Reason.BUSY))
            self._owner.chunk_left(self, name)
        else:
            queue.put_nowait((request, name))
            self._queued[request] = name
            self._busy.set()

    def withdraw(self, request: int) -> None:
        """Reject a request whose chunk is still queued; one that has begun to leave does so."""
        name = self._queued.pop(request, None)
        if name is not None:  # what stands in a queue and not here is passed over
            self.send(Reject(request, Reason.BUSY))
            self._owner.chunk_left(self, name)

    def turn_away(self) -> None:
        """Reject all that is queued, and whatever is asked from now on: this node leaves."""
        self._leaving = True
        for queue in (self._over_lanes, self._secure):
            while not queue.empty():
                request, name = queue.get_nowait()
                if self._queued.pop(request, None) is not None:
                    self.serve(request, name, secure=False)

    async def finish(self) -> None:
        """Wait until the peer has all that is being sent to it, and has closed its lanes."""
        await self._at_rest.wait()
        await asyncio.gather(*(lane.finish() for lane in self.lanes))

    def close(self) -> None:
        """Close the connection and its lanes; `run` then returns."""
        self._closed = True
        for lane in list(self.lanes):
            lane.close()
        self._writer.transport.abort()

    async def flush(self) -> None:
        """Wait a moment for queued messages to leave."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(0.5):
                await self._writer.drain()

    async def drained(self) -> None:
        """Wait until the network has taken what was sent. Raises OSError once the connection is gone."""
        await self._writer.drain()

    def lane_up(self, lane: Lane) -> None:
        """A lane to this peer is open; closed at once when the peer has gone meanwhile."""
        if self._closed:
            lane.close()
            return
        serving = self._serve_lane(lane)
        try:
            self._tasks.create_task(serving)
        except RuntimeError:  # the group is ending this very moment
            serving.close()
            lane.close()
            return
        self.lanes.append(lane)

    def lane_down(self, lane: Lane) -> None:
        """A lane to this peer is gone."""
        if lane in self.lanes:
            self.lanes.remove(lane)
            self._came_bytes += lane.came_bytes
            self._busy.set()

    # -- reading --------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        decoder = FrameDecoder()
        while data := await self._reader.read(_READ_BYTES):
            for count, body in enumerate(decoder.feed(data), 1):
                if not count % _WORDS_AT_ONCE:
                    await asyncio.sleep(0)
                message = decode_message(body)
                now_s = time.monotonic()
                self._allowance.heard(message, now_s)
                self._dispatch(message)
                wait_s = self._allowance.wait_s(now_s)
                if wait_s:
                    await asyncio.sleep(wait_s)
        raise EOFError

    def _dispatch(self, message: Message) -> None:
        match message:
            case LaneOffer():
                self._owner.lane_offered(self, message)
            case Widen():
                self._owner.offer_lane(self)
            case Lossy():
                self._owner.path_is_lossy(self)
            case Renew() | Renewed():
                self._owner.renewal(self, message)
            case Piece():
                self._add_piece(message)
            case BlockPiece():
                self._owner.block_piece(self, message)
            case _:
                self._owner.message(self, message)

    def _add_piece(self, piece: Piece) -> None:
        asked = self._owner.piece_of(self, piece.request)
        if asked is None:
            self._allowance.unasked(time.monotonic())
            return  # it came by another way meanwhile
        name, size = asked
        if piece.request not in self._pieces:
            for request in [request for request in self._pieces if self._owner.piece_of(self, request) is None]:
                del self._pieces[request]  # closed half-way: its chunk will not be completed here
        body = self._pieces.setdefault(piece.request, bytearray())
        if piece.size != size or piece.offset != len(body) or len(body) + len(piece.data) > size:
            raise ProtocolError(f"pieces of chunk {short(name)} do not follow each other")
        body += piece.data
        self._came_bytes += len(piece.data)
        if len(body) == size:
            del self._pieces[piece.request]
            self._owner.chunk_came(self, None, name, body)

    # -- serving --------------------------------------------------------------------------------------------

    async def _serve_lane(self, lane: Lane) -> None:
        """Serve over one lane as long as it lasts.

        What was written to a lane that broke may have arrived or not: all of it is rejected, which the peer minds only
        for what it still waits for, and asks for again, elsewhere or here.
        """
        unsure: deque[tuple[int, int]] = deque()
        while lane in self.lanes:
            await lane.ready()  # a chunk stays in the queue until its first bytes can leave: it may be withdrawn
            request, name = await self._next(lane)
            if name is None:
                break
            if self._queued.pop(request, None) is None:
                continue
            with self._busy_sending():
                sealed = await self._load(request, name)
                if sealed is not None:
                    unsure.append((request, len(sealed)))
                    while sum(size for _, size in unsure) > UNSURE_BYTES + len(sealed):
                        unsure.popleft()
                    await lane.send(name, sealed)
            self._owner.chunk_left(self, name)
        for request, _ in unsure if not self._leaving else ():  # the goodbye that follows says it for all
            self.send(Reject(request, Reason.BUSY))

    @contextlib.contextmanager
    def _busy_sending(self) -> Iterator[None]:
        """As long as a chunk is being handed to the network."""
        self._sending += 1
        self._at_rest.clear()
        try:
            yield
        finally:
            self._sending -= 1
            if not self._sending:
                self._at_rest.set()

    async def _next(self, lane: Lane) -> tuple[int, bytes | None]:
        """The next chunk to send, or no name once the lane is gone."""
        getting = asyncio.ensure_future(self._over_lanes.get())
        gone = asyncio.ensure_future(lane.gone.wait())
        try:
            await asyncio.wait((getting, gone), return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else (0, None)
        finally:
            gone.cancel()
            getting.cancel()

    async def _without_lanes(self) -> None:
        """Move chunks to TLS while no lane works: some firewalls let only the control connection through."""
        while True:
            await self._something_to_do()
            await asyncio.sleep(LANE_WAIT_S / 4)
            if self.lanes or time.monotonic() - self._began_s < LANE_WAIT_S:
                continue
            while not self._over_lanes.empty() and not self._secure.full():
                self._secure.put_nowait(self._over_lanes.get_nowait())

    async def _something_to_do(self) -> None:
        """Wait until a chunk waits for a lane, or there is none: with fifty idle peers each look would be a wake."""
        if self.lanes and self._over_lanes.empty():
            self._busy.clear()
            await self._busy.wait()

    async def _serve_secure(self) -> None:
        while True:
            request, name = await self._secure.get()
            if self._queued.pop(request, None) is None:
                continue
            with self._busy_sending():
                sealed = await self._load(request, name)
                if sealed is not None:
                    await self._over_tls(request, sealed)
            self._owner.chunk_left(self, name)

    async def _load(self, request: int, name: bytes) -> bytes | bytearray | None:
        sealed = await self._owner.load(name)
        if sealed is None:
            self.send(Reject(request, Reason.MISSING))
        else:
            self.upload.add(len(sealed), time.monotonic())
            self._owner.count_sent(self, len(sealed))
        return sealed

    async def _over_tls(self, request: int, sealed: bytes | bytearray) -> None:
        for offset in range(0, len(sealed), PIECE_BYTES):
            self.send(Piece(request, offset, len(sealed), bytes(sealed[offset : offset + PIECE_BYTES])))
            await self._writer.drain()

    async def _widen(self) -> None:
        """Ask for more lanes while chunks queue behind full ones and not on the path, as long as each carries more.

        Where the last lane has broken, the side that offers them offers another now and then.
        """
        without_s = 0.0
        while True:
            await self._something_to_do()
            await asyncio.sleep(GROWTH_S)
            without_s = 0.0 if self.lanes else without_s + GROWTH_S
            if without_s >= LANE_RETRY_S and self.address is None:
                without_s = 0.0
                self._owner.offer_lane(self)
            rate = self.upload.rate(time.monotonic())
            backlog = self._over_lanes.qsize() > 0 and self.lanes and all(lane.is_full for lane in self.lanes)
            if not backlog or any(lane.path_is_full for lane in self.lanes):
                continue
            if rate > self._best_rate * GROWTH_GAIN:
                self._best_rate = rate
                for _ in range(len(self.lanes)):
                    self._more_lanes()

    def _more_lanes(self) -> None:
        if self.address is None:
            self._owner.offer_lane(self)
        else:
            self.send(Widen())
