"""A world of nodes that run the protocol core alone: in-memory links, a virtual clock, a seed. No sockets, no files.

Every message passes through its encoding. A request is followed until it is answered; a second answer, an answer
nobody asked for or a rule broken by an honest node is an error at once.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from patchswarm.protocol.effects import (
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
    SiteFound,
    StreamKnown,
)
from patchswarm.protocol.errors import ProtocolError
from patchswarm.protocol.ids import digest
from patchswarm.protocol.messages import Message, ObjectKind, Reason, Reject, Request, decode_message, encode_message
from patchswarm.protocol.roster import build_roster
from patchswarm.protocol.seal import open_blob
from patchswarm.protocol.swarm import Settings, Swarm

from .versions import Publisher, Version, key_of, node_record, raw


@dataclass(eq=False)
class Wire:
    """One connection: two ends, each a host and the number its core gave the link."""

    ends: dict[Host, int] = field(default_factory=dict)
    free_s: dict[Host, float] = field(default_factory=dict)  # when the last thing sent arrives: order is kept
    open: bool = True

    def other(self, host: Host) -> Host:
        return next(each for each in self.ends if each is not host)


class Host:
    """One node: its core, its store, and the daemon's part of the work."""

    def __init__(self, world: World, name: str, site: str, *, dialable: bool, seeds: tuple[str, ...], uplink: float):
        self.world = world
        self.name = name
        self.site = site
        self.address = f"{name}:1" if dialable else None
        self.seeds = seeds
        self.uplink = uplink
        self.key = key_of(f"node {name}")
        self.store: dict[bytes, bytes] = {}
        self.catalog: dict[bytes, tuple[ObjectKind, bytes]] = {}
        self.serial = 0
        self.lives = 0
        self.alive = False
        self.liar: Liar | None = None
        self.held: frozenset[bytes] = frozenset()
        self.rivals: set[bytes] = set()
        self.start()

    def __repr__(self) -> str:
        return self.name

    def start(self) -> None:
        """Begin a life, with what the store and catalog kept of the last one."""
        self.lives += 1
        self.alive = True
        self.wires: dict[int, Wire] = {}
        self.uplink_free_s = 0.0
        self.swarm = Swarm(
            Settings(raw(self.key), raw(self.world.ca), self.site, self.seeds, ("*",), self.world.inflight_limit),
            self.store.__contains__,
            random.Random(f"{self.world.seed} {self.name} {self.lives}"),
        )
        for kind, data in sorted(self.catalog.values()):
            self.swarm.publish(kind, data, self.world.now_s)
        self._announce()
        self.act()

    def stop(self) -> None:
        """Die without a word."""
        self.alive = False
        for wire in list(self.wires.values()):
            self.world.cut(wire)

    def _announce(self) -> None:
        self.serial += 1
        record = node_record(
            self.world.ca,
            self.key,
            site=self.swarm.fetch.site,
            serial=self.serial,
            addresses=(self.address,) if self.address else (),
            incarnation=self.lives.to_bytes(16, "big"),
        )
        self.swarm.announce(record, self.world.now_s)

    @property
    def node(self) -> bytes:
        return self.swarm.node

    def peers(self) -> set[str]:
        """Names of the hosts that this one has a working link to."""
        return {self.world.by_node[link.node].name for link in self.swarm.connected()}

    def has(self, version: Version) -> bool:
        """Whether every chunk and list of a version is here, and the core holds the version."""
        return version.digest in self.held and all(name in self.store for name in (*version.chunks, *version.lists))

    # -- publishing -----------------------------------------------------------------------------------------

    def say(self, objects) -> None:
        for kind, data in objects:
            self.swarm.publish(kind, data, self.world.now_s)
        self.act()

    def begin(self, version: Version) -> None:
        """Announce a version in the making."""
        self.store |= version.lists
        self.say(version.begin())

    def seed_pages(self, version: Version, count: int | None = None) -> None:
        """Store a version's chunks and list them; only those of the first `count` pages."""
        names = iter(version.chunks.items())
        for page in version.pages[:count]:
            listed = dict(itertools.islice(names, self.world.page))
            self.store |= listed
            self.swarm.fetch.add_page(page, -1, self.world.now_s)
            for name in listed:
                self.swarm.fetch.stored(name, self.world.now_s)
        self.act()

    def finish(self, version: Version) -> None:
        """Sign the version and hold it."""
        self.store |= version.chunks
        self.say(version.end())
        self.hold(version.digest)

    def hold(self, *manifests: bytes) -> None:
        self.held |= set(manifests)
        self.swarm.fetch.hold(self.world.publisher.stream, self.held, lists_first=False, now_s=self.world.now_s)
        self.act()

    # -- effects --------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Do what the core wants done."""
        for effect in self.swarm.effects():
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        world = self.world
        match effect:
            case Send(number, message):
                if number in self.wires:
                    world.send(self, self.wires[number], message)
            case Serve(number, request, name, secure):
                if number in self.wires:
                    world.serve(self, self.wires[number], request, name, secure=secure)
            case Hangup(number, _):
                if number in self.wires:
                    wire = self.wires[number]
                    world.hangups[self.name] += 1
                    world.later(world.delay_s(wire), lambda: world.cut(wire))
            case Dial(address):
                world.dial(self, address)
            case Persist(kind, name, data):
                self.catalog[name] = kind, data
            case Forget(names):
                for name in names:
                    self.catalog.pop(name, None)
            case StreamKnown(stream):
                self.swarm.fetch.hold(stream, self.held, lists_first=False, now_s=world.now_s)
                self.act()
            case IndexHere(attempt):
                world.later(0.001, lambda: self._open_index(attempt))
            case RouteReady(_, route):
                if route:
                    targets = [leg.target for leg in route]
                    world.later(0.001, lambda: self.alive and self.hold(*targets))
            case Dropped(_, names):
                for name in names:
                    self.store.pop(name, None)
            case Rival(incarnation, _):
                self.rivals.add(incarnation)
            case SiteFound():
                self._announce()
                self.act()
            case HeadMoved():
                pass

    def _open_index(self, attempt: bytes) -> None:
        series = self.swarm.fetch.stock.series.get(attempt)
        if not self.alive or series is None or series.transition is None:
            return
        for number, part in enumerate(series.transition.parts):
            data = open_blob(part.index, [self.store[name] for name, _ in part.index.chunks])
            self.swarm.fetch.index_known(attempt, number, data, self.world.now_s)
        self.act()

    # -- the network ----------------------------------------------------------------------------------------

    def hear(self, wire: Wire, message: Message) -> None:
        number = wire.ends[self]
        try:
            self.swarm.receive(number, message, self.world.now_s)
        except ProtocolError as error:
            self.world.offences.append((self.name, wire.other(self).name, str(error)))
            self.world.cut(wire)
        self.act()

    def chunk(self, wire: Wire, name: bytes, sealed: bytes, *, secure: bool) -> None:
        number = wire.ends[self]
        self.world.received[self.name, name] += 1
        intact = digest(sealed) == name
        if intact:
            self.store[name] = sealed
        self.swarm.chunk_arrived(number, name, self.world.now_s, intact=intact, secure=secure)
        self.act()


