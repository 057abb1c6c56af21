"""World: everybody and everything in one run: nodes, network, the publish, and the faults that happen to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.roster import build_roster

from .clock import Clock
from .ground import Ground, step_of
from .network import Path
from .node import Node, address_of
from .places import Host, Map, Patch
from .release import STREAM, Cluster, Object, Release
from .tcp import Tcp
from .wire import Wire

DIAL_TIMEOUT_S: Final = 4.0
REFUSED_S: Final = 0.1
STARTED_S: Final = 1.0
"""All daemons come up within this time; until then their hosts refuse connections."""

SEEDS: Final = 3
"""Hosts whose addresses a new node is given: any of those that can be dialled."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the world behaves over time."""

    seed: int = 1
    tcp: Tcp = field(default_factory=Tcp)
    finds_loss_s: float | None = None
    """So long after the publish senders have seen that paths lose packets, and change to BBR, as daemons do."""
    warm_up_s: float = 6.0
    """Before the publish: nodes find each other."""
    give_up_s: float = 600.0
    churn_per_s: float = 0.0
    """Hosts replaced per second and host."""
    step_s: float | None = None
    versions: int = 1
    """How many are published, `every_s` apart."""
    every_s: float = 1.0
    absent: frozenset[int] = frozenset()
    """Places of hosts that are not there at the start."""


