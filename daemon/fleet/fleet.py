"""Fleet: carries out what the protocol core decides, and tells it what happens on the network."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
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
    Withdraw,
)
from ...protocol.errors import ProtocolError
from ...protocol.lane import LaneCodec
from ...protocol.manifest import Head, Revocation, StreamRecord
from ...protocol.messages import BlockPiece, Lossy, Message, ObjectKind, Renew, Renewed
from ...protocol.messages import Lane as LaneOffer
from ...protocol.seal import open_blob
from ...protocol.signed import object_digest
from ...protocol.swarm import Settings, Swarm
from ...storage.catalog import Catalog
from ...storage.chunks import ChunkStore
from ...storage.errors import ChunkCorruptError, ChunkMissingError, StorageError
from ..config import Config, Limits
from .blocks import BlockDesk
from .congestion import Uplink
from .doors import Doors, Streams
from .enrol import Issuer
from .identity import Identity
from .intake import ChunkStored, Intake
from .lane import Lane
from .lanes import LaneDesk, LaneWatch
from .leaving import LEAVE_S, leave
from .ledger import Ledger
from .listener import Listener
from .peer import Peer
from .reach import Reach
from .record import OwnRecord, remembered
from .standing import Standing
from .tally import Scope, Tally
from .traffic import Kept, Traffic
from .view import View

_log: Final = structlog.get_logger(__name__)

LOOK_S: Final = 0.1
"""How often the core is told what has come, while it wants to be called."""

NODES_PER_SECOND: Final = 50
"""Records that a node is willing to hear about each second, when all announce a new head."""


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
        self._store = store
        self._catalog = catalog
        self._local = local
        self._server_tls = identity.server_tls()
        client_tls = identity.client_tls()
        self._record = OwnRecord(identity, catalog, config.node.site, config.node.addresses)
        self.standing = Standing(
            identity, self.swarm, self._record, (self._server_tls, client_tls), self._tell, self._say_record
        )
        self._record_due: asyncio.TimerHandle | None = None
        self._traffic = Traffic(store, config.limits, config.storage.memory_limit, self._lanes)
        issuer = replace(issuer, introduce=self.swarm.gossip.introductions)
        self.doors = Doors(self.swarm, issuer, client_tls, Reach(config.node), self._meet, self._dial_failed)
        self._desk = LaneDesk(config.limits.lanes, self._lane)
        self.tally = Tally()
        self._intake = Intake(self.swarm, self._traffic, self.tally, local, self._spawn, self._carry_out)
        self._ledger = Ledger(catalog)
        self.uplink = Uplink(self._tell_lossy)
        self._lane_watch = LaneWatch(self._lanes)
        self._wake = asyncio.Event()
        self._wakes_s = 0.0  # when the core is called next without being asked
        self._tasks = asyncio.TaskGroup()
        self._leaving = False

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
                self._tasks.create_task(self._lane_watch.run())
                self._tasks.create_task(self.standing.run())
                self._tasks.create_task(self._ledger.run())
                if listening is not None:
                    accepting = Listener(listening, self._server_tls, self.doors.accept, self._desk.accept)
                    self._tasks.create_task(accepting.run())
                yield
        finally:
            if self._record_due is not None:
                self._record_due.cancel()
            for peer in list(self.peers.values()):
                peer.close()
            self._traffic.close()

    async def leave(self) -> None:
        """Part from every peer in good order, before `running` ends: nothing is begun from now on."""
        self._leaving = True
        self.swarm.fetch.hold_off(self._now() + 2 * LEAVE_S)
        self.swarm.fetch.serving.stop()
        self._carry_out()
        await leave(list(self.peers.values()))

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
        hit = self.swarm.fetch.stock.whole_with(stream, names)
        if hit:
            self.swarm.fetch.routing.restore(stream, hit)
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
        if self.swarm.wake_s() < self._wakes_s:
            self._wake.set()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(number, message):
                if number in self.peers:
                    self.peers[number].send(message)
            case Serve(number, request, name, secure):
                if number in self.peers:
                    self.peers[number].serve(request, name, secure=secure)
            case Withdraw(number, request):
                if number in self.peers:
                    self.peers[number].withdraw(request)
            case ServeBlock(number, request, manifest, block):
                if number in self.peers:
                    self._spawn(self.blocks.send(self.peers[number], request, manifest, block))
            case Hangup(number, reason):
                if number in self.peers:
                    _log.debug("hang up", peer=number, reason=reason)
                    self._spawn(self._close_soon(self.peers[number]))
            case Dial(address):
                if not self._leaving:
                    self._spawn(self.doors.dial(address))
            case Persist(kind, name, data):
                self._ledger.keep(kind, name, data)
            case Forget(digests):
                self._ledger.forget(digests)
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
        guarded = _guarded(work)
        try:
            self._tasks.create_task(guarded)
        except RuntimeError:
            guarded.close()
            work.close()

    async def _tick(self) -> None:
        looked_s = 0.0
        while True:
            now_s = self._now()
            if now_s >= looked_s + LOOK_S:
                looked_s = now_s
                self._report_progress(now_s)
            self.swarm.tick(now_s)
            self._carry_out()
            self._wake.clear()
            self._wakes_s = self.swarm.wake_s()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._wakes_s - self._now(), 0.001)):
                    await self._wake.wait()  # the core was called, and is due sooner now

    def _report_progress(self, now_s: float) -> None:
        """Tell the core how much has come: who sends is not silent."""
        for peer in self.peers.values():
            self.swarm.progressed(peer.number, peer.came_bytes, now_s)
        if self._traffic.is_holding_back:
            self.swarm.not_reading(now_s)

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

    async def _meet(self, key: bytes, streams: Streams, address: str | None) -> None:
        """Be in touch with a member until the connection ends; `address` is where it was dialled."""
        peer = Peer(self, *streams, address)
        if self._leaving:
            peer.close()
            return
        peer.number = self.swarm.link_up(key, address, self._now())
        self.peers[peer.number] = peer
        self._carry_out()
        try:
            await peer.run()
        finally:
            del self.peers[peer.number]
            if peer.broke_rule:
                self.doors.shunned.offended(key, self._now())
            self.blocks.gone(peer.number)
            self.swarm.link_down(peer.number, self._now())
            self._carry_out()

    def _dial_failed(self, address: str) -> None:
        self.swarm.dial_failed(address, self._now())
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
            link = self.swarm.links[peer.number]
            peer.congestion = self.uplink.path_to(link.site, link.node)
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

    def path_is_lossy(self, peer: Peer) -> None:
        """Take a peer's word that packets get lost between its site and another. Raises ProtocolError before hello."""
        if not self._greeted(peer):
            raise ProtocolError("loss was spoken of before hello")
        self.uplink.bear_loss()

    def _tell_lossy(self, site: str) -> None:
        """Say at both ends of the path to a site that it loses packets."""
        for link in self.swarm.connected():
            if link.site in (site, self._record.site):
                self._tell(link.number, Lossy())

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
            peer.congestion,
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
        self._lane_watch.sent()
        self.swarm.chunk_served(peer.number, name)

    def streams_of(self, name: bytes) -> set[str]:
        """Streams that have a use for a chunk."""
        return self.swarm.fetch.stock.streams_of(name)

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
            self._spawn(self.blocks.check(peer.number, piece.request, whole))

    def chunk_came(self, peer: Peer, lane: Lane | None, name: bytes, body: bytearray) -> None:
        """Take a chunk's unverified bytes; `lane` is None when they came over TLS."""
        self._intake.came(peer.number, self._scope(peer), lane, name, body)

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
        """Verify a chunk that no peer brought, and keep it."""
        kept = await self._intake.take(name, body)
        if kept is Kept.STORED:
            self.stored(name)
        return kept

    @staticmethod
    def _now() -> float:
        return time.monotonic()


async def _guarded(work: Coroutine[object, object, None]) -> None:
    """Do a piece of work. A mistake of ours that somebody has brought to light in it costs this piece, not the node."""
    try:
        await work
    except Exception:
        _log.exception("work of the fleet given up")
