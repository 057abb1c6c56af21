"""Roster: which sites take part in a distribution, and who fetches which chunk into which site.

The publisher writes the roster into the opening, so everyone deals alike whatever they know of the fleet. Owner
sites are dealt by smooth weighted round-robin over chunk ordinals: only the owner site takes a chunk from the seed.
Inside every site one border brings each chunk in; columns of ordinals are dealt over its borders, in the same
columns at every site, so that a border talks to few others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import gcd
from typing import Final

from .ids import digest
from .manifest import NodeRecord, RosterSite

MAX_SITES: Final = 128
MAX_BORDERS: Final = 8
MANY_BORDERS: Final = 16
"""And so many at the seed's own site, which is as fast as its members' uplinks are, and at one of more than LARGE_SITE
members: each border passes on what it brings to many."""

LARGE_SITE: Final = 64

MAX_ENTRIES: Final = 1000
"""Borders in one roster: keeps the opening inside a control frame."""

FULL_WEIGHT: Final = 16
CHUNKS_PER_BORDER: Final = 16
LEAST_CHUNKS_PER_BORDER: Final = 8
"""Of a patch in fewer chunks fewer borders bring some in: else all leave the seed at once, and arrive at the end."""

NO_CROWD: Final = 32
"""So many borders are asked of the seed all the same: that few share its uplink, and one that fails holds up little."""

MIN_CHUNKS: Final = 64
"""Chunks that a patch is cut into: so many for each border, so that their shares are alike, and no more, because each
chunk costs every node the same work, however small it is; and so many at least, so that it is passed on as it comes."""

MAX_PERIOD: Final = 4096
"""Chunks after which the dealing repeats, at most, whatever weights a roster has."""


def most_borders(sites: int, members: int, *, home: bool = False) -> int:
    """Borders of a site of so many members at most, in a roster of so many sites; `home`: the seed is there."""
    most = MANY_BORDERS if home or members > LARGE_SITE else MAX_BORDERS
    return max(1, min(most, MAX_ENTRIES // max(sites, 1)))


def border_count(members: int, most: int) -> int:
    """How many of a site's members are its borders: a power of two, at most `most`; none of none."""
    count = min(members, most)
    return 1 << count.bit_length() - 1 if count else 0


def borders_of(nodes: Mapping[bytes, NodeRecord], site: str, count: int = MAX_BORDERS) -> list[bytes]:
    """Members of a site that fetch for it: a power of two of them, at most `count`, so that columns divide evenly.

    Dialable ones come first, then a hash decides, so that the choice seldom changes.
    """
    members = [node for node, record in nodes.items() if record.site == site]
    members.sort(key=lambda node: (not nodes[node].addresses, digest(b"border" + node)))
    return members[: border_count(len(members), count)]


