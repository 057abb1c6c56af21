"""Fleet: carries out what the protocol core decides: connections, lanes, chunks in and out of the store."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from ...protocol.effects import (
    Dial,
    Dropped,
    Effect,
    Hangup,
    HeadMoved,
    IndexHere,
    Persist,
    RouteReady,
    Send,
    Serve,
    StreamKnown,
)
from ...protocol.errors import FrameError, ProtocolError, SealError
from ...protocol.ids import digest
from ...protocol.lane import LaneCodec, check_preamble, encode_preamble, preamble_lane
from ...protocol.manifest import Head, Manifest, NodeRecord, Subject, Transition
from ...protocol.messages import Lane as LaneOffer
from ...protocol.messages import Message, ObjectKind
from ...protocol.seal import open_blob
from ...protocol.signed import sign
from ...protocol.swarm import Settings, Swarm
from ...storage.catalog import Catalog
from ...storage.chunks import ChunkStore
from ...storage.errors import ChunkCorruptError, ChunkMissingError, NoSpaceError, StorageError
from ..config import Config
from ..units import parse_address
from . import tls
from .enrol import Issuer, serve_join
from .identity import Identity
from .lane import Lane
from .listener import Listener
from .peer import Peer

_log: Final = structlog.get_logger(__name__)

DIAL_TIMEOUT_S: Final = 10.0
LANE_OFFER_S: Final = 30.0
FULL_DISK_WAIT_S: Final = 5.0
_SERIAL: Final = "node serial"
_SERIALS_PER_START: Final = 2**24


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a stream is behind."""

    versions: int
    seconds: float
    """Since the oldest version that is not committed here was announced."""


LocalEffect = StreamKnown | HeadMoved | IndexHere | RouteReady | Dropped


