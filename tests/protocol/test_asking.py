"""Asking across sites: of several that have a chunk, the one from which it comes soonest."""

import pytest
from support.border import ATTEMPT, COUNT, MATE, ME, NODES, SEED, SIZE, Desk, record

from patchswarm.protocol.asking import MOST_TURNS, SLOW_MATE_S, STEAL_BEHIND_S
from patchswarm.protocol.helping import LAST_PART
from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import HOPE_S, Link
from patchswarm.protocol.messages import Claim, Request
from patchswarm.protocol.ranges import bits_of, iterate
from patchswarm.protocol.series import ChunkSet

ALL = (1 << COUNT) - 1


@pytest.fixture
def desk():
    return Desk()


@pytest.fixture
def others(desk):
    """The border of this node's column at the other site, and its mate, who both have what that site takes."""
    return desk.borders_elsewhere()


def test_a_chunk_is_asked_of_the_one_from_which_it_comes_sooner_although_that_one_is_busy(desk, others):
    warm, cold = others
    ordinal = next(iterate(desk.plan.mine & ~desk.plan.owned))
    warm.goodput = 10e6
    while warm.has_room():
        warm.depart(ATTEMPT, COUNT, b"something else", SIZE, 0.0)
    for link in others:
        link.offers.remember(ATTEMPT, ((ordinal, ordinal),))
    assert desk.asked_of() == {}, "what is under way there will be here before a cold connection has begun"
    warm.goodput = 1e5
    assert desk.asked_of() == {cold.node: {ordinal}}


def test_a_chunk_that_a_mate_is_to_get_in_a_moment_is_waited_for_where_the_way_is_warm(desk, others):
    warm, cold = others
    ordinal = next(iterate(desk.plan.to_come(warm.node)))
    cold.offers.remember(ATTEMPT, ((ordinal, ordinal),))
    warm.goodput = 10e6
    assert desk.asked_of() == {}
    warm.offers.remember(ATTEMPT, ((ordinal, ordinal),))
    assert desk.asked_of() == {warm.node: {ordinal}}


def test_what_the_border_of_a_column_is_about_to_have_is_not_asked_of_its_mate_over_a_cold_connection(desk, others):
    warm, cold = others
    stolen = next(iterate(desk.plan.mine & desk.plan.owned))
    desk.series.missing = 1 << stolen
    desk.link(SEED).strike(0.0)
    cold.offers.remember(ATTEMPT, ((stolen, stolen),))
    warm.goodput = 10e6
    assert desk.asked_of() == {}
    warm.rate = 1e4
    assert desk.asked_of() == {cold.node: {stolen}}, "over that one it would take longer"


def test_who_said_that_it_is_busy_is_not_waited_for(desk, others):
    warm, cold = others
    ordinal = next(iterate(desk.plan.mine & ~desk.plan.owned))
    warm.goodput = 10e6
    for link in others:
        link.offers.remember(ATTEMPT, ((ordinal, ordinal),))
    warm.offers.defer(ATTEMPT, ordinal)
    assert desk.asked_of() == {cold.node: {ordinal}}


