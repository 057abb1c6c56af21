"""Swarm: the whole brain of one node towards the others. Bytes and events in, effects out.

The daemon, or the simulator, reports what happened (`link_up`, `receive`, `chunk_arrived`, `tick`, …) and then
carries out `effects()`. Nothing here waits, reads a clock or opens a socket: `now_s` is any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from .blocks import Blocks
from .chance import Chance
from .conduct import Conducts
from .dialer import Dialer
from .effects import Dial, Effect, Hangup, Rival, Send, SiteFound
from .errors import MessageError
from .fetch import Fetch
from .gossip import Gossip, Learned
from .ids import digest, short
from .link import Link
from .manifest import Beacon, NodeRecord, Revocation
from .messages import (
    PROTOCOL_VERSION,
    BlockReject,
    BlockRequest,
    Buckets,
    Bye,
    Have,
    Headers,
    Hello,
    Inventory,
    Message,
    Object,
    ObjectKind,
    Ping,
    Pong,
    Pull,
    Reject,
    Request,
    Summary,
)
from .signed import peek
from .sites import label_of
from .spread import Spread
from .topology import FULL_MESH, Topology

TICK_S: Final = 1.0
SILENT_S: Final = 6.0
"""A link on which nothing was heard for this long is dead."""

QUIET_S: Final = 2.0
"""A ping goes out in each second in which nothing was heard for this long: at least three, before a link is dead."""

RTT_FRESH_S: Final = 5.0
"""A round trip is measured this often on a link that chunks come over, or that is new, however much is heard."""

RTT_IDLE_S: Final = 30.0
"""And this often on others; a link is new for as long."""

HELLO_S: Final = 10.0
LINGER_S: Final = 30.0
"""How long a link that nobody needs is kept."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What does not change while the node runs."""

    node_key: bytes
    ca_key: bytes
    site: str
    seeds: tuple[str, ...]
    follow: tuple[str, ...]  # stream names; "*" is every stream
    inflight_limit: int | None = None  # bytes asked for at one time, of all peers together


