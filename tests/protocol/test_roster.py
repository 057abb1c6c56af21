"""Rosters: who fetches what into which site, dealt alike by everyone who holds the same opening."""

from collections import Counter

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.versions import Publisher, key_of

from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import NodeRecord, RosterSite
from patchswarm.protocol.roster import (
    MANY_BORDERS,
    MAX_BORDERS,
    MAX_PERIOD,
    MAX_SITES,
    Dealing,
    borders_of,
    build_roster,
    smooth_round_robin,
)
from patchswarm.protocol.signed import sign


def node_of(number):
    return digest(b"node %d" % number)


def record(site, *, dialable=True):
    return NodeRecord(bytes(32), bytes(16), 1, site, ("host:1",) if dialable else (), (), b"")


def nodes_of(**sites):
    """Nodes by id: `a=3` is three dialable members of site `a`."""
    made, number = {}, 0
    for site, count in sites.items():
        for _ in range(count):
            made[node_of(number)] = record(site)
            number += 1
    return made


# -- smooth weighted round-robin -----------------------------------------------------------------------------


def test_equal_weights_take_turns():
    assert smooth_round_robin([16, 16, 16]) == [0, 1, 2]


def test_weights_are_spread_and_not_bunched():
    assert smooth_round_robin([4, 2, 2]) == [0, 1, 2, 0]
    assert smooth_round_robin([5, 1, 1]) == [0, 0, 1, 0, 2, 0, 0]  # as nginx does


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_everyone_is_dealt_exactly_its_weight(weights):
    order = smooth_round_robin(weights)
    if not any(weights):
        assert order == []
        return
    dealt = Counter(order)
    share = len(order) / sum(weights)
    assert {index: dealt[index] for index in range(len(weights))} == {
        index: round(weight * share) for index, weight in enumerate(weights)
    }


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_no_part_of_the_period_strays_far_from_the_weights(weights):
    order = smooth_round_robin(weights)
    assume(order)
    for end in range(len(order) + 1):
        for index, weight in enumerate(weights):
            assert abs(order[:end].count(index) - end * weight / sum(weights)) <= len(weights) / 2


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=128))
def test_no_roster_makes_the_dealing_long(weights):
    order = smooth_round_robin(weights)
    assert len(order) <= MAX_PERIOD
    assert set(order) == {index for index, weight in enumerate(weights) if weight}


# -- rosters -------------------------------------------------------------------------------------------------


def test_every_site_with_a_member_beside_the_seed_takes_part():
    nodes = nodes_of(a=3, b=2, c=1)
    roster = build_roster(nodes, node_of(0))
    assert [(entry.site, entry.weight > 0) for entry in roster] == [("a", False), ("b", True), ("c", True)]
    assert all(nodes[border].site == entry.site for entry in roster for border in entry.borders)
    assert node_of(0) not in {border for entry in roster for border in entry.borders}


def test_a_site_that_nobody_can_dial_owns_nothing():
    nodes = nodes_of(a=1, b=1) | {node_of(9): record("nat", dialable=False)}
    weights = {entry.site: entry.weight for entry in build_roster(nodes, node_of(0))}
    assert weights["nat"] == 0
    assert weights["b"] > 0


def test_borders_are_those_that_can_be_dialled_and_change_little():
    nodes = {node_of(number): record("a", dialable=number % 2 == 0) for number in range(12)}
    chosen = borders_of(nodes, "a", 4)
    assert all(nodes[node].addresses for node in chosen)
    for gone in set(nodes) - set(chosen):
        assert borders_of({node: nodes[node] for node in nodes if node != gone}, "a", 4) == chosen


@given(st.integers(0, 40), st.integers(1, 16))
def test_borders_are_a_power_of_two(members, count):
    chosen = borders_of(nodes_of(a=members), "a", count)
    assert len(chosen) <= min(members, count, MAX_BORDERS if count == MAX_BORDERS else count)
    assert len(chosen) == (1 << (min(members, count).bit_length() - 1) if members else 0)


@pytest.mark.parametrize(("sites", "members"), [(1, 1), (20, 50), (MAX_SITES, 20), (300, 2)])
def test_a_roster_fits_an_opening_whatever_the_fleet(sites, members):
    nodes = {node_of(number): record("x" * 55 + f"{number % sites:05d}") for number in range(sites * members)}
    roster = build_roster(nodes, node_of(0))
    assert len(roster) <= MAX_SITES
    opening = Publisher().version(1, node=node_of(0), roster=roster).opening
    sign(opening, key_of("publisher 1"))


@pytest.mark.parametrize(
    ("chunks", "others", "far"),
    [(None, 10, 8), (640, 10, 8), (639, 10, 4), (160, 10, 2), (3, 10, 2), (3, 40, 1), (3, 4, 8)],
    ids=str,
)
def test_of_few_chunks_few_borders_of_each_other_site_bring_some_in_if_there_are_many_sites(chunks, others, far):
    nodes = nodes_of(a=21, **{f"b{number}": 20 for number in range(others)})
    home, *rest = build_roster(nodes, node_of(0), chunks)
    assert len(home.borders) == MANY_BORDERS
    assert {len(entry.borders) for entry in rest} == {far}


