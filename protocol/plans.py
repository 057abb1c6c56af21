"""Plans: the plan of every series that is being fetched, made from its roster and kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from .gossip import Gossip
from .link import Link
from .picker import Plan
from .roster import Dealing
from .series import Series

ROSTER_S: Final = 2.0
"""How long chunks are not asked across sites while the roster that deals them is on its way."""


class Plans:
    """Two plans per series, of its data and of its blobs, for one node at the site that `site()` says."""

    def __init__(self, gossip: Gossip, links: Mapping[int, Link], node: bytes, site: Callable[[], str]) -> None:
        self._gossip = gossip
        self._links = links
        self._node = node
        self._site = site
        self._plans: dict[bytes, tuple[Plan, Plan]] = {}  # by attempt
        self._roster_due_s: dict[bytes, float] = {}  # attempt -> until when its roster is waited for

    def get(self, attempt: bytes) -> tuple[Plan, Plan] | None:
        """The plans of a series, if any were made."""
        return self._plans.get(attempt)

    def forget(self, attempt: bytes) -> None:
        """Make the plans anew when they are needed next: they were made without the roster."""
        self._plans.pop(attempt, None)

    def tidy(self, is_over: Callable[[bytes], bool]) -> None:
        """Let go of what belongs to attempts that are over."""
        for kept in (self._plans, self._roster_due_s):
            for attempt in [attempt for attempt in kept if is_over(attempt)]:
                del kept[attempt]

    def alive(self) -> frozenset[bytes]:
        """Peers that are connected and have answered a ping: who never does runs no daemon, whatever else it says."""
        return frozenset(link.node for link in self._links.values() if link.record is not None and link.srtt_s)

    def of(self, series: Series, alive: frozenset[bytes] | None, now_s: float) -> tuple[Plan, Plan]:
        """The plans of a series, brought up to date with what is named and, where given, with who is alive."""
        plans = self._plans.get(series.attempt)
        if plans is None:
            plans = self._plans[series.attempt] = (self._new(series), self._new(series))
            alive = self.alive() if alive is None else alive
        data, meta = plans
        if alive is None:
            living = data.alive
        else:
            borders = data.dealing.borders if data.dealing else ()
            data.unseen = meta.unseen = self._unseen(borders, alive)
            living = (alive & data.seeds.union(borders)) | data.unseen
        data.deal(series.named, living, now_s)
        meta.deal(series.named_meta, living, now_s)
        return plans

    def _unseen(self, borders: Iterable[bytes], alive: frozenset[bytes]) -> frozenset[bytes]:
        """Borders that this node cannot be linked to, because neither can be dialled, if a mate is there who sees both.

        What one of them brings comes from that mate, who also notices when it dies.
        """
        if self._is_dialable(self._node):
            return frozenset()
        site = self._site()
        if not any(link.site == site and link.node in alive for link in self._links.values()):
            return frozenset()
        return frozenset(border for border in borders if border != self._node and not self._is_dialable(border))

    def _is_dialable(self, node: bytes) -> bool:
        record = self._gossip.nodes.get(node)
        return record is None or bool(record.addresses)

    def awaits_roster(self, series: Series, now_s: float) -> bool:
        """Whether the opening that says who fetches what is still on its way; not for long."""
        if series.opening is not None or not self._gossip.lacks_opening(series.stream, series.version):
            return False
        return now_s < self._roster_due_s.setdefault(series.attempt, now_s + ROSTER_S)

    def _new(self, series: Series) -> Plan:
        of = series.opening or series.transition
        seeds = frozenset(part.node for part in of.parts) if of else frozenset()
        roster = series.opening.roster if series.opening else ()
        site = self._site()
        dealing = Dealing(roster, site, self._node) if roster else None
        sites = frozenset(self._gossip.nodes[node].site for node in seeds if node in self._gossip.nodes)
        return Plan(dealing, seeds, sites - {site})