class Fleet:
    """One node among the others.

    `local` takes the effects that concern this host (streams, heads, routes, dropped attempts), on the event loop.
    """

    def __init__(
        self,
        identity: Identity,
        config: Config,
        issuer: Issuer,
        store: ChunkStore,
        catalog: Catalog,
        local: Callable[[LocalEffect], None],
    ) -> None:
        self._identity = identity
        self._config = config
        self._issuer = issuer
        self._store = store
        self._catalog = catalog
        self._local = local
        settings = Settings(
            identity.node_public_key,
            identity.ca_public_key,
            config.node.site,
            config.node.seeds,
            config.streams.follow,
        )
        self.swarm = Swarm(settings, store.has, random.Random(secrets.randbits(64)))  # noqa: S311
        self.peers: dict[int, Peer] = {}
        self._offers: dict[bytes, tuple[Peer, bytes, float]] = {}
        self._dials: set[str] = set()
        self._to_persist: list[tuple[ObjectKind, bytes, bytes]] = []
        self._persist = asyncio.Event()
        self._wake = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="chunks")
        self._pending_bytes = 0
        self._incarnation = secrets.token_bytes(16)
        self._serial = self._next_serial()
        self._heads: dict[str, Head] = {}
        self._heard: dict[str, dict[tuple[int, int], float]] = {}  # when each version not committed here was first seen
        self._client_tls: ssl.SSLContext = identity.client_tls()

    # -- life -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self, listening: socket.socket | None) -> AsyncIterator[None]:
        """Be part of the fleet as long as the context lasts, which only a cancellation or an error ends.

        `listening` is None for a node that only dials out.
        """
        try:
            async with self._tasks:
                self._restore()
                self._tasks.create_task(self._tick())
                self._tasks.create_task(self._persisting())
                if listening is not None:
                    accepting = Listener(listening, self._identity.server_tls(), self._accept, self._accept_lane)
                    self._tasks.create_task(accepting.run())
                yield
        finally:
            for peer in list(self.peers.values()):
                peer.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _restore(self) -> None:
        """Learn again what the catalog holds; what is superseded there is forgotten."""
        now_s = self._now()
        held = self._catalog.objects()
        for kind, _, data in sorted(held, key=lambda item: item[0]):
            try:
                self.swarm.publish(kind, data, now_s)
            except ProtocolError as error:
                _log.warning("catalog holds an object that does not verify", kind=kind.name, reason=str(error))
        self._catalog.forget(name for _, name, _ in held if self.swarm.gossip.get(name) is None)
        self._announce()
        self._carry_out()

    def set_head(self, head: Head) -> None:
        """Say in this node's record which version it has committed."""
        self._heads[head.stream] = head
        self._announce()
        self._carry_out()

    def publish(self, kind: ObjectKind, data: bytes) -> None:
        """Give the fleet a signed object made here. It is durable already."""
        self.swarm.publish(kind, data, self._now())
        self._carry_out()

    def add_page(self, signed: bytes) -> None:
        """Give the fleet an index page made here."""
        self.swarm.fetch.add_page(signed, -1, self._now())
        self._carry_out()

    def hold(self, stream: str, held: frozenset[bytes], *, lists_first: bool = False) -> None:
        """Say which manifests this host has the bytes of."""
        self.swarm.fetch.hold(stream, held, lists_first=lists_first, now_s=self._now())
        self._carry_out()

    def mark_bad(self, stream: str, attempt: bytes) -> None:
        """Leave a transition out of every route from now on."""
        self.swarm.fetch.mark_bad(stream, attempt, self._now())
        self._carry_out()

    def rescan(self, stream: str) -> None:
        """The store lost something: look what is missing, and fetch it."""
        self.swarm.fetch.rescan(stream, self._now())
        self._carry_out()

    def manifest(self, name: bytes) -> Manifest | None:
        """The manifest with this digest, if it is known."""
        return self.swarm.gossip.manifests.get(name)

    def transition_to(self, stream: str, manifest: bytes) -> Transition | None:
        """A transition that leads to a version and whose lists are here: the newest step if there is one."""
        found = [each for each in self.listed(stream) if each.target == manifest]
        return min(found, key=lambda each: each.kind, default=None)

    def listed(self, stream: str) -> list[Transition]:
        """Transitions of a stream whose lists (layout, digest table, index) are all in the store."""
        series = self.swarm.fetch.stock.series
        return [
            each
            for each in self.swarm.gossip.routes(stream)
            if each.attempt in series and not series[each.attempt].missing_meta()
        ]

    def lists_pending(self, stream: str) -> bool:
        """Whether lists are being fetched that a local base could be compared with."""
        return any(each.stream == stream and each.missing_meta() for each in self.swarm.fetch.routing.wanted_lists())

    def lag(self, stream: str, current: tuple[int, int] | None) -> Lag:
        """How far (epoch, version) `current`, None for nothing, is behind the newest announced version."""
        newer = {
            (header.epoch, header.version)
            for header in self.swarm.gossip.headers(stream)
            if header.subject is Subject.MANIFEST and (current is None or (header.epoch, header.version) > current)
        }
        heard = self._heard.setdefault(stream, {})
        for version in [version for version in heard if version not in newer]:
            del heard[version]
        now_s = self._now()
        for version in newer:
            heard.setdefault(version, now_s)
        return Lag(len(newer), now_s - min(heard.values(), default=now_s))

    def planned(self, stream: str) -> frozenset[bytes]:
        """Attempts that the route to the head goes over."""
        following = self.swarm.fetch.routing.following.get(stream)
        return frozenset(leg.attempt for leg in (following.route or ())) if following else frozenset()

    def fetching(self, stream: str) -> tuple[int, int, int] | None:
        """(version, bytes here, bytes in all) of the route that is being fetched, None when nothing is."""
        legs = [
            self.swarm.fetch.stock.series[attempt]
            for attempt in self.planned(stream)
            if attempt in self.swarm.fetch.stock.series
        ]
        total = sum(part.size for leg in legs if leg.transition for part in leg.transition.parts)
        missing = sum(leg.missing_bytes() for leg in legs)
        if not missing:
            return None
        return max(leg.version[1] for leg in legs), max(total - missing, 0), total

    def has_chunks(self, transition: Transition) -> bool:
        """Whether any chunk of a transition is here."""
        series = self.swarm.fetch.stock.series.get(transition.attempt)
        return series is not None and bool(series.have.data)

    def forget_chunks(self, transition: Transition) -> None:
        """The chunks of a transition were deleted."""
        self.swarm.fetch.deleted(transition.attempt)

    def lanes(self, number: int) -> int:
        """Open lanes of a link."""
        peer = self.peers.get(number)
        return len(peer.lanes) if peer else 0

    def upload_rate(self, number: int) -> float:
        """Bytes per second sent to a link of late."""
        peer = self.peers.get(number)
        return peer.upload.rate(self._now()) if peer else 0.0

    def sites(self) -> int:
        """Sites that nodes have named, at least one."""
        return max(1, len({record.site for record in self.swarm.gossip.nodes.values()}))

    def _next_serial(self) -> int:
        """A serial above every one used in earlier lives, whatever the clock says."""
        last = int.from_bytes(self._catalog.get(_SERIAL) or b"", "big")
        self._catalog.put(_SERIAL, (last + _SERIALS_PER_START).to_bytes(8, "big"))
        return last + 1

    def _announce(self) -> None:
        own = self._identity
        record = NodeRecord(
            own.node_public_key,
            self._incarnation,
            self._serial,
            self._config.node.site,
            self._config.node.addresses,
            tuple(self._heads[stream] for stream in sorted(self._heads))[:64],
            own.membership,
        )
        self._serial += 1
        self.swarm.announce(sign(record, own.node_key), self._now())

    # -- effects --------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Do what the core wants done. Called after every call into it."""
        for effect in self.swarm.effects():
            self._do(effect)
        self._wake.set()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                peer = self.peers.get(effect.link)
                if peer is not None:
                    peer.send(effect.message)
            case Serve():
                peer = self.peers.get(effect.link)
                if peer is not None:
                    peer.serve(effect.request, effect.name, secure=effect.secure)
            case Hangup():
                peer = self.peers.get(effect.link)
                if peer is not None:
                    _log.debug("hang up", peer=effect.link, reason=effect.reason)
                    self._tasks.create_task(self._close_soon(peer))
            case Dial():
                self._tasks.create_task(self._dial(effect.address))
            case Persist():
                self._to_persist.append((effect.kind, effect.digest, effect.data))
                self._persist.set()
            case IndexHere():
                self._tasks.create_task(self._open_index(effect.attempt))
                self._local(effect)
            case _:
                self._local(effect)

    async def _tick(self) -> None:
        while True:
            self.swarm.tick(self._now())
            self._expire_offers()
            self._carry_out()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self.swarm.wake_s() - self._now(), 0.001)):
                    await self._wake.wait()
                    # Woken because the core was called: it may be due sooner now.

    async def _persisting(self) -> None:
        while True:
            await self._persist.wait()
            self._persist.clear()
            batch, self._to_persist = self._to_persist, []
            try:
                await asyncio.to_thread(self._catalog.put_objects, batch)
            except StorageError as error:
                # What is not kept is gossiped again after a restart; the node goes on with what it knows.
                _log.error("catalog not written", reason=str(error))

    async def _open_index(self, attempt: bytes) -> None:
        series = self.swarm.fetch.stock.series.get(attempt)
        if series is None or series.transition is None:
            return
        for number, part in enumerate(series.transition.parts):
            try:
                pieces = [await asyncio.to_thread(self._store.get, name) for name, _ in part.index.chunks]
                data = await asyncio.to_thread(open_blob, part.index, pieces)
                self.swarm.fetch.index_known(attempt, number, data, self._now())
            except (StorageError, SealError, ProtocolError) as error:
                _log.error("index does not open", stream=series.stream, reason=str(error))
                return
        self._carry_out()

    # -- control connections --------------------------------------------------------------------------------

    async def _dial(self, address: str) -> None:
        host, port = parse_address(address)
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port, ssl=self._client_tls)
        except (OSError, TimeoutError) as error:
            _log.debug("dial failed", address=address, reason=str(error) or type(error).__name__)
            self.swarm.dial_failed(address, self._now())
            self._carry_out()
            return
        await self._run_peer(reader, writer, address)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match tls.classify(writer.get_extra_info("ssl_object")):
            case tls.Member():
                await self._run_peer(reader, writer, None)
            case tls.Joiner():
                await serve_join(reader, writer, self._issuer)
            case tls.Refused(why):
                _log.debug("connection refused", reason=why)
                writer.transport.abort()

    async def _run_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str | None) -> None:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = tls.peer_node_key(writer.get_extra_info("ssl_object"))
        peer = Peer(self, reader, writer, address)
        peer.number = self.swarm.link_up(key, address, self._now())
        self.peers[peer.number] = peer
        self._carry_out()
        try:
            await peer.run()
        finally:
            del self.peers[peer.number]
            self.swarm.link_down(peer.number, self._now())
            self._carry_out()

    async def _close_soon(self, peer: Peer) -> None:
        """Close a peer after its goodbye had a moment to leave."""
        await peer.flush()
        peer.close()

    def message(self, peer: Peer, message: Message) -> None:
        """Take a control message. Raises ProtocolError, which closes the peer."""
        greeted = self._greeted(peer)
        self.swarm.receive(peer.number, message, self._now())
        if not greeted and self._greeted(peer) and peer.address is None:
            self._offer_lane(peer)
        self._carry_out()

    def _greeted(self, peer: Peer) -> bool:
        link = self.swarm.links.get(peer.number)
        return link is not None and link.record is not None

    # -- lanes ----------------------------------------------------------------------------------------------

    def _offer_lane(self, peer: Peer) -> None:
        """Let the dialler of the control connection dial a lane: only it is known to get through."""
        lane, key = secrets.token_bytes(16), secrets.token_bytes(32)
        self._offers[lane] = (peer, key, self._now() + LANE_OFFER_S)
        peer.send(LaneOffer(lane, key))

    def _expire_offers(self) -> None:
        now_s = self._now()
        for lane in [lane for lane, (_, _, until_s) in self._offers.items() if until_s <= now_s]:
            del self._offers[lane]

    def lane_offered(self, peer: Peer, offer: LaneOffer) -> None:
        """Dial a lane that the peer offers. Raises ProtocolError when it has no business to."""
        if peer.address is None or not self._greeted(peer):
            raise ProtocolError("a lane was offered by the side that dialled")
        self._tasks.create_task(self._dial_lane(peer, offer))

    async def _dial_lane(self, peer: Peer, offer: LaneOffer) -> None:
        assert peer.address is not None
        host, port = parse_address(peer.address)
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                transport, lane = await asyncio.get_running_loop().create_connection(
                    lambda: self._lane(peer, LaneCodec(offer.key, dialler=True)), host, port
                )
        except (OSError, TimeoutError) as error:
            _log.info("no lane", address=peer.address, reason=str(error) or type(error).__name__)
            return
        transport.write(encode_preamble(offer.lane, offer.key))
        self._lane_up(peer, lane)

    async def _accept_lane(self, connection: socket.socket, preamble: bytes) -> None:
        try:
            offered = self._offers.pop(preamble_lane(preamble), None)
            if offered is None:
                raise FrameError("a lane that was not offered")  # noqa: TRY301
            peer, key, _ = offered
            check_preamble(preamble, key)
        except FrameError as error:
            _log.warning("lane refused", reason=str(error))
            connection.close()
            return
        _, lane = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._lane(peer, LaneCodec(key, dialler=False)), connection
        )
        self._lane_up(peer, lane)

    def _lane(self, peer: Peer, codec: LaneCodec) -> Lane:
        return Lane(
            codec,
            expected=lambda name: self.swarm.expected(peer.number, name),
            received=lambda lane, name, body: self.chunk_came(peer, lane, name, body),
            closed=peer.lane_down,
        )

    def _lane_up(self, peer: Peer, lane: Lane) -> None:
        if peer.number in self.peers:
            peer.lane_up(lane)
        else:
            lane.close()

    # -- chunks ---------------------------------------------------------------------------------------------

    def piece_of(self, peer: Peer, request: int) -> tuple[bytes, int] | None:
        """(name, size) of the chunk that was asked under this number."""
        return self.swarm.flight(peer.number, request)

    async def load(self, name: bytes) -> bytes | None:
        """Sealed bytes of a chunk, None when it is gone."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._store.get, name)
        except (ChunkMissingError, ChunkCorruptError) as error:
            _log.warning("chunk cannot be served", reason=str(error))
            return None

    def chunk_came(self, peer: Peer, lane: Lane | None, name: bytes, body: bytearray) -> None:
        """Verify and store a chunk in a thread; lanes pause while too much waits for that."""
        self._pending_bytes += len(body)
        if self._pending_bytes > self._config.storage.memory_limit // 4:
            for each in self.peers.values():
                for open_lane in each.lanes:
                    open_lane.pause_reading()
        self._tasks.create_task(self._keep(peer, lane, name, body))

    async def _keep(self, peer: Peer, lane: Lane | None, name: bytes, body: bytearray) -> None:
        intact = True
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._store.put, name, body)
        except ChunkCorruptError as error:
            _log.warning("damaged chunk", peer=peer.number, reason=str(error))
            intact = False
            if lane is not None:
                lane.close()
        except (NoSpaceError, OSError) as error:
            _log.error("chunk not stored", reason=str(error))
            self.swarm.fetch.hold_off(self._now() + FULL_DISK_WAIT_S)
        finally:
            self._pending_bytes -= len(body)
            if self._pending_bytes <= self._config.storage.memory_limit // 8:
                for each in self.peers.values():
                    for open_lane in each.lanes:
                        open_lane.resume_reading()
        if intact and not self._store.has(name):
            self.swarm.chunk_not_kept(peer.number, name, self._now())
        else:
            self.swarm.chunk_arrived(peer.number, name, self._now(), intact=intact, secure=lane is None)
        self._carry_out()

    def chunk_left(self, peer: Peer, name: bytes) -> None:
        """A chunk was handed to the network for a peer, or could not be."""
        self.swarm.chunk_served(peer.number, name)

    def stored(self, name: bytes) -> None:
        """A chunk made here is in the store."""
        self.swarm.fetch.stored(name, self._now())
        self._carry_out()

    @staticmethod
    def _now() -> float:
        return time.monotonic()

    @property
    def node(self) -> bytes:
        """Id of this node."""
        return digest(self._identity.node_public_key)
