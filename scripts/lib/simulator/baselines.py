"""Baselines: what others do, in the same world, each somewhat better than it could be in practice.

No handshakes, no lost messages, and who has what is known everywhere at once; only chunks and requests take time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from patchswarm.protocol.ranges import iterate

from .clock import Clock
from .ground import Ground, step_of
from .network import Lane
from .places import Host, Map, Patch
from .report import Tally
from .world import Options

RELAY_FANOUT: Final = 2
SLOTS: Final = 8
"""Rarest-first: chunks that a host sends, and asks for, at a time."""

PIPELINE: Final = 2
"""Rarest-first: chunks asked of one peer at a time."""

NEIGHBOURS: Final = 40
RETRY_S: Final = 0.05


class Peer:
    """One host: which chunks it has, as a bitmap."""

    def __init__(self, place: int, host: Host) -> None:
        self.place = place
        self.host = host
        self.alive = True
        self.joined_s = 0.0
        self.tally = Tally()
        self.have = 0
        self.asked = 0
        self.sending = 0
        self.asked_of: dict[int, int] = {}
        self.neighbours: list[Peer] = []


class Baseline:
    """A run of one baseline. Host 0 has everything at the start."""

    def __init__(self, map_: Map, patch: Patch, options: Options, policy: str) -> None:
        self.policy = policy
        self.map = map_
        self.patch = patch
        self.options = options
        self.clock = Clock()
        self.rng = random.Random(options.seed)  # noqa: S311
        self.ground = Ground(map_, self.clock, options.tcp, options.step_s or step_of(map_, patch))
        self.nodes = [Peer(place, host) for place, host in enumerate(map_.hosts)]
        self.size = round(patch.size / patch.chunks) * patch.chunks
        self.published_s: float | None = 0.0
        self.closed_s: float | None = 0.0
        self.violations: list[str] = []
        self.complaints: list[str] = []
        self._chunk = round(patch.size / patch.chunks)
        self._all = (1 << patch.chunks) - 1
        self._copies = [1] * patch.chunks
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._children: dict[int, list[Peer]] = {}
        self._waiting = set(range(1, len(self.nodes)))

    def run(self) -> None:
        """From the publish until everyone has everything, or `give_up_s`."""
        self.nodes[0].have = self._all
        _START[self.policy](self)
        self.clock.run(self.options.give_up_s, self._waiting)

    def _lane(self, source: Peer, target: Peer) -> Lane:
        lane = self._lanes.get((source.place, target.place))
        if lane is None:
            lane = Lane(
                self.ground.network,
                self.ground.path(source.place, target.place),
                lambda chunk: self._arrived(source, target, chunk),
                lambda _: None,
            )
            self._lanes[source.place, target.place] = lane
        return lane

    def _arrived(self, source: Peer, target: Peer, chunk: int) -> None:
        target.tally.chunk_bytes += self._chunk
        target.have |= 1 << chunk
        self._copies[chunk] += 1
        for child in self._children.get(target.place, ()):
            self._lane(target, child).send(chunk, self._chunk)
        if self.policy == "rarest":
            source.sending -= 1
            target.asked &= ~(1 << chunk)
            target.asked_of[source.place] -= 1
            self._ask(target)
        if target.have == self._all:
            target.tally.finished_s = self.clock.now_s
            self._waiting.discard(target.place)

    # -- star and tree --------------------------------------------------------------------------------------

    def star(self) -> None:
        """The head sends everything to everyone."""
        head = self.nodes[0]
        for chunk in range(self.patch.chunks):
            for peer in self.nodes[1:]:
                self._lane(head, peer).send(chunk, self._chunk)

    def tree(self) -> None:
        """Every host passes each chunk on to two others; subtrees keep to a site where they can."""
        self._plant(self.nodes[0], self.nodes[1:])
        for chunk in range(self.patch.chunks):
            for child in self._children[0]:
                self._lane(self.nodes[0], child).send(chunk, self._chunk)

    def _plant(self, root: Peer, below: list[Peer]) -> None:
        pending = [(root, below)]
        while pending:
            parent, rest = pending.pop()
            step = -(-len(rest) // RELAY_FANOUT)
            halves = [rest[at : at + step] for at in range(0, len(rest), step)] if rest else []
            self._children[parent.place] = [half[0] for half in halves]
            pending += [(half[0], half[1:]) for half in halves]

    # -- rarest first ---------------------------------------------------------------------------------------

    def rarest(self) -> None:
        """Every host asks its neighbours, those of its site first, for the rarest chunk that it lacks."""
        for peer in self.nodes:
            near = [other for other in self.nodes if other is not peer and other.host.site == peer.host.site]
            far = [other for other in self.nodes if other.host.site != peer.host.site]
            self.rng.shuffle(near)
            self.rng.shuffle(far)
            peer.neighbours = near[: NEIGHBOURS // 2] + far[: NEIGHBOURS - min(len(near), NEIGHBOURS // 2)]
        for peer in self.nodes[1:]:
            if self.nodes[0] not in peer.neighbours and self.rng.random() < NEIGHBOURS / len(self.nodes):
                peer.neighbours.append(self.nodes[0])
            self.clock.at(self.rng.random() * RETRY_S, self._poll, peer)

    def _poll(self, peer: Peer) -> None:
        """Look again, as a client does when it is unchoked or hears a HAVE."""
        if peer.have != self._all:
            self._ask(peer)
            self.clock.at(self.clock.now_s + RETRY_S, self._poll, peer)

    def _ask(self, peer: Peer) -> None:
        under_way = peer.asked.bit_count()
        for other in peer.neighbours:
            while under_way < SLOTS and other.sending < SLOTS and peer.asked_of.get(other.place, 0) < PIPELINE:
                lacking = other.have & ~peer.have & ~peer.asked
                if not lacking:
                    break
                chunk = min(iterate(lacking), key=lambda at: (self._copies[at], self.rng.random()))
                peer.asked |= 1 << chunk
                peer.asked_of[other.place] = peer.asked_of.get(other.place, 0) + 1
                other.sending += 1
                under_way += 1
                lane = self._lane(other, peer)
                self.clock.at(self.clock.now_s + lane.path.delay_s, lane.send, chunk, self._chunk)


_START: Final[dict[str, Callable[[Baseline], None]]] = {
    "star": Baseline.star,
    "tree": Baseline.tree,
    "rarest": Baseline.rarest,
}
POLICIES: Final = tuple(_START)
