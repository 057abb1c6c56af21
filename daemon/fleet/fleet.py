"""Fleet: carries out what the protocol core decides, and tells it what happens on the network."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog

from ...protocol.effects import (
    Dial,
    Dropped,
    Effect,
    Forget,
    Hangup,
    HeadMoved,
    IndexHere,
    Persist,
    Rival,
    RouteReady,
    Send,
    Serve,
    ServeBlock,
    SiteFound,
    StreamKnown,
)
from ...protocol.errors import ProtocolError
from ...protocol.lane import LaneCodec
from ...protocol.manifest import Head, Revocation, StreamRecord
from ...protocol.messages import BlockPiece, Message, ObjectKind, Renew, Renewed
from ...protocol.messages import Lane as LaneOffer
from ...protocol.seal import open_blob
from ...protocol.signed import object_digest
from ...protocol.swarm import Settings, Swarm
from ...storage.catalog import Catalog
from ...storage.chunks import ChunkStore
from ...storage.errors import ChunkCorruptError, ChunkMissingError, StorageError
from ..config import Config, Limits
from . import tls
from .blocks import BlockDesk
from .enrol import Issuer, serve_join
from .identity import Identity
from .lane import Lane
from .lanes import LaneDesk
from .listener import Listener
from .peer import Peer
from .reach import Reach
from .record import OwnRecord, remembered
from .shun import Shunned
from .standing import Standing
from .tally import Scope, Tally
from .traffic import Kept, Traffic
from .view import View

_log: Final = structlog.get_logger(__name__)

DIAL_TIMEOUT_S: Final = 10.0
MAX_JOINERS: Final = 32
"""Strangers in the join exchange at a time; each has EXCHANGE_TIMEOUT_S for it."""

MAX_LINKS: Final = 4
"""Control connections of one node at a time; all but one are about to be closed."""

FULL_DISK_WAIT_S: Final = 5.0
NODES_PER_SECOND: Final = 50
"""Records that a node is willing to hear about each second, when all announce a new head."""


@dataclass(frozen=True, slots=True)
class ChunkStored:
    """A chunk came from a peer, verified, and is in the store."""

    name: bytes


LocalEffect = StreamKnown | HeadMoved | IndexHere | RouteReady | Dropped | ChunkStored


class Fleet:
    """One node among the others. Its methods are called on the event loop.

    `local` takes the effects that concern this host: streams, heads, lists, routes, dropped attempts.
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
        settings = Settings(
            identity.node_public_key,
            identity.ca_public_key,
            config.node.site,
            (*config.node.seeds, *remembered(catalog)),
            config.streams.follow,
            config.storage.memory_limit // 2,
        )
        self.swarm = Swarm(settings, store.has, random.Random(secrets.randbits(64)))  # noqa: S311
        self.view = View(self.swarm)
        self.blocks = BlockDesk(self.swarm, self._carry_out, self._now)
        self.node = identity.node_id
        self.peers: dict[int, Peer] = {}
        self._issuer = replace(issuer, introduce=self.swarm.gossip.introductions)
        self._joiners = 0
        self._shunned = Shunned()
        self._store = store
        self._catalog = catalog
        self._local = local
        self._server_tls = identity.server_tls()
        self._client_tls: ssl.SSLContext = identity.client_tls()
        self._record = OwnRecord(identity, catalog, config.node.site, config.node.addresses)
        self.standing = Standing(
            identity, self.swarm, self._record, (self._server_tls, self._client_tls), self._tell, self._say_record
        )
        self._record_due: asyncio.TimerHandle | None = None
        self._traffic = Traffic(store, config.limits, config.storage.memory_limit, self._lanes)
        self._reach = Reach(config.node)
        self._desk = LaneDesk(config.limits.lanes, self._lane)
        self.tally = Tally()
        self._to_persist: list[tuple[ObjectKind, bytes, bytes]] = []
        self._to_forget: list[bytes] = []
        self._persist = asyncio.Event()
        self._wake = asyncio.Event()
        self._tasks = asyncio.TaskGroup()

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
                self._tasks.create_task(self.standing.run())
                self._tasks.create_task(self._persisting())
                if listening is not None:
                    accepting = Listener(listening, self._server_tls, self._accept, self._desk.accept)
                    self._tasks.create_task(accepting.run())
                yield
        finally:
            if self._record_due is not None:
                self._record_due.cancel()
            for peer in list(self.peers.values()):
                peer.close()
            self._traffic.close()

    def _restore(self) -> None:
        """Learn again what the catalog holds; what is superseded there is forgotten."""
        held = self._catalog.objects()
        for kind, _, data in sorted(held, key=lambda item: item[0]):
            try:
                self.swarm.publish(kind, data, self._now())
            except ProtocolError as error:
                _log.warning("catalog holds an object that does not verify", kind=kind.name, reason=str(error))
        self._catalog.forget([name for _, name, _ in held if self.swarm.gossip.get(name) is None])
        for effect in self.swarm.effects():
            if not isinstance(effect, Persist | Forget):
                self._do(effect)
        earlier = self.swarm.gossip.nodes.get(self.node)
        if earlier is not None:  # said in an earlier life
            self._record.outdo(earlier.serial)
        self._say_record()

    # -- what this host tells the fleet ---------------------------------------------------------------------

    def publish(self, kind: ObjectKind, data: bytes) -> None:
        """Give the fleet a signed object made here. It is durable already."""
        self.swarm.publish(kind, data, self._now())
        self._carry_out()

    async def accept(self, kind: ObjectKind, data: bytes) -> bool:
        """Take a stream record or a revocation; durable when this returns. Whether it is new.

        Raises ProtocolError when nobody entitled has signed it.
        """
        name = object_digest(data, StreamRecord if kind is ObjectKind.STREAM else Revocation)
        new = not self.swarm.gossip.knows(name)
        self.publish(kind, data)
        if self.swarm.gossip.knows(name):
            await asyncio.to_thread(self._catalog.put_objects, [(kind, name, data)])
            return new
        return False

    @property
    def site(self) -> str:
        """The site that this node says it is at."""
        return self._record.site

    def add_page(self, signed: bytes) -> None:
        """Give the fleet an index page made here."""
        self.swarm.fetch.add_page(signed, -1, self._now())
        self._carry_out()

    def stored(self, name: bytes) -> None:
        """A chunk made here is in the store."""
        self.swarm.fetch.stored(name, self._now())
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

    def restore(self, stream: str, names: frozenset[bytes]) -> bool:
        """Chunks of these names left the store: fetch again what was whole with them. Whether anything was."""
        fetch = self.swarm.fetch
        hit = [
            series.attempt
            for series in fetch.stock.series.values()
            if series.stream == stream
            and series.complete()
            and any(name in names for name, _ in (*series.meta, *series.chunks.values()))
        ]
        if hit:
            fetch.routing.restore(stream, hit)
            self.rescan(stream)
        return bool(hit)

    def want_lists(self, stream: str, manifests: frozenset[bytes]) -> None:
        """Fetch the lists of the transitions to these versions, whatever the route is."""
        self.swarm.fetch.routing.want_lists(stream, manifests)
        self.swarm.fetch.request(self._now())
        self._carry_out()

    def forget_chunks(self, attempt: bytes) -> None:
        """The chunks of a transition were deleted here."""
        self.swarm.fetch.deleted(attempt)

    def give_up(self, attempt: bytes) -> None:
        """An attempt made here came to nothing: its chunks go."""
        self.swarm.fetch.give_up(attempt)
        self._carry_out()

    def set_head(self, head: Head) -> None:
        """Say in this node's record which version it has committed; in a large fleet not at once, nor each time."""
        self._record.set_head(head)
        if self._record_due is None:
            wait_s = self.standing.said_s + len(self.swarm.gossip.nodes) / NODES_PER_SECOND - self._now()
            self._record_due = asyncio.get_running_loop().call_later(max(wait_s, 0.0), self._say_record)

    def _say_record(self) -> None:
        self._record_due = None
        self.standing.said_s = self._now()
        self.swarm.announce(self._record.sign(), self._now())
        self._carry_out()

    def set_limits(self, limits: Limits) -> None:
        """Go on with other upload and download limits."""
        self._traffic.set_limits(limits)

    def upload_rate(self, number: int) -> float:
        """Bytes per second sent to a link of late."""
        peer = self.peers.get(number)
        return peer.upload.rate(self._now()) if peer else 0.0

    def lane_count(self, number: int) -> int:
        """Open lanes of a link."""
        peer = self.peers.get(number)
        return len(peer.lanes) if peer else 0

    # -- effects --------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Do what the core wants done. Called after every call into it."""
        for effect in self.swarm.effects():
            self._do(effect)
        self._wake.set()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(number, message):
                if number in self.peers:
                    self.peers[number].send(message)
            case Serve(number, request, name, secure):
                if number in self.peers:
                    self.peers[number].serve(request, name, secure=secure)
            case ServeBlock(number, request, manifest, block):
                if number in self.peers:
                    self._tasks.create_task(self.blocks.send(self.peers[number], request, manifest, block))
            case Hangup(number, reason):
                if number in self.peers:
                    _log.debug("hang up", peer=number, reason=reason)
                    self._spawn(self._close_soon(self.peers[number]))
            case Dial(address):
                self._spawn(self._dial(address))
            case Persist(kind, name, data):
                self._to_persist.append((kind, name, data))
                self._persist.set()
            case Forget(digests):
                self._to_forget += digests
                self._persist.set()
            case SiteFound(site):
                self._record.site = site
                self._say_record()
            case Rival(incarnation, serial):
                self.standing.rival(incarnation, serial)
            case IndexHere(attempt):
                self._spawn(self._open_index(attempt))
                self._local(effect)
            case _:
                self._local(effect)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a task of the fleet; nothing new is begun once the fleet is stopping."""
        try:
            self._tasks.create_task(work)
        except RuntimeError:
            work.close()

    async def _tick(self) -> None:
        while True:
            self.swarm.tick(self._now())
            self._carry_out()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self.swarm.wake_s() - self._now(), 0.001)):
                    await self._wake.wait()  # the core was called: it may be due sooner now

    async def _persisting(self) -> None:
        while True:
            await self._persist.wait()
            self._persist.clear()
            new, self._to_persist = self._to_persist, []
            old, self._to_forget = self._to_forget, []
            try:
                if new:
                    await asyncio.to_thread(self._catalog.put_objects, new)
                if old:
                    await asyncio.to_thread(self._catalog.forget, old)
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
            except (ChunkMissingError, ChunkCorruptError) as error:
                _log.warning("index is not in the store any more", stream=series.stream, reason=str(error))
                self.rescan(series.stream)
                return
            except (StorageError, ProtocolError, OSError) as error:
                _log.error("index does not open", stream=series.stream, reason=str(error))
                return
        self._carry_out()

    # -- control connections --------------------------------------------------------------------------------

    async def _dial(self, address: str) -> None:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                host, port = await self._reach.resolve(address)
                reader, writer = await asyncio.open_connection(host, port, ssl=self._client_tls)
        except (OSError, TimeoutError, ValueError) as error:  # a gossiped address may be anything (UnicodeError too)
            _log.debug("dial failed", address=address, reason=str(error) or type(error).__name__)
            self.swarm.dial_failed(address, self._now())
            self._carry_out()
            return
        await self._run_peer(reader, writer, address)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match tls.classify(writer.get_extra_info("ssl_object")):
            case tls.Member():
                await self._run_peer(reader, writer, None)
            case tls.Joiner() if self._joiners < MAX_JOINERS:
                self._joiners += 1
                try:
                    await serve_join(reader, writer, self._issuer)
                finally:
                    self._joiners -= 1
            case tls.Joiner():
                _log.info("connection refused", reason="too many joiners")
                writer.transport.abort()
            case tls.Refused(why):
                _log.debug("connection refused", reason=why)
                writer.transport.abort()

    async def _run_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str | None) -> None:
        try:
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            key = tls.peer_node_key(writer.get_extra_info("ssl_object"))
        except (OSError, ValueError) as error:  # gone again, or no node's certificate
            _log.debug("connection given up", address=address, reason=str(error))
            writer.transport.abort()
            if address is not None:
                self.swarm.dial_failed(address, self._now())
            return
        shunned = self._shunned.is_shunned(key, self._now())
        if shunned or sum(link.node_key == key for link in self.swarm.links.values()) >= MAX_LINKS:
            reason = "the node broke a rule a moment ago" if shunned else "the node has enough connections"
            _log.debug("connection refused", reason=reason)
            writer.transport.abort()
            if address is not None:
                self.swarm.dial_failed(address, self._now())
            return
        peer = Peer(self, reader, writer, address)
        peer.number = self.swarm.link_up(key, address, self._now())
        self.peers[peer.number] = peer
        self._carry_out()
        try:
            await peer.run()
        finally:
            del self.peers[peer.number]
            if peer.broke_rule:
                self._shunned.offended(key, self._now())
            self.blocks.gone(peer.number)
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
        if not greeted and self._greeted(peer):
            self._desk.offer(peer)
        self._carry_out()

    def renewal(self, peer: Peer, message: Renew | Renewed) -> None:
        """Take a word about certificates. Raises ProtocolError before hello."""
        if not self._greeted(peer):
            raise ProtocolError("certificates were spoken of before hello")
        if isinstance(message, Renewed):
            self._spawn(self.standing.renewed(message))
        else:
            self.standing.asked(peer.number)

    def _tell(self, number: int, message: Message) -> None:
        if number in self.peers:
            self.peers[number].send(message)

    def _greeted(self, peer: Peer) -> bool:
        link = self.swarm.links.get(peer.number)
        return link is not None and link.record is not None

    # -- lanes and chunks -----------------------------------------------------------------------------------

    def offer_lane(self, peer: Peer) -> None:
        """Offer the peer one more lane, if the limit allows. Raises ProtocolError before hello."""
        if not self._greeted(peer):
            raise ProtocolError("a lane was asked for before hello")
        self._desk.offer(peer)

    def lane_offered(self, peer: Peer, offer: LaneOffer) -> None:
        """Dial a lane that the peer offers. Raises ProtocolError when it has no business to."""
        if peer.address is None or not self._greeted(peer):
            raise ProtocolError("a lane was offered by the side that dialled, or before hello")
        self._spawn(self._desk.dial(peer, offer))

    def _lane(self, peer: Peer, codec: LaneCodec) -> Lane:
        return Lane(
            codec,
            expected=lambda name: self.swarm.expected(peer.number, name),
            received=lambda lane, name, body: self.chunk_came(peer, lane, name, body),
            closed=peer.lane_down,
        )

    def _lanes(self) -> list[Lane]:
        return [lane for peer in self.peers.values() for lane in peer.lanes]

    def piece_of(self, peer: Peer, request: int) -> tuple[bytes, int] | None:
        """(name, size) of the chunk that was asked under this number."""
        return self.swarm.flight(peer.number, request)

    async def load(self, name: bytes) -> bytes | bytearray | None:
        """Sealed bytes of a chunk once the upload limit lets it go; None when it is gone."""
        return await self._traffic.load(name)

    def chunk_left(self, peer: Peer, name: bytes) -> None:
        """A chunk was handed to the network for a peer, or could not be."""
        self.swarm.chunk_served(peer.number, name)

    def streams_of(self, name: bytes) -> set[str]:
        """Streams that have a use for a chunk."""
        stock = self.swarm.fetch.stock
        return {stock.series[attempt].stream for attempt in stock.attempts_of(name)}

    def count_sent(self, peer: Peer, size_bytes: int) -> None:
        """Bytes of a chunk leave for a peer."""
        self.tally.sent_bytes[self._scope(peer)] += size_bytes

    def _scope(self, peer: Peer) -> Scope:
        """Whether a peer is of this node's own site, as far as it says."""
        link = self.swarm.links.get(peer.number)
        record = link.record if link else None
        return "site" if record is not None and record.site == self._record.site else "wan"

    def block_piece(self, peer: Peer, piece: BlockPiece) -> None:
        """Take a piece of a block. Raises ProtocolError when pieces do not follow each other."""
        whole = self.blocks.take(peer.number, piece)
        if whole is not None:
            self._tasks.create_task(self.blocks.check(peer.number, piece.request, whole))

    def chunk_came(self, peer: Peer, lane: Lane | None, name: bytes, body: bytearray) -> None:
        """Take a chunk's unverified bytes; `lane` is None when they came over TLS."""
        self._traffic.came(len(body))
        self._spawn(self._keep(peer, lane, name, body))

    async def _keep(self, peer: Peer, lane: Lane | None, name: bytes, body: bytearray) -> None:
        scope = self._scope(peer)
        kept = await self._traffic.keep(name, body)
        now_s = self._now()
        self.tally.received_bytes[scope] += len(body)
        match kept:
            case Kept.STORED:
                self._local(ChunkStored(name))
                self.swarm.chunk_arrived(peer.number, name, now_s, intact=True, secure=lane is None)
            case Kept.DAMAGED:
                self.tally.damaged_chunks += 1
                _log.warning("damaged chunk", peer=peer.number, over="TLS" if lane is None else "lane")
                if lane is not None:
                    lane.close()
                self.swarm.chunk_arrived(peer.number, name, now_s, intact=False, secure=lane is None)
            case Kept.NO_ROOM:
                self.tally.unstored_chunks += 1
                self.swarm.fetch.hold_off(now_s + FULL_DISK_WAIT_S)
                self.swarm.chunk_not_kept(peer.number, name, now_s)
        self._carry_out()

    # -- what no link brought -------------------------------------------------------------------------------

    def learn(self, objects: Iterable[tuple[ObjectKind, bytes]]) -> list[str]:
        """Take signed objects, each verified as one from a peer is; what is wrong with those that were refused."""
        refused = []
        for kind, data in objects:
            try:
                self.swarm.publish(kind, data, self._now())
            except ProtocolError as error:
                refused.append(str(error))
        self._carry_out()
        return refused

    def mirror_holds(self, stream: str, attempts: frozenset[bytes]) -> None:
        """Say of which transitions of a stream a mirror has every chunk."""
        self.swarm.fetch.mirrored.holds(stream, attempts)
        self._carry_out()

    async def download_allowed(self) -> None:
        """Wait until the download limit lets more come in."""
        await self._traffic.allowed()

    async def keep(self, name: bytes, body: bytearray) -> Kept:
        """Verify a chunk and keep it."""
        self._traffic.came(len(body))
        kept = await self._traffic.keep(name, body)
        self.tally.received_bytes["wan"] += len(body)
        match kept:
            case Kept.STORED:
                self._local(ChunkStored(name))
                self.stored(name)
            case Kept.DAMAGED:
                self.tally.damaged_chunks += 1
            case Kept.NO_ROOM:
                self.tally.unstored_chunks += 1
        return kept

    @staticmethod
    def _now() -> float:
        return time.monotonic()