class Swarm:
    """Links, gossip, fetching and dialling of one node. `has` tells whether the chunk store holds a name."""

    def __init__(self, settings: Settings, has: Callable[[bytes], bool], rng: Chance) -> None:
        self.settings = settings
        self.node = digest(settings.node_key)
        self.links: dict[int, Link] = {}
        self.gossip = Gossip(settings.ca_key)
        self._effects: list[Effect] = []
        self.fetch = Fetch(
            self.gossip,
            self.links,
            self._effects.append,
            has,
            self.node,
            settings.site,
            rng,
            settings.inflight_limit,
        )
        self.blocks = Blocks(self.gossip, self.links, self._effects.append, settings.site)
        self._spread = Spread(
            self.gossip, self.links, self._effects.append, self._learned, self.fetch.outdated, self.follows
        )
        self._dialer = Dialer(settings.seeds, rng)
        self._topology = Topology(self.gossip, self.node)
        self._conducts = Conducts()
        self._dialled: dict[int, str] = {}
        self._record = b""
        self._incarnation = b""
        self._next_link = 0
        self._next_tick_s = 0.0
        self._now_s = 0.0

    def follows(self, stream: str) -> bool:
        """Whether this node keeps up with `stream`."""
        return "*" in self.settings.follow or stream in self.settings.follow

    def effects(self) -> list[Effect]:
        """What is to be done, in order; empties the list."""
        done = self._effects[:]
        self._effects.clear()
        return done

    def wake_s(self) -> float:
        """When `tick` wants to be called, at the latest."""
        return min(self.fetch.due_s(), self._next_tick_s)

    # -- this node ------------------------------------------------------------------------------------------

    def announce(self, record: bytes, now_s: float) -> None:
        """Set this node's own signed record: said in Hello and gossiped."""
        self._record = record
        self._incarnation = peek(record, NodeRecord).incarnation
        self.publish(ObjectKind.NODE, record, now_s)

    def publish(self, kind: ObjectKind, data: bytes, now_s: float) -> None:
        """Add a signed object made on this node, or read back from its catalog."""
        self._now_s = now_s
        self._spread.publish(kind, data, now_s)

    # -- links ----------------------------------------------------------------------------------------------

    def link_up(self, node_key: bytes, address: str | None, now_s: float) -> int:
        """Report a control connection whose certificate carries `node_key`; returns its number.

        `address` is the one we dialled, None when the peer did.
        """
        number = self._next_link
        self._next_link += 1
        link = Link(number, node_key, digest(node_key), address is not None, now_s, now_s)
        link.conduct = self._conducts.of(link.node)
        self.links[number] = link
        if address is not None:
            self._dialled[number] = address
        if self.gossip.members.is_revoked(link.node):
            self._now_s = now_s
            self._hangup(link, "revoked")
            return number
        self._effects.append(Send(number, Hello(PROTOCOL_VERSION, self._record)))
        return number

    def link_down(self, number: int, now_s: float) -> None:
        """Report that a link is closed, whoever closed it."""
        link = self.links.pop(number, None)
        if link is None:
            return
        address = self._dialled.pop(number, None)
        if address is not None:
            self._dialer.failed(address, now_s)
        self._spread.lost(link)
        self.fetch.lost(link, now_s)
        self.blocks.lost(link, now_s)

    def dial_failed(self, address: str, now_s: float) -> None:
        """Report that a `Dial` came to nothing."""
        self._dialer.failed(address, now_s)

    def receive(self, number: int, message: Message, now_s: float) -> None:
        """Handle a message. Raises ProtocolError when the peer broke a rule: close its link."""
        self._now_s = now_s
        link = self.links.get(number)
        if link is None:
            return
        link.heard_at_s = now_s
        if link.record is None:
            self._hello(link, message, now_s)
            return
        if isinstance(message, Have | Request | Reject):  # nearly all that is said while chunks come
            self.fetch.receive(link, message, now_s)
            return
        match message:
            case Ping():
                self._effects.append(Send(number, Pong(message.stamp)))
            case Pong():
                rtt_s = now_s - message.stamp / 1e6
                if 0 <= rtt_s <= SILENT_S:  # the stamp is the peer's word: no deadline may grow out of it
                    link.measured_rtt(max(rtt_s, 1e-5))
            case Bye():
                self._hangup(link, message.reason)
            case Summary() | Buckets() | Inventory() | Headers() | Pull() | Object():
                self._spread.receive(link, message, now_s)
            case BlockRequest() | BlockReject():
                self.blocks.receive(link, message, now_s)
            case Hello():
                raise MessageError("second hello")
            case _:
                self.fetch.receive(link, message, now_s)

    def _hello(self, link: Link, message: Message, now_s: float) -> None:
        if not isinstance(message, Hello):
            raise MessageError(f"{type(message).__name__} before hello")
        if message.protocol != PROTOCOL_VERSION:
            raise MessageError(f"peer speaks protocol {message.protocol}, this node {PROTOCOL_VERSION}")
        record = peek(message.record, NodeRecord)
        if record.node_key != link.node_key:
            raise MessageError(f"hello of {short(digest(record.node_key))} on the link of {short(link.node)}")
        if link.node == self.node:
            self._look_at_own(record)
            self._hangup(link, "this is me")
            return
        self._spread.introduce(link, message.record, now_s)
        known = self.gossip.nodes.get(link.node)
        if known is None:
            raise MessageError(f"node {short(link.node)} is no member, not any more, or its clock is a day off")
        if known.incarnation != record.incarnation:
            # Another life of the node has spoken later: a copy of its home, or an older state of it came back. It is
            # told, and has then to speak later still.
            kind_and_data = self.gossip.get(self.gossip.node_digest(link.node))
            assert kind_and_data is not None
            self._effects.append(Send(link.number, Object(*kind_and_data)))
            self._hangup(link, "known under a later incarnation")
            return
        link.record = record
        if link.number in self._dialled:
            self._dialer.worked(self._dialled[link.number], link.node)
        self._dialer.reachable(self._addresses_at(record.site), now_s)
        rival = self._rival(link)
        if rival is not None:
            loser = rival if self._wins(link, rival) else link
            self._effects.append(Send(loser.number, Bye("another connection is used")))
            self._hangup(loser, "another connection is used")
            if loser is link:
                return
        self._ping(link, now_s)
        self._spread.greet(link)
        self.fetch.stock.greet(link)
        self.fetch.request(now_s)

    def _addresses_at(self, site: str) -> Iterable[str]:
        return (address for node in self.gossip.nodes.values() if node.site == site for address in node.addresses)

    def _rival(self, link: Link) -> Link | None:
        others = (other for other in self.links.values() if other is not link and other.record is not None)
        return next((other for other in others if other.node == link.node), None)

    def _wins(self, new: Link, old: Link) -> bool:
        """Whether a second connection to the same node replaces the first. Both ends decide alike."""
        assert new.record is not None and old.record is not None  # noqa: PT018
        if new.record.incarnation != old.record.incarnation or new.dialled == old.dialled:
            return True  # the old one is left over from a life or a path that ended
        return new.dialled == (self.node < new.node)

    def _hangup(self, link: Link, reason: str) -> None:
        self._effects.append(Hangup(link.number, reason))
        self.link_down(link.number, self._now_s)

    # -- chunks ---------------------------------------------------------------------------------------------

    def expected(self, number: int, name: bytes) -> int | None:
        """Size of a chunk that may come over this link: one asked of it, or one that is missing all the same.

        The second comes when a reject and the chunk itself cross, as when a lane is thought lost and is not.
        """
        link = self.links.get(number)
        if link is None:
            return None
        asked = self.fetch.expected(link, name)
        return self.fetch.stock.missing_size(name) if asked is None else asked

    def flight(self, number: int, request: int) -> tuple[bytes, int] | None:
        """(name, size) of the chunk asked under `request` on this link, None when there is no such request."""
        link = self.links.get(number)
        flight = None if link is None else link.flight(request)
        return None if flight is None else (flight.name, flight.size)

    def progressed(self, number: int, total_bytes: int, now_s: float) -> None:
        """Report how many bytes of chunks have come over a link since it is up, parts of chunks included.

        Call it every tenth of a second or so while they come: by this a peer that sends is told from one that does not.
        """
        link = self.links.get(number)
        if link is not None:
            link.progressed(total_bytes, now_s)

    def not_reading(self, now_s: float) -> None:
        """Report that this node takes no chunks just now, so that nothing can come. Call it as often as that."""
        for link in self.links.values():
            link.excuse(now_s)

    def chunk_here(self, number: int, name: bytes) -> None:
        """Report that the last byte of a chunk has come: it will be verified, and `chunk_arrived` be called then."""
        link = self.links.get(number)
        if link is not None:
            link.came_whole(name)

    def chunk_arrived(self, number: int, name: bytes, now_s: float, *, intact: bool, secure: bool) -> None:
        """Report a chunk that came over a lane, or `secure` over TLS.

        An `intact` one has been verified and stored by now; a damaged one is asked again.
        """
        link = self.links.get(number)
        if link is not None:
            link.heard_at_s = now_s
            self.fetch.arrived(link, name, now_s, intact=intact, secure=secure)
        if intact:
            self.fetch.stored(name, now_s)
        if link is not None and intact:
            self.fetch.request_more(link, now_s)
        else:
            self.fetch.request(now_s)

    def chunk_served(self, number: int, name: bytes) -> None:
        """Report that the chunk of a `Serve` was handed to the network, or could not be."""
        link = self.links.get(number)
        if link is not None:
            self.fetch.serving.served(link.node, name)

    def chunk_not_kept(self, number: int, name: bytes, now_s: float) -> None:
        """Report an intact chunk that the store could not keep."""
        link = self.links.get(number)
        if link is not None:
            self.fetch.not_kept(link, name, now_s)

    # -- time -----------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Call at `wake_s`, or a little later."""
        self._now_s = now_s
        if self.fetch.due_s() <= now_s:
            self.fetch.act(now_s)
        if now_s < self._next_tick_s:
            return
        self._next_tick_s = now_s + TICK_S
        for link in list(self.links.values()):
            if link.record is None:
                if now_s - link.since_s > HELLO_S:
                    self._hangup(link, "no hello")
            elif now_s - link.heard_at_s > SILENT_S:
                self._hangup(link, "silent")
            elif now_s - link.heard_at_s > QUIET_S or now_s - link.pinged_at_s > _rtt_fresh_s(link, now_s):
                self._ping(link, now_s)  # where one side pings, the other hears of it and need not
        self._conducts.forgive(frozenset(link.node for link in self.links.values()), now_s)
        self._spread.tick(now_s)
        self.fetch.tick(now_s)
        self.blocks.tick(now_s)
        self._find_site()
        self._tend_links(now_s)

    def _find_site(self) -> None:
        """Name the site of a node that was given none, by who is near."""
        if self.settings.site:
            return
        site = label_of(self.node, self.fetch.site, self.connected())
        if site != self.fetch.site:
            self.fetch.site = site
            self._effects.append(SiteFound(site))

    def _tend_links(self, now_s: float) -> None:
        """Dial the peers that are wanted; let go of those that are not wanted any more and that we dialled."""
        nodes = self.gossip.nodes
        connected = {link.node for link in self.connected()}
        wanted = self._topology.wanted()
        for address in self._dialer.due(nodes, self.node, wanted, connected, now_s):
            self._effects.append(Dial(address))
        if len(connected) > FULL_MESH:
            for link in [link for link in self.connected() if link.dialled and link.node not in wanted]:
                if now_s - link.since_s > LINGER_S and not link.flights and not link.awaited:
                    self._effects.append(Send(link.number, Bye("not needed")))
                    self._hangup(link, "not needed")

    def _ping(self, link: Link, now_s: float) -> None:
        link.pinged_at_s = now_s
        self._effects.append(Send(link.number, Ping(int(now_s * 1e6))))

    def tell_time(self, unix_s: int, now_s: float) -> None:
        """Take the time of day, by which memberships end and silent nodes are forgotten. About once a second."""
        self._now_s = now_s
        self.gossip.tell_time(unix_s)
        self._part()

    def _part(self) -> None:
        """Hang up on those who are members no more."""
        for link in list(self.links.values()):
            if link.record is not None and not self.gossip.is_member(link.node):
                self._hangup(link, "membership ended")
            elif self.gossip.members.is_revoked(link.node):
                self._hangup(link, "revoked")

    def _look_at_own(self, record: NodeRecord) -> None:
        """See whether what this node's key has signed is of another life than this one."""
        if self._incarnation and record.incarnation != self._incarnation:
            self._effects.append(Rival(record.incarnation, record.serial))

    def _learned(self, value: Learned, _: bytes) -> None:
        if isinstance(value, Revocation):
            self._part()
        elif isinstance(value, Beacon):
            pass
        elif isinstance(value, NodeRecord):
            if value.node_key == self.settings.node_key:
                self._look_at_own(value)
            for link in self.links.values():  # its site may have been found since its hello
                if link.node_key == value.node_key and link.record and link.record.incarnation == value.incarnation:
                    link.record = value
        elif self.follows(value.stream):
            self.fetch.learned(value, self._now_s)

    def connected(self) -> Iterable[Link]:
        """Links that have said hello."""
        return (link for link in self.links.values() if link.record is not None)


def _rtt_fresh_s(link: Link, now_s: float) -> float:
    """How old a link's last measurement may be."""
    return RTT_FRESH_S if link.flights or now_s - link.since_s < RTT_IDLE_S else RTT_IDLE_S
