"""Stepping in: taking over, by CLAIM, what other borders of the own site do not bring, and giving it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .asking import Asking
from .chance import Chance
from .effects import Effect
from .helping import help_out, relieve, sound_out
from .link import Flight, Link
from .messages import META_ORDINAL, RELEASED, SPARE, Claim
from .moving import Moving
from .picker import BLOB_PATIENCE_S, CLAIM_S, Plan
from .plans import Plans
from .ranges import bits_of
from .series import ChunkSet, Series
from .serving import Serving
from .stock import Stock


class Stepping:
    """Claims of one node, and those it hears. `site()` is where it is."""

    def __init__(
        self,
        stock: Stock,
        links: Mapping[int, Link],
        plans: Plans,
        serving: Serving,
        asking: Asking,
        moving: Moving,
        emit: Callable[[Effect], None],
        site: Callable[[], str],
        rng: Chance,
    ) -> None:
        self._stock = stock
        self._links = links
        self._plans = plans
        self._serving = serving
        self._asking = asking
        self._moving = moving
        self._emit = emit
        self._site = site
        self._rng = rng

    def step_in(self, series: Series, alive: frozenset[bytes], now_s: float) -> None:
        """See what this node should bring in instead of others, and say so to the site."""
        data, meta = self._plans.of(series, alive, now_s)
        missing = series.missing_data() & ~series.asked.data
        # A seed in this site is asked for what is dealt here only: what a silent mate leaves undone is there to take.
        near, far = self._asking.offered(series, data, seeds=False)
        home = self._asking.offered_by_home_seeds(series, data)
        free = missing & ~near.data
        benched = self._benched()
        taken = list(data.step_in(free, far.data, now_s, benched))
        taken += relieve(data, free, far.data, home, self._rng, now_s)
        if free and self._is_idle():
            taken += sound_out(data, free, now_s, benched)
        if taken:
            self._claim(series, bits_of(taken))
            self._blame(data.take_failed(), now_s)
        if spare := self._moving.waiting_long(series):
            self._claim(series, spare, SPARE)
        # Blobs are few: whoever steps in for them does so without a claim.
        blobs = series.missing_meta() & ~series.asked.meta & ~near.meta
        for _ in meta.step_in(blobs, far.meta, now_s, benched, wait_s=BLOB_PATIENCE_S + data.most_took_s):
            pass

    def _claim(self, series: Series, ordinals: int, rank: int = 0) -> None:
        self._asking.tell_site(Claim(series.attempt, rank, ChunkSet(ordinals).ranges()))

    def _is_idle(self) -> bool:
        """Whether nothing is under way from another site."""
        site = self._site()
        return not any(link.flights for link in self._links.values() if link.site != site)

    def _blame(self, failed: set[bytes], now_s: float) -> None:
        """Hold against others what this node has to do instead of them."""
        for link in self._links.values():
            if link.node in failed:
                link.conduct.broke_offer(now_s)

    def _benched(self) -> frozenset[bytes]:
        """Members of this site that are not to be counted on."""
        site = self._site()
        return frozenset(link.node for link in self._links.values() if link.conduct.is_benched and link.site == site)

    def heard(self, link: Link, claim: Claim, now_s: float) -> bool:
        """Take a claim of a peer. Returns whether there is anything to ask for now that was not before.

        One of who is benched is hot air.
        """
        plans, series = self._plans.get(claim.attempt), self._stock.series.get(claim.attempt)
        released = claim.rank == RELEASED
        if plans is None or series is None or (link.conduct.is_benched and not released):
            return False
        plan, chunks = plans[0], ChunkSet()
        chunks.add_ranges(claim.ranges)
        bits = chunks.data & plan.dealt
        if link.site != self._site():
            return claim.rank < SPARE and self._stolen(link, series, plan, bits)
        if claim.rank == SPARE:
            return self._help_out(series, plan, bits)
        taken = plan.taken
        plan.claim(bits, 0.0 if released else now_s + CLAIM_S, link.node)
        if yielded := taken & ~plan.taken:
            self._claim(series, yielded, RELEASED)  # who does not hear the other one counts on this node
        return self._moving.yield_queued(series, bits & ~plan.mine) or bool(released and bits & plan.mine)

    def _stolen(self, link: Link, series: Series, plan: Plan, bits: int) -> bool:
        """Note that a thief at another site takes what was this node's to take, and tell those who wait for it here."""
        stolen = list(plan.stolen(bits & series.missing_data() & ~series.asked.data, link.node))
        for ordinal in stolen:
            self._serving.refused(series.entry(ordinal)[0], (link.node,))
        return bool(stolen)

    def _help_out(self, series: Series, plan: Plan, spare: int) -> bool:
        """Bring in what waits long for its turn at another border of this site, if this one has nothing to do."""
        near, far = self._asking.offered(series, plan, seeds=False)
        free = series.missing_data() & ~series.asked.data & ~near.data
        spare &= free & far.data
        if not spare or not self._moving.comes_soon(series.entry((spare & -spare).bit_length() - 1)[1]):
            return False
        taken = help_out(plan, free, spare, self._rng)
        if taken is not None:
            self._claim(series, 1 << taken)
        return taken is not None

    def give_back(self, flight: Flight) -> None:
        """Hand back a chunk taken over from another border, which was refused: that one may get it where we cannot."""
        plans = self._plans.get(flight.attempt)
        if plans is not None and flight.ordinal < META_ORDINAL and plans[0].release(flight.ordinal):
            self._asking.tell_site(Claim(flight.attempt, RELEASED, ((flight.ordinal, flight.ordinal),)))

    def take_detour(self, flight: Flight, holders: tuple[bytes, ...]) -> bool:
        """Have a chunk that the seed has just sent to `holders` come from the seed's site, if those are all benched."""
        plans = self._plans.get(flight.attempt)
        benched = {link.node for link in self._links.values() if link.conduct.is_benched}
        if plans is None or not holders or not benched.issuperset(holders):
            return False
        plans[0].detour |= 1 << flight.ordinal
        return True
