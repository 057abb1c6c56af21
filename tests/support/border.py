"""The asking of one border of a small fleet, with links to everyone else."""

import random
from types import SimpleNamespace

from patchswarm.protocol.asking import Asking
from patchswarm.protocol.effects import Send
from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.manifest import NodeRecord
from patchswarm.protocol.messages import Request
from patchswarm.protocol.moving import Moving
from patchswarm.protocol.picker import Plan
from patchswarm.protocol.roster import Dealing, build_roster
from patchswarm.protocol.series import ChunkSet

SEED = digest(b"seed")
ATTEMPT = bytes(16)
SIZE, COUNT = 500_000, 64
ALL = (1 << COUNT) - 1


def record(site):
    return NodeRecord(bytes(32), bytes(16), 1, site, ("host:1",), (), b"")


NODES = {SEED: record("home")} | {
    digest(b"%s %d" % (site.encode(), number)): record(site) for site in "ab" for number in range(2)
}
ROSTER = build_roster(NODES, SEED)
ME, MATE = next(entry.borders for entry in ROSTER if entry.site == "a")


class Desk:
    """The asking of one border of site a, with a link to everyone else, and what it sent."""

    def __init__(self, seed_site="home"):
        self.sent = []
        self.behind_s = 0.0
        self.links = {}
        for number, node in enumerate(node for node in NODES if node != ME):
            of = record(seed_site) if node == SEED else NODES[node]
            self.links[number] = Link(number, bytes(32), node, True, 0.0, 0.0, of)
            self.links[number].measured_rtt(0.2)
        self.plan = Plan(Dealing(ROSTER, "a", ME), frozenset({SEED}), frozenset({seed_site} - {"a"}))
        self.plan.deal(ALL, frozenset(NODES), 0.0)
        self.series = SimpleNamespace(
            attempt=ATTEMPT,
            asked=ChunkSet(),
            missing=ALL,
            missing_data=lambda: self.series.missing,
            missing_meta=lambda: 0,
            unasked=lambda: ChunkSet(self.series.missing & ~self.series.asked.data),
            entry=lambda ordinal: (b"%032d" % ordinal, SIZE),
        )
        plans = SimpleNamespace(of=lambda *_: (self.plan, Plan(None, frozenset())), awaits_roster=lambda *_: False)
        self.asking = Asking(
            self.links,
            SimpleNamespace(wanted=lambda: [self.series], wanted_lists=list),
            plans,
            SimpleNamespace(behind_s=lambda _: self.behind_s),
            SimpleNamespace(ask=lambda *_: None, can_ask=lambda *_: False),
            self.sent.append,
            lambda: "a",
            random.Random(1),
            None,
        )
        self.moving = Moving(self.links, plans, self.sent.append, lambda: "a", self.asking.depart)

    def link(self, node):
        return next(link for link in self.links.values() if link.node == node)

    def borders_elsewhere(self):
        """Links to the border of this node's column at the other site, and to its mate."""
        partner = next(node for node in NODES if NODES[node].site == "b" and self.plan.to_come(node))
        mate = next(node for node in NODES if NODES[node].site == "b" and node != partner)
        return self.link(partner), self.link(mate)

    def add_mate(self):
        """One more member of this site, which is no border; its node id."""
        node = digest(b"one more")
        self.links[len(self.links)] = Link(len(self.links), bytes(32), node, True, 0.0, 0.0, record("a"))
        return node

    def asked_of(self):
        """Chunks asked for now, by the node that they were asked of."""
        self.asking.ask_all(0.0)
        asked = {}
        for effect in self.sent:
            if isinstance(effect, Send) and isinstance(effect.message, Request):
                asked.setdefault(self.links[effect.link].node, set()).add(int(effect.message.name))
        self.sent.clear()
        return asked
