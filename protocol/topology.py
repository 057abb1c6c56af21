"""Topology: which peers a node wants to be connected to, the same answer wherever the same nodes are known.

A small fleet is a full mesh. In a large one a node is linked to its own site (to all of it, or to its borders and
to some others, all over it), a border also to the borders in its columns at every other site and to the publishers,
and everyone to a few far nodes by hash, so that the whole stays connected whatever sites there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from .gossip import Gossip
from .ids import digest
from .manifest import NodeRecord
from .roster import borders_of, most_borders

FULL_MESH: Final = 48
"""Fleets up to this size are a full mesh; sites up to half of it too."""

FAR_LINKS: Final = 2
"""Next nodes in both directions on a ring over the whole fleet."""


_Sites = Mapping[str, Mapping[bytes, NodeRecord]]
"""Nodes by site."""


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
    borders = _borders(sites, nodes[me].site)
    inside = {*borders, *_borders_beside(publishers, sites, nodes[me].site)}
    wanted = set(mine) if len(mine) <= FULL_MESH // 2 else {*inside, *_chords(mine, me)}
    wanted.update(_ring(nodes, me, FAR_LINKS))
    if me in inside:
        wanted.update(publishers & others)
    if me in borders:
        for site in sites:
            if site != nodes[me].site:
                wanted.update(_columns(borders.index(me), len(borders), _borders(sites, site)))
    return wanted - {me}


def _borders(sites: _Sites, site: str) -> list[bytes]:
    return borders_of(sites[site], site, most_borders(len(sites), len(sites[site])))


def _borders_beside(publishers: AbstractSet[bytes], sites: _Sites, site: str) -> set[bytes]:
    """The borders that a roster names at a site for each publisher that is there, which is none itself."""
    found: set[bytes] = set()
    for publisher in publishers & sites[site].keys():
        others = {node: record for node, record in sites[site].items() if node != publisher}
        found.update(borders_of(others, site, most_borders(len(sites), len(others), home=True)))
    return found


def _columns(index: int, count: int, theirs: list[bytes]) -> list[bytes]:
    """Borders of another site that are dealt some of the same columns. Both counts are powers of two."""
    step = min(count, len(theirs))
    return [border for at, border in enumerate(theirs) if at % step == index % step]


def _ring(nodes: Mapping[bytes, NodeRecord], me: bytes, count: int) -> list[bytes]:
    """The `count` nodes that follow `me`, and the `count` before it, in the order of a hash."""
    return _at_distances(nodes, me, range(1, count + 1))


def _chords(nodes: Mapping[bytes, NodeRecord], me: bytes) -> list[bytes]:
    """The nodes 1, 2, 4, … places from `me` in the order of a hash: all are a few steps from each other.

    Source: the fingers of Chord (Stoica et al., 2001), here in both directions.
    """
    return _at_distances(nodes, me, (1 << power for power in range((len(nodes) // 2).bit_length())))


def _at_distances(nodes: Mapping[bytes, NodeRecord], me: bytes, distances: Iterable[int]) -> list[bytes]:
    order = sorted((digest(b"ring" + node), node) for node in nodes)
    at = bisect_left(order, (digest(b"ring" + me), me))
    return [order[(at + step) % len(order)][1] for distance in distances for step in (distance, -distance)]