def test_a_seed_that_nobody_knows_yet_has_no_site_of_its_own():
    roster = build_roster(nodes_of(a=1), digest(b"stranger"))
    assert [entry.weight > 0 for entry in roster] == [True]


# -- dealing -------------------------------------------------------------------------------------------------

rosters = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=5).map(
    lambda drawn: build_roster(
        {
            node_of(100 * site + member): record(f"site {site}")
            for site, (_, members) in enumerate(drawn)
            for member in range(members)
        },
        digest(b"seed"),
    )
)


def views(roster, entry):
    """The dealing as each border of a site sees it."""
    return {border: Dealing(roster, entry.site, border) for border in entry.borders}


@given(rosters, st.integers(0, 10_000), st.data())
def test_one_living_border_of_every_site_answers_for_each_chunk(roster, ordinal, data):
    for entry in roster:
        seen = views(roster, entry)
        alive = frozenset(data.draw(st.sets(st.sampled_from(entry.borders), min_size=1)))
        ranks = {border: seen[border].rank(ordinal, alive) for border in alive}
        assert sorted(ranks.values()) == list(range(len(alive))), "ranks are dealt without gap or tie"
        first = next(border for border, rank in ranks.items() if rank == 0)
        assert {view.border(ordinal, alive) for border, view in seen.items() if border in alive} == {first}


@given(rosters, st.integers(0, 10_000))
def test_one_site_owns_each_chunk_and_the_others_have_a_rank(roster, ordinal):
    owning = [entry for entry in roster if entry.weight]
    ranks = {entry.site: Dealing(roster, entry.site, b"").site_rank(ordinal) for entry in owning}
    assert sorted(ranks.values()) == list(range(len(owning)))
    owners = {Dealing(roster, entry.site, b"").owner(ordinal) for entry in roster}
    assert len(owners) == 1
    if owning:
        assert ranks[owners.pop()] == 0


def test_when_a_border_dies_its_rank_passes_on_at_once():
    roster = build_roster(nodes_of(a=1, b=4), node_of(0))
    (entry,) = [entry for entry in roster if entry.site == "b"]
    seen, everyone = views(roster, entry), frozenset(entry.borders)
    for ordinal in range(20):
        order = sorted(entry.borders, key=lambda border: seen[border].rank(ordinal, everyone))
        rest = everyone - {order[0]}
        assert [seen[border].rank(ordinal, rest) for border in order[1:]] == list(range(len(order) - 1))
        assert seen[order[1]].border(ordinal, rest) == order[1]


def test_chunks_are_shared_evenly_among_sites_and_borders():
    roster = build_roster(nodes_of(a=1, b=4, c=4, d=4), node_of(0))
    count = 12 * 16
    by_site = Counter(Dealing(roster, "b", b"").owner(ordinal) for ordinal in range(count))
    assert set(by_site.values()) == {count // 3}
    for entry in roster[1:]:
        seen, everyone = views(roster, entry), frozenset(entry.borders)
        by_border = Counter(seen[entry.borders[0]].border(ordinal, everyone) for ordinal in range(count))
        assert set(by_border.values()) == {count // len(entry.borders)}


def test_every_node_knows_which_border_takes_a_chunk_from_the_seed():
    roster = build_roster(nodes_of(a=1, b=4, c=4, d=4), node_of(0))
    for entry in roster[1:]:
        for border in entry.borders:
            view = Dealing(roster, entry.site, border)
            for ordinal in range(64):
                takes = view.site_rank(ordinal) == 0 and view.rank(ordinal, frozenset(entry.borders)) == 0
                assert takes == (view.bringer(ordinal) == border)


def test_a_border_owns_its_share_of_what_its_site_owns():
    """Columns are dealt so that the border that brings in an ordinal is spread over the ordinals its site owns too."""
    roster = build_roster(nodes_of(a=1, b=4, c=4), node_of(0))
    (entry,) = [entry for entry in roster if entry.site == "b"]
    view, everyone = Dealing(roster, "b", entry.borders[0]), frozenset(entry.borders)
    owned = [ordinal for ordinal in range(64) if view.site_rank(ordinal) == 0]
    shares = Counter(view.border(ordinal, everyone) for ordinal in owned)
    assert set(shares.values()) == {len(owned) // len(entry.borders)}


def test_a_site_outside_the_roster_takes_no_part_and_may_ask_anyone():
    dealing = Dealing((RosterSite("a", 16, (node_of(1),)),), "elsewhere", node_of(2))
    assert not dealing.takes_part
    assert not dealing.is_border
    assert dealing.site_rank(7) == 0


def test_the_seeds_own_site_comes_last_for_what_others_own():
    roster = build_roster(nodes_of(a=2, b=1, c=1), node_of(0))
    assert Dealing(roster, "a", node_of(1)).site_rank(0) == 2
    assert not Dealing(roster, "a", node_of(1)).owns_any("a")
    assert Dealing(roster, "a", node_of(1)).owns_any("b")


def test_the_dealing_stays_the_same_through_its_encoding():
    roster = build_roster(nodes_of(a=1, b=5, c=2), node_of(0))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(roster), type=tuple[RosterSite, ...])
    before, after = Dealing(roster, "b", b""), Dealing(again, "b", b"")
    assert [after.owner(ordinal) for ordinal in range(9)] == [before.owner(ordinal) for ordinal in range(9)]