class Liar:
    """Bends what a host sends; the default bends nothing."""

    def message(self, message: Message) -> list[Message]:
        return [message]

    def chunk(self, sealed: bytes, *, secure: bool) -> bytes | None:
        """What is sent instead; None for silence."""
        return sealed


class World:
    """Hosts, the wires between them, and time."""

    def __init__(
        self,
        seed: int = 0,
        *,
        page: int = 4,
        lan_s: float = 0.001,
        wan_s: float = 0.04,
        inflight_limit: int | None = None,
    ) -> None:
        self.seed = seed
        self.page = page
        self.inflight_limit = inflight_limit
        self.random = random.Random(seed)
        self.lan_s, self.wan_s = lan_s, wan_s
        self.ca = key_of("ca")
        self.publisher = Publisher(ca=self.ca, seed=seed)
        self.now_s = 1000.0
        self.hosts: dict[str, Host] = {}
        self.by_node: dict[bytes, Host] = {}
        self.received: Counter[tuple[str, bytes]] = Counter()
        self.requests: Counter[tuple[str, bytes]] = Counter()
        self.asked_of: Counter[str] = Counter()
        self.hangups: Counter[str] = Counter()
        self.offences: list[tuple[str, str, str]] = []
        self._open: dict[tuple[Wire, Host, int], bytes] = {}
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._versions: list[Version] = []

    def __hash__(self) -> int:
        return id(self)

    def add(
        self,
        name: str,
        site: str = "a",
        *,
        dialable: bool = True,
        seeds: tuple[str, ...] = ("head:1",),
        uplink: float = 10e6,
    ) -> Host:
        """A host that starts now. `uplink` is in bytes per second."""
        host = Host(self, name, site, dialable=dialable, seeds=seeds, uplink=uplink)
        self.hosts[name] = self.by_node[host.node] = host
        return host

    def fleet(self, **sites: int) -> list[Host]:
        """A head at site `a`, and this many more hosts at each site."""
        head = self.add("head", "a", seeds=())
        head.say([self.publisher.record()])
        return [head] + [self.add(f"{site}{number}", site) for site, count in sites.items() for number in range(count)]

    # -- publishing -----------------------------------------------------------------------------------------

    def draft(self, head: Host, *, number: int | None = None, after: Version | None = None, **options) -> Version:
        """The next version, not said yet, with the roster that the head sees."""
        last = after or (self._versions[-1] if self._versions else None)
        number = number or (last.manifest.version + 1 if last else 1)
        roster = build_roster(head.swarm.gossip.nodes, head.node)
        return self.publisher.version(
            number, node=head.node, source=last.digest if last else b"", roster=roster, page=self.page, **options
        )

    def publish(self, head: Host, **options) -> Version:
        """Publish the next version at once."""
        version = self.draft(head, **options)
        self._versions.append(version)
        head.begin(version)
        head.seed_pages(version)
        head.finish(version)
        return version

    # -- the network ----------------------------------------------------------------------------------------

    def delay_s(self, wire: Wire) -> float:
        one, two = wire.ends
        return self.lan_s if one.site == two.site else self.wan_s

    def dial(self, host: Host, address: str) -> None:
        def arrive() -> None:
            other = self.hosts.get(address.partition(":")[0])
            if not host.alive:
                return
            if other is None or not other.alive or other.address != address:
                host.swarm.dial_failed(address, self.now_s)
                host.act()
                return
            self.connect(host, other, address)

        self.later(2 * self.wan_s, arrive)

    def connect(self, host: Host, other: Host, address: str) -> None:
        wire = Wire(free_s={host: 0.0, other: 0.0})
        for end, said in ((host, address), (other, None)):
            wire.ends[end] = -1
            peer = other if end is host else host
            number = end.swarm.link_up(raw(peer.key), said, self.now_s)
            wire.ends[end] = number
            end.wires[number] = wire
        host.act()
        other.act()

    def cut(self, wire: Wire) -> None:
        """The connection breaks; both ends learn of it."""
        if not wire.open:
            return
        wire.open = False
        for key in [key for key in self._open if key[0] is wire]:
            del self._open[key]
        for host, number in wire.ends.items():
            if host.wires.pop(number, None) is not None and host.alive:
                host.swarm.link_down(number, self.now_s)
                host.act()

    def send(self, host: Host, wire: Wire, message: Message) -> None:
        for each in host.liar.message(message) if host.liar else [message]:
            self._send(host, wire, each)

    def _send(self, host: Host, wire: Wire, message: Message) -> None:
        other = wire.other(host)
        if isinstance(message, Request):
            self.requests[host.name, message.name] += 1
            self.asked_of[other.name] += 1
            self._open[wire, host, message.request] = message.name
        elif isinstance(message, Reject):
            self._answered(wire, other, message.request)
        data = encode_message(message)
        self._arrive(host, wire, lambda: other.hear(wire, decode_message(data)))

    def serve(self, host: Host, wire: Wire, request: int, name: bytes, *, secure: bool) -> None:
        other = wire.other(host)
        sealed = host.store.get(name)
        if sealed is not None and host.liar:
            sealed = host.liar.chunk(sealed, secure=secure)
            if sealed is None:
                return
        if sealed is None:
            host.swarm.chunk_served(wire.ends[host], name)
            self.send(host, wire, Reject(request, Reason.MISSING))
            return
        body = sealed

        def left() -> None:
            if host.alive and wire.open:
                host.swarm.chunk_served(wire.ends[host], name)
                host.act()

        def came() -> None:
            self._answered(wire, other, request)
            other.chunk(wire, name, body, secure=secure)

        begin = max(host.uplink_free_s, self.now_s)
        host.uplink_free_s = begin + len(body) / host.uplink
        self.later(host.uplink_free_s - self.now_s, left)
        self.later(host.uplink_free_s - self.now_s, lambda: self._arrive(host, wire, came))

    def _answered(self, wire: Wire, asker: Host, request: int) -> None:
        if wire.open:
            assert self._open.pop((wire, asker, request), None) is not None, f"{asker} was answered twice"

    def unanswered(self) -> int:
        """Requests that are open on links that are."""
        return len(self._open)

    def _arrive(self, host: Host, wire: Wire, act: Callable[[], None]) -> None:
        at = max(self.now_s + self.delay_s(wire), wire.free_s[host])
        wire.free_s[host] = at

        def arrive() -> None:
            if wire.open:
                act()

        self.later(at - self.now_s, arrive)

    # -- time -----------------------------------------------------------------------------------------------

    def later(self, wait_s: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now_s + wait_s, next(self._order), act))

    def run(self, for_s: float) -> None:
        """Let time pass."""
        self.until(lambda: False, for_s, strict=False)

    def until(self, done: Callable[[], bool], within_s: float = 60.0, *, strict: bool = True) -> float:
        """Let time pass until `done()`; returns the seconds it took."""
        began, end = self.now_s, self.now_s + within_s
        while not done():
            alive = [host for host in self.hosts.values() if host.alive]
            due = min((host.swarm.wake_s() for host in alive), default=math.inf)
            event = self._events[0][0] if self._events else math.inf
            if min(due, event) > end:
                self.now_s = end
                if strict:
                    raise AssertionError(f"not done after {within_s:g} s of the world's time")
                break
            self.now_s = max(self.now_s, min(due, event))
            if event <= due:
                heapq.heappop(self._events)[2]()
            else:
                for host in alive:
                    if host.swarm.wake_s() <= self.now_s:
                        host.swarm.tick(self.now_s)
                        host.act()
        return self.now_s - began

    def all_have(self, version: Version, hosts=None) -> bool:
        return all(host.has(version) for host in hosts or self.hosts.values() if host.alive)