class World:
    """Set up, then `run`. `violations` stays empty as long as the invariants hold."""

    def __init__(self, map_: Map, patch: Patch, options: Options) -> None:
        self.policy = "swarm"
        self.map = map_
        self.options = options
        self.rng = random.Random(options.seed)  # noqa: S311
        self.clock = Clock()
        self.patch = patch
        self.ground = Ground(map_, self.clock, options.tcp, options.step_s or step_of(map_, patch))
        self.network = self.ground.network
        self.cluster = Cluster(self.rng)
        self.releases = [Release(self.cluster, patch, self.rng)]
        while len(self.releases) < options.versions:
            self.releases.append(Release(self.cluster, patch, self.rng, self.releases[-1]))
        first = self.releases[0]
        self.size = first.sealed_bytes
        self.sizes = dict(first.old_chunks)
        for each in self.releases:
            self.sizes |= dict([*each.chunks, *each.list_chunks])
        self.indexes = {each.attempt: each.index for each in self.releases}
        self.published_s: float | None = None
        self.closed_s: float | None = None
        self.violations: list[str] = []
        self.complaints: list[str] = []
        self.parted: frozenset[int] = frozenset()  # sites that are cut off from the others
        self.wires: set[Wire] = set()
        self.nodes: list[Node] = []
        self.by_address: dict[str, Node] = {}
        self._unfinished: set[Node] = set()
        self._populate()

    @property
    def head(self) -> Node:
        """The node that publishes."""
        return self.nodes[0]

    # -- setting up -----------------------------------------------------------------------------------------

    def _populate(self) -> None:
        """All hosts, each knowing its part of the others and the version that everyone holds."""
        for place, host in enumerate(self.map.hosts):
            if place in self.options.absent:
                continue
            self._add(place, host)
        known = self._known()
        for node in self.nodes:
            for kind, data in known:
                node.learn(kind, data)
            for other in self.nodes:
                if other is not node and self.rng.random() < node.host.known_share:
                    node.learn(ObjectKind.NODE, other.said)
            node.swarm.effects()
            self.clock.at(self.rng.random() * STARTED_S, node.start)

    def _known(self) -> list[Object]:
        """What every node knows from the start."""
        return [self.cluster.stream(), *([] if self.patch.full else self.releases[0].base(self.head.id))]

    def seeds(self, place: int) -> tuple[str, ...]:
        """Addresses of some hosts, for a new node at `place`. Before the world begins all hosts are thought to live."""
        if self.clock.now_s > 0.0:
            known = [node.address for node in self.nodes if node.alive and not node.host.nat]
        else:
            hosts = enumerate(host for at, host in enumerate(self.map.hosts) if at not in self.options.absent)
            known = [address_of(number) for number, host in hosts if number != place and not host.nat]
        return tuple(self.rng.sample(known, min(SEEDS, len(known))))

    def _add(self, place: int, host: Host) -> Node:
        node = Node(self, len(self.nodes), place, host, self.cluster.identity())
        self.nodes.append(node)
        self.by_address[node.address] = node
        if not host.lie:
            self._unfinished.add(node)
        return node

    # -- paths ----------------------------------------------------------------------------------------------

    def path(self, a: Node, b: Node) -> Path:
        """From `a` to `b`."""
        return self.ground.path(a.place, b.place)

    def is_cut(self, a: Node, b: Node) -> bool:
        """Whether nothing gets from `a` to `b`."""
        return (a.host.site in self.parted) != (b.host.site in self.parted) or not (a.alive and b.alive)

    def dial(self, node: Node, address: str) -> None:
        """TCP and TLS 1.3 handshakes: two round trips until the dialler may speak."""
        other, now_s = self.by_address.get(address), self.clock.now_s
        if other is None or other.host.nat or self.is_cut(node, other):
            starting = other is not None and not other.alive and now_s < STARTED_S
            self.clock.at(now_s + (REFUSED_S if starting else DIAL_TIMEOUT_S), node.dial_failed, address)
            return
        wire = Wire(self, node, other)
        rtt_s = wire.ends[0].path.rtt_s
        self.clock.at(now_s + 2 * rtt_s, self._connected, wire, address)

    def _connected(self, wire: Wire, address: str) -> None:
        dialler, other = wire.ends[0].node, wire.ends[1].node
        if not dialler.alive:
            return
        if self.is_cut(dialler, other):
            dialler.dial_failed(address)
            return
        self.wires.add(wire)
        accepted_s = self.clock.now_s + wire.ends[0].path.delay_s
        wire.ends[0].arrives_s = accepted_s
        self.clock.at(accepted_s, self._accepted, wire)
        dialler.link_up(wire, address)

    def _accepted(self, wire: Wire) -> None:
        other = wire.ends[1].node
        if wire.open and other.alive:
            other.link_up(wire, None)

    # -- the publish ----------------------------------------------------------------------------------------

    def _publish(self, release: Release) -> None:
        """As daemon/making does: opening, pages as chunks are encoded, then what closes the version."""
        head, now_s = self.head, self.clock.now_s
        if release is self.releases[0]:
            self.published_s = now_s
            for node in self.nodes:
                node.tally.control_before = node.tally.control_sent
        roster = build_roster(head.swarm.gossip.nodes, head.id, self.patch.chunks)
        head.store.update(name for name, _ in release.list_chunks)
        for kind, data in release.opening(head.id, roster):
            head.learn(kind, data)
        head.carry_out()
        made_s = 0.0
        for made_s, page, names in release.pages():
            self.clock.at(now_s + made_s, self._page, page, names)
        self.clock.at(now_s + made_s, self._close, release)

    def _page(self, page: bytes, names: list[bytes]) -> None:
        head = self.head
        head.swarm.fetch.add_page(page, -1, self.clock.now_s)
        for name in names:
            head.keep(name)
        head.carry_out()

    def _close(self, release: Release) -> None:
        head, now_s = self.head, self.clock.now_s
        for kind, data in release.closing(head.id):
            head.learn(kind, data)
        head.swarm.fetch.hold(STREAM, frozenset({release.target}), lists_first=False, now_s=now_s)
        head.version = release.version
        if release is self.releases[-1]:
            self.closed_s = now_s
            self.finished(head)
        else:
            at = self.releases.index(release) + 1
            self.clock.at((self.published_s or 0.0) + at * self.options.every_s, self._publish, self.releases[at])
        head.carry_out()

    def finished(self, node: Node) -> None:
        """A node serves the new version."""
        node.tally.finished_s = self.clock.now_s
        self._unfinished.discard(node)

    # -- faults ---------------------------------------------------------------------------------------------

    def part(self, sites: Iterable[int]) -> None:
        """Cut these sites off from all others, or heal with no sites."""
        self.parted = frozenset(sites)
        for wire in [wire for wire in self.wires if not wire.open]:
            self.wires.discard(wire)
        for wire in self.wires:
            wire.set_cut(cut=self.is_cut(wire.ends[0].node, wire.ends[1].node))

    def kill(self, node: Node, *, said: bool) -> None:
        """End a node; `said`: its kernel still closes its connections."""
        node.die(said=said)
        self._unfinished.discard(node)

    def kill_at(self, place: int) -> None:
        """End the daemon on the host at `place`; its kernel lives on."""
        self.kill(next(node for node in reversed(self.nodes) if node.place == place), said=True)

    def join(self, place: int) -> Node:
        """A new node on the host at `place`, which knows the seeds only and holds the base version."""
        node = self._add(place, self.map.hosts[place])
        for kind, data in self._known():
            node.learn(kind, data)
        node.start()
        return node

    def _churn(self) -> None:
        """Replace one host other than the head, then another, until all that saw the publish are done or gone."""
        if all(node.joined_s > (self.published_s or 0.0) for node in self._unfinished):
            return
        victim = self.rng.choice([node for node in self.nodes[1:] if node.alive])
        self.kill(victim, said=self.rng.random() < 0.5)
        self.join(victim.place)
        self._plan_churn()

    def _plan_churn(self) -> None:
        rate = self.options.churn_per_s * (len(self.map.hosts) - 1)
        if rate > 0:
            self.clock.at(self.clock.now_s + self.rng.expovariate(rate), self._churn)

    # -- running --------------------------------------------------------------------------------------------

    def at(self, seconds: float, call: Callable[[], object]) -> None:
        """Let something happen `seconds` after the publish begins."""
        self.clock.at(self.options.warm_up_s + seconds, call)

    def run(self) -> None:
        """Warm up, publish, and go on until every live honest node is done or `give_up_s` has passed."""
        options = self.options
        self.clock.at(options.warm_up_s, self._publish, self.releases[0])
        self.clock.at(options.warm_up_s, self._plan_churn)
        if options.finds_loss_s is not None:
            self.at(options.finds_loss_s, partial(self.network.change, replace(options.tcp, bbr=True)))
        self.clock.run(options.warm_up_s + options.give_up_s, self._unfinished)

    def unfinished(self) -> list[Node]:
        """Live nodes that have not got there."""
        return sorted((node for node in self._unfinished if not node.host.lie), key=lambda node: node.number)
