"""Plans: who is taken to be alive, where some of a site cannot see each other."""

from types import SimpleNamespace

import pytest

from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.manifest import NodeRecord
from patchswarm.protocol.plans import Plans
from patchswarm.protocol.roster import build_roster

SEED, DIALABLE, *BEHIND_NAT = (digest(b"%d" % number) for number in range(4))
ME, UNSEEN = BEHIND_NAT


def record(site, node):
    addresses = () if node in BEHIND_NAT else ("host:1",)
    return NodeRecord(bytes(32), bytes(16), 1, site, addresses, (), b"")


NODES = {SEED: record("home", SEED)} | {node: record("a", node) for node in (DIALABLE, ME, UNSEEN)}
ROSTER = build_roster(NODES | {digest(b"4"): record("a", digest(b"4"))}, SEED)


def plan_of(me, *linked):
    """The plan of one node of site a that is linked to these."""
    nodes = enumerate((SEED, *linked))
    links = {number: Link(number, bytes(32), node, True, 0.0, 0.0, NODES[node]) for number, node in nodes}
    for link in links.values():
        link.measured_rtt(0.1)
    opening = SimpleNamespace(parts=(SimpleNamespace(node=SEED),), roster=ROSTER)
    series = SimpleNamespace(attempt=bytes(16), opening=opening, transition=None, named=0xFFFF, named_meta=0)
    plans = Plans(SimpleNamespace(nodes=NODES), links, me, lambda: "a")
    return plans.of(series, plans.alive(), 0.0)[0]


def test_a_border_that_nobody_behind_nat_can_see_from_there_is_taken_to_be_alive():
    assert UNSEEN in ROSTER[0].borders
    plan = plan_of(ME, DIALABLE)
    assert plan.unseen == {UNSEEN}
    assert not plan.mine & plan_of(UNSEEN, DIALABLE).mine, "or both would bring in the same"


def test_one_that_could_be_dialled_is_not():
    assert plan_of(DIALABLE, ME).unseen == frozenset()
    assert UNSEEN not in plan_of(DIALABLE, ME).alive


def test_without_a_mate_who_sees_both_nothing_of_it_would_come_here():
    assert plan_of(ME).unseen == frozenset()


@pytest.mark.parametrize("seen", [True, False])
def test_what_comes_of_its_column_is_its_progress(seen):
    plan = plan_of(ME, DIALABLE)
    column = plan.columns[plan.dealing.borders.index(UNSEEN)]
    plan.heard(DIALABLE, "a" if seen else "b", column, 1.0)
    assert (UNSEEN in plan.progress_s) == seen
