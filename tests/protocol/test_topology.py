"""Topology: everyone reaches everyone, and nobody holds more links than it must."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.versions import key_of, node_record, raw

from patchswarm.protocol.gossip import Gossip
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import NodeRecord
from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.roster import MANY_BORDERS, MAX_BORDERS, borders_of, build_roster, most_borders
from patchswarm.protocol.topology import FAR_LINKS, FULL_MESH, Topology, wanted_links


def fleet(sizes):
    """Nodes by id, in sites of these sizes; one in five cannot be dialled."""
    made = {}
    for site, size in enumerate(sizes):
        for member in range(size):
            addresses = () if member % 5 == 4 else ("host:1",)
            made[digest(b"%d %d" % (site, member))] = NodeRecord(
                bytes(32), bytes(16), 1, f"site {site}", addresses, (), b""
            )
    return made


def links_of(nodes, publishers=frozenset()):
    """Who is linked to whom: a link exists when either end wants it."""
    wanted = {me: wanted_links(nodes, me, publishers) for me in nodes}
    linked = {me: set(theirs) for me, theirs in wanted.items()}
    for me, theirs in wanted.items():
        for other in theirs:
            linked[other].add(me)
    return wanted, linked


def reachable(linked, start, without=frozenset()):
    seen, queue = {start}, [start]
    while queue:
        for other in linked[queue.pop()] - seen - without:
            seen.add(other)
            queue.append(other)
    return seen


fleets = st.one_of(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.lists(st.integers(1, 3), min_size=20, max_size=60),
    st.just([400]),
).map(fleet)


@settings(max_examples=20)
@given(fleets)
def test_everyone_can_reach_everyone_and_nobody_wants_itself(nodes):
    wanted, linked = links_of(nodes)
    assert reachable(linked, next(iter(nodes))) == set(nodes)
    assert not any(me in theirs for me, theirs in wanted.items())


@settings(max_examples=10)
@given(fleets, st.integers(0, 2**32))
def test_the_rest_stays_connected_when_one_in_ten_vanishes(nodes, seed):
    _, linked = links_of(nodes)
    gone = set(random.Random(seed).sample(sorted(nodes), len(nodes) // 10))
    rest = set(nodes) - gone
    assert reachable(linked, next(iter(rest)), gone) == rest


@pytest.mark.parametrize("sizes", [[10], [40], [20, 20, 8]])
def test_a_small_fleet_is_a_full_mesh(sizes):
    nodes = fleet(sizes)
    wanted, _ = links_of(nodes)
    assert all(theirs == set(nodes) - {me} for me, theirs in wanted.items())


@pytest.mark.parametrize("sizes", [[50] * 20, [500, 100], [1] * 200, [1000]])
def test_in_a_large_fleet_a_node_wants_few_links(sizes):
    nodes = fleet(sizes)
    for site in {record.site for record in nodes.values()}:
        members = [node for node, record in nodes.items() if record.site == site]
        count = most_borders(len(sizes), len(members))
        borders = set(borders_of(nodes, site, count))
        inside = len(members) if len(members) <= FULL_MESH // 2 else count + 2 * len(members).bit_length()
        for me in members[:20]:
            degree = len(wanted_links(nodes, me, frozenset()))
            assert degree <= inside + 2 * FAR_LINKS + (MANY_BORDERS * len(sizes) if me in borders else 0)


def test_what_two_borders_deal_to_each_other_both_of_them_want():
    nodes = fleet([60, 30, 7, 3, 1])
    wanted, _ = links_of(nodes)
    borders = {node for site in range(5) for node in borders_of(nodes, f"site {site}", MAX_BORDERS)}
    for me in borders:
        for other in wanted[me] & borders:
            assert me in wanted[other]


def test_in_a_large_site_everyone_is_a_few_steps_from_everyone():
    nodes = fleet([300])
    wanted, _ = links_of(nodes)
    borders = set(borders_of(nodes, "site 0", MANY_BORDERS))
    rest = set(nodes) - borders  # they are linked to all
    reached = {min(rest)}
    for _ in range(4):
        reached |= {other for node in reached for other in wanted[node]} & rest
    assert reached == rest


def test_ring_neighbours_want_each_other():
    nodes = fleet([300])
    borders = set(borders_of(nodes, "site 0", MANY_BORDERS))
    wanted, _ = links_of(nodes)
    for me in set(nodes) - borders:
        for other in wanted[me] - borders:
            assert me in wanted[other]


def test_borders_want_the_publishers_and_others_do_not():
    nodes = fleet([60, 60])
    publisher = next(node for node in nodes if nodes[node].site == "site 0")
    wanted, _ = links_of(nodes, frozenset({publisher}))
    borders = set(borders_of(nodes, "site 1", MAX_BORDERS))
    assert all(publisher in wanted[border] for border in borders)
    members = [node for node in nodes if nodes[node].site == "site 1" and node not in borders]
    assert sum(publisher in wanted[node] for node in members) <= 2 * FAR_LINKS


@pytest.mark.parametrize("turn", range(12))
def test_all_that_a_roster_names_have_a_link_to_its_seed_and_its_mates_one_to_them(turn):
    nodes = fleet([60, 60])
    seed = [node for node in nodes if nodes[node].site == "site 0"][turn]
    wanted, _ = links_of(nodes, frozenset({seed}))
    for entry in build_roster(nodes, seed):
        assert all(seed in wanted[border] for border in entry.borders)
        if entry.site == "site 0":
            assert len(entry.borders) == MANY_BORDERS
            mates = {node for node in nodes if nodes[node].site == "site 0"} - {seed}
            assert all(set(entry.borders) <= wanted[mate] | {mate} for mate in mates)


def test_a_node_that_nobody_heard_of_yet_wants_everyone():
    nodes = fleet([60])
    assert wanted_links(nodes, digest(b"new"), frozenset()) == set(nodes)


def test_the_links_follow_nodes_that_come_and_move():
    ca, gossip = key_of("ca"), Gossip(raw(key_of("ca")))
    me = digest(raw(key_of("me")))
    topology = Topology(gossip, me)
    assert topology.wanted() == set()
    for serial, site in ((1, "a"), (2, "b")):
        gossip.learn(ObjectKind.NODE, node_record(ca, key_of("other"), serial=serial, site=site))
        assert topology.wanted() == {digest(raw(key_of("other")))}
