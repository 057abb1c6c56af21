"""Plans of the borders of one site, in a fleet of a seed and two sites."""

from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.manifest import NodeRecord
from patchswarm.protocol.picker import Plan
from patchswarm.protocol.roster import Dealing, build_roster

SEED = digest(b"seed")
OTHER = bytes(32)  # a lesser id than any
COUNT = 64
ALL = (1 << COUNT) - 1


def record(site):
    return NodeRecord(bytes(32), bytes(16), 1, site, ("host:1",), (), b"")


def node_of(site, number):
    return digest(b"%s %d" % (site.encode(), number))


NODES = {SEED: record("home")} | {node_of(site, number): record(site) for site in ("a", "b") for number in range(4)}
ROSTER = build_roster(NODES, SEED)
BORDERS = {entry.site: entry.borders for entry in ROSTER}


def link_to(node):
    return Link(0, bytes(32), node, True, 0.0, 0.0, NODES[node])


def plan_of(site, me, now_s=0.0, alive=None):
    """The plan of one node of a site, with every chunk named."""
    made = Plan(Dealing(ROSTER, site, me), frozenset({SEED}), frozenset({"home"}))
    made.deal(ALL, frozenset(BORDERS[site] if alive is None else alive), now_s)
    return made
