"""Asking across sites: of several that have a chunk, the one from which it comes soonest."""

import random
from types import SimpleNamespace

import pytest

from patchswarm.protocol.asking import Asking
from patchswarm.protocol.effects import Send
from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.manifest import NodeRecord
from patchswarm.protocol.messages import Claim, Request
from patchswarm.protocol.picker import LAST_PART, Plan
from patchswarm.protocol.ranges import bits_of, iterate
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

    def __init__(self):
        self.sent = []
        self.links = {}
        for number, node in enumerate(node for node in NODES if node != ME):
            self.links[number] = Link(number, bytes(32), node, True, 0.0, 0.0, NODES[node])
            self.links[number].measured_rtt(0.2)
        self.plan = Plan(Dealing(ROSTER, "a", ME), frozenset({SEED}), frozenset({"home"}))
        self.plan.deal(ALL, frozenset(NODES), 0.0)
        self.series = SimpleNamespace(
            attempt=ATTEMPT,
            asked=ChunkSet(),
            missing=ALL,
            missing_data=lambda: self.series.missing,
            missing_meta=lambda: 0,
            lacks_unasked=lambda: True,
            entry=lambda ordinal: (b"%032d" % ordinal, SIZE),
        )
        self.asking = Asking(
            self.links,
            SimpleNamespace(wanted=lambda: [self.series], wanted_lists=list),
            SimpleNamespace(of=lambda *_: (self.plan, Plan(None, frozenset())), awaits_roster=lambda *_: False),
            SimpleNamespace(behind_s=lambda _: 0.0),
            SimpleNamespace(ask=lambda *_: None),
            self.sent.append,
            lambda: "a",
            random.Random(1),
            None,
        )

    def link(self, node):
        return next(link for link in self.links.values() if link.node == node)

    def asked_of(self):
        """Chunks asked for now, by the node that they were asked of."""
        self.asking.ask_all(0.0)
        asked = {}
        for effect in self.sent:
            if isinstance(effect, Send) and isinstance(effect.message, Request):
                asked.setdefault(self.links[effect.link].node, set()).add(int(effect.message.name))
        self.sent.clear()
        return asked


@pytest.fixture
def desk():
    return Desk()


@pytest.fixture
def others(desk):
    """The border of this node's column at the other site, and its mate, who both have what that site takes."""
    partner = next(node for node in NODES if NODES[node].site == "b" and desk.plan.to_come(node))
    mate = next(node for node in NODES if NODES[node].site == "b" and node != partner)
    return desk.link(partner), desk.link(mate)


def test_a_chunk_is_asked_of_the_one_from_which_it_comes_sooner_although_that_one_is_busy(desk, others):
    warm, cold = others
    ordinal = next(iterate(desk.plan.mine & ~desk.plan.owned))
    warm.goodput = 10e6
    while warm.has_room():
        warm.depart(ATTEMPT, COUNT, b"something else", SIZE, 0.0)
    for link in others:
        link.remember(ATTEMPT, ((ordinal, ordinal),))
    assert desk.asked_of() == {}, "what is under way there will be here before a cold connection has begun"
    warm.goodput = 1e5
    assert desk.asked_of() == {cold.node: {ordinal}}


def test_a_chunk_that_a_mate_is_to_get_in_a_moment_is_waited_for_where_the_way_is_warm(desk, others):
    warm, cold = others
    ordinal = next(iterate(desk.plan.to_come(warm.node)))
    cold.remember(ATTEMPT, ((ordinal, ordinal),))
    warm.goodput = 10e6
    assert desk.asked_of() == {}
    warm.remember(ATTEMPT, ((ordinal, ordinal),))
    assert desk.asked_of() == {warm.node: {ordinal}}


def test_who_said_that_it_is_busy_is_not_waited_for(desk, others):
    warm, cold = others
    ordinal = next(iterate(desk.plan.mine & ~desk.plan.owned))
    warm.goodput = 10e6
    for link in others:
        link.remember(ATTEMPT, ((ordinal, ordinal),))
    warm.defer(ATTEMPT, ordinal)
    assert desk.asked_of() == {cold.node: {ordinal}}


def test_what_is_taken_of_another_column_is_claimed_before_it_is_asked_for(desk):
    theirs = bits_of(list(iterate(ALL & ~desk.plan.mine))[-COUNT // LAST_PART :])
    desk.series.missing = theirs
    desk.link(SEED).remember(ATTEMPT, ((0, COUNT - 1),))
    desk.asking.ask_all(0.0)
    claims = [effect for effect in desk.sent if isinstance(effect.message, Claim)]
    requests = [effect for effect in desk.sent if isinstance(effect.message, Request)]
    assert {effect.link for effect in claims} == {desk.link(MATE).number}
    claimed = bits_of(first for effect in claims for first, _ in effect.message.ranges)
    assert claimed == bits_of(int(effect.message.name) for effect in requests)
    assert claimed
    assert claimed & theirs == claimed
    assert isinstance(desk.sent[0].message, Claim)
