"""Asking: which chunks are asked of which link now.

What may be asked of whom is `picker`'s decision; here it becomes requests, the nearest links first, each link within
its window, and what is asked for twice or of the wrong one is left out.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Final

from .advance import Advance
from .chance import Chance
from .effects import Effect, Send
from .helping import steal
from .link import HOPE_S, Link
from .messages import META_ORDINAL, Claim, Request
from .picker import Plan
from .plans import Plans
from .ranges import bits_of, iterate
from .routing import Routing
from .series import ChunkSet, Series
from .serving import Serving

SLOW_MATE_S: Final = 0.25
"""Of a mate from which a chunk would take longer only one at a time asks for it."""

MOST_TURNS: Final = 6
"""Mates that have their turn one after another; then all others have theirs."""

BEHIND_S: Final = 4.0
"""A border that is this long behind with passing on what it took from the seed takes no more: faster ones do."""

STEAL_BEHIND_S: Final = 0.25
"""And one that is this far behind steals nothing: what it took for others would only queue here."""


class Asking:
    """Makes the requests of one node. `site()` is where it is.

    `inflight_limit` bounds the bytes asked for of all peers together; None: only each link's window does.
    """

    def __init__(
        self,
        links: Mapping[int, Link],
        routing: Routing,
        plans: Plans,
        serving: Serving,
        advance: Advance,
        emit: Callable[[Effect], None],
        site: Callable[[], str],
        rng: Chance,
        inflight_limit: int | None,
    ) -> None:
        self._links = links
        self._routing = routing
        self._plans = plans
        self._serving = serving
        self._advance = advance
        self._emit = emit
        self._site = site
        self._rng = rng
        self._inflight_limit = inflight_limit
        self._held_off_s = 0.0

    def hold_off(self, until_s: float) -> None:
        """Ask for nothing until then."""
        self._held_off_s = until_s

    def ask_all(self, now_s: float) -> bool:
        """Ask every link for what may be asked of it, the nearest first. Returns whether anything is wanted at all."""
        lists, wanted = self._routing.wanted_lists(), self._routing.wanted()
        lacking = [(series, unasked) for series in (*lists, *wanted) if (unasked := series.unasked())]
        if lacking:
            site = self._site()
            useful = [link for link in self._links.values() if any(self._can_give(link, *each) for each in lacking)]
            useful.sort(key=lambda link: (link.strikes, link.site != site, link.min_rtt_s or 1.0, link.inflight_bytes))
            for link in useful:
                self._ask(link, lists, wanted, now_s)
        return bool(wanted or lacking)

    def ask_one(self, link: Link, now_s: float) -> bool:
        """Ask one link, whose window has room again. Returns whether anything is wanted at all."""
        lists, wanted = self._routing.wanted_lists(), self._routing.wanted()
        self._ask(link, lists, wanted, now_s)
        return bool(wanted or lists)

    def offered(self, series: Series, plan: Plan, *, seeds: bool = True) -> tuple[ChunkSet, ChunkSet]:
        """What peers of this site, `seeds` included or not, and of other sites offer; the seed's site apart.

        Who cannot be counted on does not count.
        """
        near, far = ChunkSet(), ChunkSet()
        site = self._site()
        for link in self._links.values():
            offered = link.offers.of(series.attempt)
            if offered is None or link.is_doubtful or (link.node in plan.seeds and not seeds):
                continue
            if link.site == site or not plan.is_source(link):
                side = near if link.site == site else far
                side.data |= offered.data
                side.meta |= offered.meta
        return near, far

    def offered_by_home_seeds(self, series: Series, plan: Plan) -> int:
        """Data ordinals that a seed of this site offers."""
        return self._offered_by(series, lambda link: self._is_home_seed(link, plan))

    def _is_home_seed(self, link: Link, plan: Plan) -> bool:
        """Whether a peer is a seed at this site."""
        return link.node in plan.seeds and link.site == self._site()

    def _offered_by(self, series: Series, counts: Callable[[Link], bool]) -> int:
        """Data ordinals that those links offer that count."""
        offers = (link.offers.of(series.attempt) for link in self._links.values() if counts(link))
        return functools.reduce(operator.or_, (offered.data for offered in offers if offered), 0)

    # -- one link -------------------------------------------------------------------------------------------

    def _can_give(self, link: Link, series: Series, unasked: ChunkSet) -> bool:
        """Whether a peer has, or is about to get, some of what is neither here nor asked for, and has room for it."""
        offered = link.offers.said(series.attempt)
        if offered is not None and unasked.meets(offered) and link.has_room():
            return True
        return self._advance.can_ask(link, series)

    def _ask(self, link: Link, lists: list[Series], wanted: list[Series], now_s: float) -> None:
        if now_s < self._held_off_s or link.record is None:
            return
        for series in lists:
            self._ask_series(link, series, now_s, data=False)
        for series in wanted:
            self._ask_series(link, series, now_s, data=True)

    def _is_full(self) -> bool:
        """Whether as much is asked for, of all peers together, as there is memory for."""
        limit = self._inflight_limit
        return (
            limit is not None
            and sum(link.inflight_bytes + link.awaited_bytes for link in self._links.values()) >= limit
        )

    def _ask_series(self, link: Link, series: Series, now_s: float, *, data: bool) -> None:
        """Ask `link` for chunks of one series as long as its window has room."""
        site = self._site()
        if data and link.site != site and not link.is_doubtful and not self._is_full():
            self._advance.ask(link, series, now_s)
        offered = link.offers.of(series.attempt)
        if offered is None:
            return
        meta = series.missing_meta() & ~series.asked.meta & offered.meta
        bits = series.missing_data() & ~series.asked.data & offered.data if data else 0
        if not (meta or bits) or link.is_stuck or not link.has_room():
            return
        if link.conduct.is_benched:
            others = self._offered_by_others(series)
            meta &= ~others.meta
            bits &= ~others.data
        deferred = link.offers.deferred(series.attempt) or ChunkSet()
        if link.site != site and self._plans.awaits_roster(series, now_s):
            return
        plan, meta_plan = self._plans.of(series, None, now_s)
        meta &= ~deferred.meta & meta_plan.allowed(link, site)
        self.depart(link, series, meta, now_s, META_ORDINAL)
        bits &= ~deferred.data
        if link.site == site:
            bits &= plan.allowed(link, site)
            if bits and link.node in plan.seeds:
                bits &= ~self._given_besides_seed(link, series, plan, bits)
            self.depart(link, series, bits & ~self._left_to_mates(link, series, plan, bits, now_s), now_s)
            return
        if link.node in plan.seeds and self._serving.behind_s(now_s) > BEHIND_S:
            return  # what others are to get from here comes first
        if link.node not in plan.seeds and not bits & plan.allowed(link, site):
            return
        near, far = self.offered(series, plan, seeds=False)
        bits &= ~near.data
        if bits:
            bits &= ~self._left_to_home_seeds(link, series, plan, bits)
        here = bits & plan.allowed(link, site)
        if here and link.node in plan.seeds:
            here &= ~self._passed_on(series, plan)
        elif here:
            here &= ~self._sooner_elsewhere(link, series, plan, here, now_s)
        self.depart(link, series, here, now_s)
        if link.node in plan.seeds and bits and link.has_room() and self._serving.behind_s(now_s) <= STEAL_BEHIND_S:
            self._steal(link, series, plan, bits & ~far.data, now_s)

    def _left_to_mates(self, link: Link, series: Series, plan: Plan, bits: int, now_s: float) -> int:
        """Those of `bits`, offered by a mate with a slow uplink, that another asks it for first, and passes on.

        One in turn for each chunk, the next after a while: else it would send each as many times as there are mates.
        """
        if not bits or plan.dealing is None or not link.goodput or plan.seeds & {link.node, plan.dealing.me}:
            return 0
        if link.wait_s(_size_of_one(series, bits)) < SLOW_MATE_S:
            return 0
        mates = [other.node for other in self._links.values() if other.site == link.site and not other.is_doubtful]
        others = sorted({*mates, plan.dealing.me} - {link.node, *plan.seeds})
        first = others.index(plan.dealing.me)
        return bits_of(
            ordinal
            for ordinal in iterate(bits)
            if now_s - plan.near_s.setdefault(ordinal, now_s)
            < HOPE_S * min((ordinal - first) % len(others), MOST_TURNS)
        )

    def _given_besides_seed(self, seed: Link, series: Series, plan: Plan, bits: int) -> int:
        """Those of `bits`, offered by a seed of this site, that a mate has, or that come sooner from another site.

        The seed's uplink may be thin, and is shared with all other sites.
        """
        site, size = self._site(), _size_of_one(series, bits)
        wait_s = seed.wait_s(size)

        def gives(other: Link) -> bool:
            if other.is_doubtful or other.node in plan.seeds or plan.is_source(other):
                return False
            return other.site == site or (other.goodput > 0 and other.has_room() and other.wait_s(size) < wait_s)

        return self._offered_by(series, gives)

    def _left_to_home_seeds(self, link: Link, series: Series, plan: Plan, bits: int) -> int:
        """Those of `bits`, offered by another site, that a seed of this one offers, unless they come later."""
        size = _size_of_one(series, bits)
        wait_s = link.wait_s(size)
        return self._offered_by(
            series,
            lambda other: self._is_home_seed(other, plan) and not other.is_doubtful and other.wait_s(size) <= wait_s,
        )

    def _passed_on(self, series: Series, plan: Plan) -> int:
        """What peers of other sites offer that have brought something: a thief took it, and passes it on."""
        site = self._site()
        return self._offered_by(
            series,
            lambda link: bool(link.goodput) and link.site != site and not link.is_doubtful and not plan.is_source(link),
        )

    def _sooner_elsewhere(self, link: Link, series: Series, plan: Plan, bits: int, now_s: float) -> int:
        """Those of `bits` that would come sooner from another peer at another site, although it is busy now.

        A connection that has carried little takes many round trips for one chunk.
        """
        size = _size_of_one(series, bits)
        wait_s = link.wait_s(size)
        passed_on = plan.passed_on(link.node, bits, now_s) if not link.goodput else {}
        sooner = 0
        for other in self._links.values():
            if not other.goodput or other.is_doubtful or other.site == self._site() or plan.is_source(other):
                continue  # of who has brought nothing yet nothing is known
            offered = other.offers.of(series.attempt)
            theirs = offered.data if offered else 0
            if other.site == link.site:
                theirs |= plan.to_come(other.node) | passed_on.get(other.node, 0)  # its mate gives it to it in a moment
            if theirs & bits & ~sooner and other.wait_s(size) < wait_s:
                deferred = other.offers.deferred(series.attempt)
                sooner |= theirs & ~(deferred.data if deferred else 0)
        return sooner

    def _offered_by_others(self, series: Series) -> ChunkSet:
        """What is offered by anyone who can be counted on."""
        union = ChunkSet()
        for link in self._links.values():
            offered = None if link.is_doubtful else link.offers.of(series.attempt)
            if offered is not None:
                union.data |= offered.data
                union.meta |= offered.meta
        return union

    def _steal(self, link: Link, series: Series, plan: Plan, bits: int, now_s: float) -> None:
        """Ask a seed with room for chunks that only it has and that were dealt to other sites."""
        while link.has_room() and not self._is_full():
            ordinal, claimed = steal(plan, bits & ~series.asked.data, self._rng, now_s)
            if ordinal is None:
                return
            claim = Claim(series.attempt, 0, ((ordinal, ordinal),))
            if claimed:
                self.tell_site(claim)
            self._tell_owner(plan, ordinal, claim)
            self.depart(link, series, 1 << ordinal, now_s)

    def _tell_owner(self, plan: Plan, ordinal: int, claim: Claim) -> None:
        """Tell the border that a chunk was dealt to: it asks the thief for it in advance."""
        owner = plan.dealing.bringer(ordinal) if plan.dealing else None
        for link in self._links.values():
            if link.node == owner and link.site != self._site() and link.record is not None:
                self._emit(Send(link.number, claim))

    def tell_site(self, claim: Claim) -> None:
        """Tell all peers of this site."""
        site = self._site()
        for link in self._links.values():
            if link.site == site and link.record is not None:
                self._emit(Send(link.number, claim))

    def depart(self, link: Link, series: Series, bits: int, now_s: float, base: int = 0) -> None:
        """Ask a link for chunks of a series, numbered from `base`, as many as its window has room for."""
        # A random start within a site, so that its members fetch different chunks and exchange them; across sites
        # the order of encoding, so that thieves can begin at the far end.
        start = self._rng.randrange(bits.bit_length()) if bits and link.site == self._site() else 0
        while bits and link.has_room() and not self._is_full():
            later = bits >> start << start or bits
            low = later & -later
            bits ^= low
            ordinal = base + low.bit_length() - 1
            name, size = series.entry(ordinal)
            if name in link.by_name:
                continue
            series.asked.add(ordinal)
            number = link.depart(series.attempt, ordinal, name, size, now_s)
            self._emit(Send(link.number, Request(number, name, name in link.damaged)))


def _size_of_one(series: Series, bits: int) -> int:
    """Bytes of the first of some chunks; the others are about as large."""
    return series.entry((bits & -bits).bit_length() - 1)[1]
