"""Claims as they are heard: of mates, and of thieves at other sites."""

import random
from types import SimpleNamespace

import pytest
from support.border import ALL, ATTEMPT, SIZE, Desk

from patchswarm.protocol.errors import MessageError
from patchswarm.protocol.messages import RELEASED, SPARE, Cancel, Claim
from patchswarm.protocol.picker import Plan
from patchswarm.protocol.ranges import bits_of, iterate
from patchswarm.protocol.stepping import Stepping


class Border(Desk):
    """A border that hears claims. `refused` are the chunks whose askers were sent on, and to whom."""

    def __init__(self):
        super().__init__()
        self.refused = []
        plans = SimpleNamespace(get=lambda _: (self.plan, Plan(None, frozenset())))
        serving = SimpleNamespace(refused=lambda name, holders: self.refused.append((int(name), holders)))
        stock = SimpleNamespace(series={ATTEMPT: self.series})
        self.stepping = Stepping(
            stock, self.links, plans, serving, self.asking, self.moving, self.sent.append, lambda: "a", random.Random(1)
        )

    def hear(self, link, ordinals, rank=0):
        """Whether a claim of a peer counts."""
        ranges = tuple((ordinal, ordinal) for ordinal in iterate(ordinals))
        return self.stepping.heard(link, Claim(ATTEMPT, rank, ranges), 1.0)

    def said(self, kind):
        """(link, message) of one kind sent since the last call."""
        said = [(effect.link, effect.message) for effect in self.sent if isinstance(effect.message, kind)]
        self.sent.clear()
        return said

    def of_site(self, site):
        """A link to a site."""
        return next(link for link in self.links.values() if link.site == site)


@pytest.fixture
def border():
    return Border()


def test_what_a_thief_elsewhere_claims_is_to_come_from_there_and_those_who_wait_are_told(border):
    thief = border.of_site("b")
    own = border.plan.mine & border.plan.owned
    *stolen, asked = list(iterate(own))[:4]
    border.series.asked.add(asked)
    assert border.hear(thief, bits_of([*stolen, asked]))
    assert border.refused == [(ordinal, (thief.node,)) for ordinal in stolen]
    partner = border.plan.dealing.partner(stolen[0], thief.node)
    assert bits_of(stolen) == border.plan.to_come(partner) & own
    assert border.plan.mine & own == own, "the seed may be asked still"


@pytest.mark.parametrize("rank", [RELEASED, SPARE])
def test_other_words_of_another_site_do_not_count(border, rank):
    assert not border.hear(border.of_site("b"), ALL, rank)
    assert border.refused == []


def test_of_who_is_benched_no_claim_counts(border):
    for site in "ab":
        link = border.of_site(site)
        link.strike(0.0)
        assert link.conduct.is_benched
        assert not border.hear(link, ALL)


def test_a_mates_claim_takes_back_what_is_queued_and_not_what_has_begun_to_come(border):
    ordinals = list(iterate(border.plan.mine & ~border.plan.owned))[:3]
    for ordinal in ordinals:
        border.series.asked.add(ordinal)
        border.of_site("b").depart(ATTEMPT, ordinal, *border.series.entry(ordinal), 0.0)
    assert border.hear(border.of_site("a"), bits_of(ordinals))
    assert [message.request for _, message in border.said(Cancel)] == [1, 2]
    assert not border.plan.mine & bits_of(ordinals)


def test_what_is_about_to_come_is_not_left_to_a_mate_that_claims_it(border):
    ordinals = list(iterate(border.plan.mine & ~border.plan.owned))[:3]
    far = border.of_site("b")
    far.goodput = 100e6
    for ordinal in ordinals:
        border.series.asked.add(ordinal)
        far.depart(ATTEMPT, ordinal, *border.series.entry(ordinal), 0.0)
    border.hear(border.of_site("a"), bits_of(ordinals))
    assert border.said(Cancel) == []
    assert border.series.asked.data == bits_of(ordinals)


def test_who_leaves_a_chunk_to_one_that_claims_it_too_gives_back_its_own_claim(border):
    mate = border.of_site("a")
    mate.node = min(mate.node, bytes(32))  # the lesser id has it
    theirs = 1 << next(iterate(ALL & ~border.plan.mine))
    border.plan.take_over(theirs)
    border.hear(mate, theirs)
    [(number, claim)] = border.said(Claim)
    assert (number, claim.rank, bits_of(first for first, _ in claim.ranges)) == (mate.number, RELEASED, theirs)


def test_a_claim_that_frees_nothing_gives_nothing_to_ask_for_and_one_that_is_given_back_does(border):
    ordinals = bits_of(list(iterate(border.plan.mine))[:3])
    assert not border.hear(border.of_site("a"), ordinals)
    assert not border.plan.mine & ordinals
    assert border.hear(border.of_site("a"), ordinals, RELEASED)
    assert border.plan.mine & ordinals == ordinals


def test_what_waits_long_at_a_mate_is_claimed_by_one_with_nothing_to_do_and_a_warm_way_to_it(border):
    mate, far = border.of_site("a"), border.of_site("b")
    spare = bits_of(list(iterate(ALL & ~border.plan.mine))[:4])
    border.series.missing = spare
    far.offers.remember(ATTEMPT, tuple((ordinal, ordinal) for ordinal in iterate(spare)))
    assert not border.hear(mate, spare, SPARE), "over a cold connection it would not be sooner"
    far.goodput = 1e5
    assert not border.hear(mate, spare, SPARE), "nor over a slow one"
    far.goodput = 10e6
    assert border.hear(mate, spare, SPARE)
    ((link, claim),) = border.said(Claim)
    assert link == mate.number
    assert claim.rank == 0
    assert border.plan.mine & spare == bits_of(first for first, _ in claim.ranges)
    while far.has_room():
        far.depart(ATTEMPT, 0, b"something else", SIZE, 0.0)
    assert not border.hear(mate, spare & ~border.plan.mine, SPARE), "it has something to do now"


def test_a_claim_of_chunks_that_no_series_has_is_a_breach(border):
    with pytest.raises(MessageError):
        border.stepping.heard(border.of_site("a"), Claim(ATTEMPT, 0, ((0, 2**31 - 1),)), 0.0)
