"""Topology: which peers a node wants to be connected to, the same answer wherever the same nodes are known.

A small fleet is a full mesh. In a large one a node is linked to its own site (to all of it, or to its borders and
some neighbours on a ring), a border also to the borders in its columns at every other site and to the publishers,
and everyone to a few far nodes by hash, so that the whole stays connected whatever sites there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from .gossip import Gossip
from .ids import digest
from .manifest import NodeRecord
from .roster import MAX_BORDERS, MAX_ENTRIES, borders_of

FULL_MESH: Final = 48
"""Fleets up to this size are a full mesh; sites up to half of it too."""

NEIGHBOURS: Final = 4
"""Next nodes on a ring in both directions: within a large site, and over the whole fleet."""

FAR_LINKS: Final = 2


class Topology:
    """The links of one node. They are worked out anew when nodes come, move, or publish for the first time."""

    def __init__(self, gossip: Gossip, me: bytes) -> None:
        self._gossip = gossip
        self._me = me
        self._moves = -1
        self._publishers: set[bytes] = set()
        self._wanted: set[bytes] = set()

    def wanted(self) -> AbstractSet[bytes]:
        """Ids of the nodes that this one wants to be linked to."""
        publishers = self._gossip.publishers()
        if self._moves != self._gossip.moves or self._publishers != publishers:
            self._moves, self._publishers = self._gossip.moves, publishers
            self._wanted = wanted_links(self._gossip.nodes, self._me, publishers)
        return self._wanted


def wanted_links(nodes: Mapping[bytes, NodeRecord], me: bytes, publishers: AbstractSet[bytes]) -> set[bytes]:
    """Ids of the nodes that `me` wants to be linked to, itself not among them."""
    others = set(nodes) - {me}
    if len(others) < FULL_MESH or me not in nodes:
        return others
    sites: defaultdict[str, dict[bytes, NodeRecord]] = defaultdict(dict)
    for node, record in nodes.items():
        sites[record.site][node] = record
    mine = sites[nodes[me].site]
    count = max(1, min(MAX_BORDERS, MAX_ENTRIES // len(sites)))
    borders = borders_of(mine, nodes[me].site, count)
    wanted = set(mine) if len(mine) <= FULL_MESH // 2 else {*borders, *_ring(mine, me, NEIGHBOURS)}
    wanted.update(_ring(nodes, me, FAR_LINKS))
    if me in borders:
        wanted.update(publishers & others)
        for site, members in sites.items():
            if site != nodes[me].site:
                wanted.update(_columns(borders.index(me), len(borders), borders_of(members, site, count)))
    return wanted - {me}


def _columns(index: int, count: int, theirs: list[bytes]) -> list[bytes]:
    """Borders of another site that are dealt some of the same columns. Both counts are powers of two."""
    step = min(count, len(theirs))
    return [border for at, border in enumerate(theirs) if at % step == index % step]


def _ring(nodes: Mapping[bytes, NodeRecord], me: bytes, count: int) -> list[bytes]:
    """The `count` nodes that follow `me`, and the `count` before it, in the order of a hash."""
    order = sorted((digest(b"ring" + node), node) for node in nodes)
    at = bisect_right(order, (digest(b"ring" + me), me))
    after = [order[(at + step) % len(order)][1] for step in range(count)]
    before = [order[(at - 2 - step) % len(order)][1] for step in range(count)]
    return after + before