def build_roster(nodes: Mapping[bytes, NodeRecord], seed: bytes, chunks: int | None = None) -> tuple[RosterSite, ...]:
    """The roster for a version that only `seed` holds: every site with a member besides the seed.

    `chunks` is how many the patch will have at most, as far as that is known.
    The seed's own site and sites without a dialable member own nothing (weight 0): the first reach the seed over
    their LAN, the others could not hand on what they took.
    """
    others = {node: record for node, record in nodes.items() if node != seed}
    home = nodes[seed].site if seed in nodes else ""
    members = Counter(record.site for record in others.values())
    sites = sorted(members)[:MAX_SITES]
    enough = MANY_BORDERS
    if chunks is not None:
        enough = max(1, max(chunks // LEAST_CHUNKS_PER_BORDER, NO_CROWD) // max(len(sites) - (home in sites), 1))
    roster = []
    for site in sites:
        most = most_borders(len(sites), members[site], home=site == home)
        borders = borders_of(others, site, most if site == home else min(most, enough))
        dialable = any(others[node].addresses for node in borders)
        roster.append(RosterSite(site, FULL_WEIGHT if dialable and site != home else 0, tuple(borders)))
    return tuple(roster)


def chunks_for(borders: Iterable[int]) -> int:
    """Chunks that a patch should have, given how many borders each site of its roster has."""
    return max(MIN_CHUNKS, CHUNKS_PER_BORDER * sum(borders))


def smooth_round_robin(weights: Iterable[int]) -> list[int]:
    """One period of smooth weighted round-robin: indices, each as often as its reduced weight, evenly spread.

    Source: the algorithm of nginx's upstream balancer. Empty when no weight is positive.
    """
    reduced = _reduced(list(weights))
    total = sum(reduced)
    credit = [0] * len(reduced)
    order: list[int] = []
    for _ in range(total):
        credit = [have + weight for have, weight in zip(credit, reduced, strict=True)]
        chosen = max(range(len(credit)), key=lambda index: (credit[index], -index))
        credit[chosen] -= total
        order.append(chosen)
    return order


def _reduced(weights: list[int]) -> list[int]:
    """Weights over their greatest common divisor: a short period for equal ones, a bounded one for any."""
    if sum(weights) > MAX_PERIOD:
        share = MAX_PERIOD / (2 * sum(weights))
        weights = [max(1, int(weight * share)) if weight else 0 for weight in weights]
    divisor = gcd(*weights) if any(weights) else 1
    return [weight // divisor for weight in weights]


class Dealing:
    """The roster seen from one node: what it has to bring into its site, and from where it may."""

    def __init__(self, roster: tuple[RosterSite, ...], site: str, me: bytes) -> None:
        self._roster = roster
        self._order = smooth_round_robin(entry.weight for entry in roster)
        self._owners = [index for index, entry in enumerate(roster) if entry.weight]
        self._owner_sites = frozenset(roster[index].site for index in self._owners)
        self._site = next((index for index, entry in enumerate(roster) if entry.site == site), -1)
        self.site = site
        self.borders: tuple[bytes, ...] = roster[self._site].borders if self._site >= 0 else ()
        self.me = me
        self.period = max(len(self._order), 1)
        """Ordinals after which owner sites repeat; each column is that long and goes to the next border."""
        self.columns = max(len(self.borders), 1)
        """Columns after which the site's borders repeat."""

    @property
    def takes_part(self) -> bool:
        """Whether this node's site is in the roster."""
        return self._site >= 0

    @property
    def is_border(self) -> bool:
        """Whether this node brings chunks into its site."""
        return self.me in self.borders

    def owns_any(self, site: str) -> bool:
        """Whether a site owns chunks."""
        return site in self._owner_sites

    def owner(self, ordinal: int) -> str | None:
        """The site that owns a chunk; None when no site owns any, and all take from the seed."""
        return self._roster[self._order[ordinal % len(self._order)]].site if self._order else None

    def site_rank(self, ordinal: int) -> int:
        """0 when this node's site may take the chunk from the seed, 1 for the site that steps in next, and so on.

        A site that owns nothing because the seed is in it, or because nobody there can be dialled, comes last.
        """
        if not self._order or self._site < 0:
            return 0
        if not self._roster[self._site].weight:
            return len(self._owners)
        owner = self._owners.index(self._order[ordinal % len(self._order)])
        return (self._owners.index(self._site) - owner) % len(self._owners)

    def rank(self, ordinal: int, alive: frozenset[bytes]) -> int:
        """0 when this node brings the chunk into its site, 1 when it steps in next, and so on.

        Only borders in `alive` count: the rank of a dead one passes on at once.
        """
        before = 0
        for border in self._turn(ordinal):
            if border == self.me:
                return before
            before += border in alive
        return before

    def border(self, ordinal: int, alive: frozenset[bytes]) -> bytes | None:
        """The living border that brings the chunk into this node's site, None when all are dead."""
        return next((border for border in self._turn(ordinal) if border in alive or border == self.me), None)

    def bringer(self, ordinal: int) -> bytes | None:
        """The border that takes the chunk from the seed into its owner site; None when no site owns it."""
        if not self._order:
            return None
        borders = self._roster[self._order[ordinal % len(self._order)]].borders
        return self._of_column(borders, ordinal) if borders else None

    def partner(self, ordinal: int, border: bytes) -> bytes:
        """The border of the chunk's column at the site of another one; that one itself where it is in no roster."""
        site = next((entry.borders for entry in self._roster if border in entry.borders), (border,))
        return self._of_column(site, ordinal)

    def _of_column(self, borders: tuple[bytes, ...], ordinal: int) -> bytes:
        return borders[ordinal // self.period % len(borders)]

    def column(self, ordinal: int) -> int:
        """Which column a chunk is in: the same borders answer for all of it."""
        return ordinal // self.period % self.columns

    def _turn(self, ordinal: int) -> tuple[bytes, ...]:
        """The site's borders in the order in which they answer for a chunk."""
        if not self.borders:
            return ()
        first = self.column(ordinal)
        return self.borders[first:] + self.borders[:first]