def test_what_is_taken_of_another_column_is_claimed_before_it_is_asked_for(desk):
    theirs = bits_of(list(iterate(ALL & ~desk.plan.mine))[-COUNT // LAST_PART :])
    desk.series.missing = theirs
    desk.link(SEED).offers.remember(ATTEMPT, ((0, COUNT - 1),))
    desk.asking.ask_all(0.0)
    claims = [effect for effect in desk.sent if isinstance(effect.message, Claim)]
    requests = [effect for effect in desk.sent if isinstance(effect.message, Request)]
    claimed = bits_of(
        first for effect in claims if effect.link == desk.link(MATE).number for first, _ in effect.message.ranges
    )
    assert claimed == bits_of(int(effect.message.name) for effect in requests)
    assert claimed
    assert claimed & theirs == claimed
    assert isinstance(desk.sent[0].message, Claim)


def test_the_border_from_which_a_chunk_is_stolen_is_told(desk):
    theirs = desk.plan.mine & ~desk.plan.owned
    desk.series.missing = theirs
    desk.link(SEED).offers.remember(ATTEMPT, ((0, COUNT - 1),))
    desk.asking.ask_all(0.0)
    asked = [int(effect.message.name) for effect in desk.sent if isinstance(effect.message, Request)]
    told = {
        effect.message.ranges[0][0]: desk.links[effect.link].node
        for effect in desk.sent
        if isinstance(effect.message, Claim)
    }
    assert asked
    assert told == {ordinal: desk.plan.dealing.bringer(ordinal) for ordinal in asked}


def test_of_a_mate_with_a_slow_uplink_one_asks_for_each_chunk_and_the_others_after_a_while(desk):
    mate = desk.link(MATE)
    mate.goodput = 1e9
    mate.offers.remember(ATTEMPT, ((0, COUNT - 1),))
    assert desk.asked_of()[MATE]
    for number in list(mate.flights):
        mate.land(number, 1.0, arrived=False)
    desk.series.asked = ChunkSet()
    mate.goodput = mate.rate = SIZE / (2 * SLOW_MATE_S)
    others = sorted((ME, desk.add_mate()))
    mine = others.index(ME)
    asked = desk.asked_of()[MATE]
    assert {ordinal % len(others) for ordinal in asked} == {mine}
    for number in list(mate.flights):
        mate.land(number, 1.0, arrived=False)
    desk.series.missing = bits_of(ordinal for ordinal in range(COUNT) if ordinal % len(others) != mine)
    desk.asking.ask_all(0.0)
    assert not desk.sent
    desk.asking.ask_all(HOPE_S * len(others))
    assert desk.sent, "whose turn it was may be gone"


def test_in_a_large_site_too_it_is_everyones_turn_after_a_while(desk):
    mate = desk.link(MATE)
    mate.goodput = mate.rate = SIZE / (2 * SLOW_MATE_S)
    mate.offers.remember(ATTEMPT, ((0, COUNT - 1),))
    for number in range(60):
        desk.links[100 + number] = Link(100 + number, bytes(32), digest(b"more %d" % number), True, 0, 0, record("a"))
    others = sorted({link.node for link in desk.links.values() if link.site == "a"} - {MATE} | {ME})
    first = others.index(ME)
    late = next(ordinal for ordinal in range(COUNT) if (ordinal - first) % len(others) > MOST_TURNS + 1)
    desk.series.missing = 1 << late
    desk.asking.ask_all(0.0)
    desk.asking.ask_all(HOPE_S * MOST_TURNS - 0.1)
    assert not desk.sent
    desk.asking.ask_all(HOPE_S * MOST_TURNS)
    assert desk.sent


def test_who_is_behind_with_passing_on_steals_nothing(desk):
    desk.behind_s = 2 * STEAL_BEHIND_S
    desk.series.missing = desk.plan.mine & ~desk.plan.owned
    desk.link(SEED).offers.remember(ATTEMPT, ((0, COUNT - 1),))
    assert desk.asked_of() == {}
    desk.behind_s = 0.0
    assert desk.asked_of()


@pytest.fixture
def beside_the_seed():
    """This border, its seed, and a border at another site, who both offer the same chunk, which is to come here."""
    desk = Desk(seed_site="a")
    ordinal = next(iterate(desk.plan.mine))
    desk.series.missing = 1 << ordinal
    there = desk.link(next(node for node in NODES if NODES[node].site == "b"))
    for link in (desk.link(SEED), there):
        link.offers.remember(ATTEMPT, ((ordinal, ordinal),))
        link.goodput = 10e6
    return desk, there


def test_what_a_seed_of_this_site_offers_is_asked_of_it(beside_the_seed):
    desk, there = beside_the_seed
    there.rate = 1e6
    assert [*desk.asked_of()] == [SEED]


def test_what_comes_sooner_from_another_site_is_not_asked_of_a_seed_with_a_thin_uplink(beside_the_seed):
    desk, there = beside_the_seed
    desk.link(SEED).rate = 1e5
    assert [*desk.asked_of()] == [there.node]
    there.strike(0.0)
    desk.series.asked = ChunkSet()
    desk.sent.clear()
    assert [*desk.asked_of()] == [SEED], "that one cannot be counted on"


def test_what_a_mate_has_is_not_asked_of_the_seed(beside_the_seed):
    desk, _ = beside_the_seed
    mate = desk.link(MATE)
    mate.offers.remember(ATTEMPT, ((0, COUNT - 1),))
    assert [*desk.asked_of()] == [MATE]


def test_a_seed_that_fetches_its_own_chunks_back_waits_for_nobodys_turn(desk):
    """It is in no row of mates: its roster has everyone but itself."""
    desk.plan.seeds = frozenset({ME})
    mate = desk.link(MATE)
    mate.goodput = mate.rate = SIZE / (2 * SLOW_MATE_S)
    mate.offers.remember(ATTEMPT, ((0, COUNT - 1),))
    assert desk.asked_of()[MATE]
