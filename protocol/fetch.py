"""Fetch: the requests that bring what is wanted.

What may be asked of whom is `picker`'s decision; here it becomes requests, each link within its window, and each
request is closed exactly once: by its chunk, by a reject, or with its link.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Final

from .advance import Advance
from .chance import Chance
from .effects import Dropped, Effect, Hangup, HeadMoved, Send, StreamKnown
from .gossip import Body, Gossip, Learned
from .ids import short
from .link import Flight, Link
from .manifest import Manifest, Opening, StreamRecord, Transition
from .messages import META_ORDINAL, RELEASED, Cancel, Claim, Have, Message, Page, Reason, Reject, Request
from .mirrored import Mirrored
from .picker import CLAIM_S, Plan
from .plans import Plans
from .ranges import bits_of, mask
from .routing import Routing
from .series import ChunkSet, Series
from .serving import Serving
from .stock import Stock

TURN_S: Final = 0.1
"""While something is missing: how often it is looked whether this node should step in for another."""

BEHIND_S: Final = 4.0
"""A border that is this long behind with passing on what it took from the seed takes no more: faster ones do."""

SILENCE_S: Final = 30.0
"""A peer that leaves a request unanswered this long after its deadline is no use."""


class Fetch:
    """Owns all requests of this node, and what answers those of its peers.

    `has` tells whether the chunk store holds a name.

    `inflight_limit` bounds the bytes asked for of all peers together; None: only each link's window does.
    """

    def __init__(
        self,
        gossip: Gossip,
        links: Mapping[int, Link],
        emit: Callable[[Effect], None],
        has: Callable[[bytes], bool],
        node: bytes,
        site: str,
        rng: Chance,
        inflight_limit: int | None = None,
    ) -> None:
        self.stock = Stock(gossip, links, emit, has)
        self.routing = Routing(gossip, links, self.stock.series, emit)
        self.mirrored = Mirrored(self.routing, self.stock.series, links, rng)
        self.duplicate_bytes = 0
        self._gossip = gossip
        self._links = links
        self._emit = emit
        self._has = has
        self._node = node
        self.site = site
        self._rng = rng
        self._inflight_limit = inflight_limit
        self.plans = Plans(gossip, links, node, lambda: self.site)
        self.serving = Serving(self.stock, links, emit, has, self._brings, node)
        self._advance = Advance(self.stock, self.plans, emit)
        self._held_off_s = 0.0
        self._turn_due_s: float | None = None

    # -- local facts ----------------------------------------------------------------------------------------

    def hold(self, stream: str, held: frozenset[bytes], *, lists_first: bool, now_s: float) -> None:
        """Say which manifests of `stream` this host has the bytes of; starts following it."""
        self.routing.hold(stream, held, lists_first=lists_first)
        self.request(now_s)

    def mark_bad(self, stream: str, attempt: bytes, now_s: float) -> None:
        """Leave a transition out of every route: a verified base contradicted it."""
        self.routing.mark_bad(stream, attempt)
        self.request(now_s)

    def learned(self, value: Learned, now_s: float) -> None:
        """Take what gossip has just learned."""
        match value:
            case Opening():
                self.stock.void(value.stream, (value.epoch, value.version), value.attempt)
                self.stock.describe(value, now_s)
                self.plans.forget(value.attempt)  # made without the roster, if there is one
            case Transition():
                self.stock.describe(value, now_s)
                self.routing.plan_soon(value.stream, now_s)
            case Manifest():
                self.stock.void(value.stream, (value.epoch, value.version), value.attempt)
                if self._gossip.head(value.stream) == value:
                    self._emit(HeadMoved(value.stream))
                self.routing.plan_soon(value.stream, now_s)
            case StreamRecord():
                self._emit(StreamKnown(value.stream))
            case _:
                return
        self.request(now_s)

    def give_up(self, attempt: bytes) -> None:
        """Drop an attempt made here that came to nothing."""
        self.stock.drop(attempt)

    def outdated(self, body: Body) -> None:
        """Take that gossip has let go of a body: so far behind the head nobody needs its chunks."""
        if isinstance(body, Transition):
            self.give_up(body.attempt)
            self.routing.plan(body.stream)

    def add_page(self, signed: bytes, origin: int, now_s: float) -> None:
        """Take an index page, made here (`origin` -1) or received."""
        if self.stock.add_page(signed, origin, now_s) is not None:
            self.request(now_s)

    def index_known(self, attempt: bytes, part: int, data: bytes, now_s: float) -> None:
        """Take the opened index blob of one part of a transition."""
        series = self.stock.add_index(attempt, part, data, now_s)
        if series is not None:
            self.routing.plan_soon(series.stream, now_s)
            self.request(now_s)

    def stored(self, name: bytes, now_s: float) -> None:
        """Note a verified chunk that is now in the store: offer it, and see what is complete."""
        if not self.stock.is_named(name):
            self._emit(Dropped(b"", (name,)))  # its attempt was dropped while it was under way
        self.serving.stored(name, now_s)
        self._advance.cancel(name)
        for series, _ in self.stock.stored(name, now_s):
            self.routing.check_ready(series.stream)

    def rescan(self, stream: str, now_s: float) -> None:
        """The store may have lost something: count again, and plan anew."""
        for series in self.stock.series.values():
            if series.stream == stream:
                self.stock.recount(series)
        self.routing.announce_again(stream)
        self.routing.plan(stream)
        self.request(now_s)

    def deleted(self, attempt: bytes) -> None:
        """Note that retention deleted the chunks of a series."""
        series = self.stock.series.get(attempt)
        if series is not None:
            self.stock.recount(series)
        self.plans.forget(attempt)

    # -- links ----------------------------------------------------------------------------------------------

    def lost(self, link: Link, now_s: float) -> None:
        """Ask elsewhere for everything that was asked of a link that is gone."""
        for number in [*link.flights, *link.awaited]:
            self._landed(link, number, now_s, arrived=False)
        self.serving.lost(link)
        self.request(now_s)

    def receive(self, link: Link, message: Message, now_s: float) -> None:
        """Handle one swarm message."""
        match message:
            case Page():
                self.add_page(message.data, link.number, now_s)
            case Have():
                self._heard(link, message, now_s)
            case Request():
                self.serving.asked(link, message, self.site, now_s)
            case Reject():
                self._rejected(link, message, now_s)
            case Claim():
                plans = self.plans.get(message.attempt)
                if plans is not None and link.site == self.site:
                    for first, last in message.ranges:
                        if last < META_ORDINAL:
                            bits = mask(first, last) & plans[0].dealt
                            until_s = 0.0 if message.rank == RELEASED else now_s + CLAIM_S
                            plans[0].claim(bits, until_s, link.node)
                    self.request(now_s)
            case Cancel():
                self.serving.cancelled(link, message.request)
            case _:
                raise AssertionError(message)

    def _heard(self, link: Link, have: Have, now_s: float) -> None:
        new = link.remember(have.attempt, have.ranges)
        plans = self.plans.get(have.attempt)
        if plans is not None:
            plans[0].heard(link.node, link.site, new.data, now_s)
            plans[1].heard(link.node, link.site, new.meta, now_s)
        series = self.stock.series.get(have.attempt)
        if series is None:
            return
        if link.site != self.site and not (plans is not None and plans[0].is_source(link)):
            self._advance.begin(series, new.data, now_s)
        if series.lacks_unasked(new):
            self._request_from(link, self.routing.wanted_lists(), self.routing.wanted(), now_s)

    def expected(self, link: Link, name: bytes) -> int | None:
        """Size of the chunk when it was asked of this link, else None: nobody may send what was not asked for."""
        number = link.by_name.get(name)
        flight = None if number is None else link.flight(number)
        return None if flight is None else flight.size

    def arrived(self, link: Link, name: bytes, now_s: float, *, intact: bool, secure: bool) -> None:
        """Close the request for a chunk that came; an `intact` one is in the store by now (call `stored` next).

        A chunk damaged on a lane is asked again over TLS and blames nobody: the path may have done it. Damaged
        there too, it counts against the peer, which is not asked for that chunk again.
        """
        number = link.by_name.get(name)
        if number is None:
            return
        flight = self._landed(link, number, now_s, arrived=intact)
        if flight is not None and link.site != self.site:
            plans = self.plans.get(flight.attempt)
            if plans is not None:
                plans[0].came(now_s - flight.sent_at_s, now_s)
        link.damaged.discard(name)
        if not intact:
            if secure:
                link.strike(now_s)
                if flight is not None:
                    link.doubt(flight.attempt, flight.ordinal, now_s)  # it has other bytes under that name
            else:
                link.damaged.add(name)
        elif flight is not None and not self.stock.is_missing(name):
            self.duplicate_bytes += flight.size

    def not_kept(self, link: Link, name: bytes, now_s: float) -> None:
        """Close the request for an intact chunk that the store could not keep: it is missing still."""
        number = link.by_name.get(name)
        if number is not None:
            self._landed(link, number, now_s, arrived=True)

    def hold_off(self, until_s: float) -> None:
        """Ask for nothing until then: the store cannot keep what comes."""
        self._held_off_s = until_s

    def _rejected(self, link: Link, reject: Reject, now_s: float) -> None:
        in_advance = reject.request in link.awaited
        flight = self._landed(link, reject.request, now_s, arrived=False)
        if flight is None:
            return
        if in_advance or self._is_at_seed(link, flight):
            self._brought_by(link, flight, reject.holders)
        if in_advance:
            pass
        elif reject.reason is Reason.MISSING:
            link.doubt(flight.attempt, flight.ordinal, now_s)
        else:
            link.trust(flight.attempt, flight.ordinal)  # it may have been late, and taken for a false offer
            link.defer(flight.attempt, flight.ordinal)
            self._give_up(flight)
            self.serving.refused(flight.name, reject.holders)
        self.request(now_s)

    def _is_at_seed(self, link: Link, flight: Flight) -> bool:
        plans = self.plans.get(flight.attempt)
        return plans is not None and flight.ordinal < META_ORDINAL and link.node in plans[0].seeds

    def _brought_by(self, link: Link, flight: Flight, holders: tuple[bytes, ...]) -> None:
        """Note who takes a chunk from the seed, when it is not the one that was asked to pass it on, or this node."""
        plans = self.plans.get(flight.attempt)
        if plans is not None:
            before = self._node if link.node in plans[0].seeds else link.node
            plans[0].brings_instead(before, flight.ordinal, holders[0] if holders else None)

    def _give_up(self, flight: Flight) -> None:
        """Hand back a chunk taken over from another border, which was refused: that one may get it where we cannot."""
        plans = self.plans.get(flight.attempt)
        if plans is not None and flight.ordinal < META_ORDINAL and plans[0].release(flight.ordinal):
            self._tell_site(Claim(flight.attempt, RELEASED, ((flight.ordinal, flight.ordinal),)))

    def _tell_site(self, claim: Claim) -> None:
        for link in self._links.values():
            if link.site == self.site and link.record is not None:
                self._emit(Send(link.number, claim))

    # -- time -----------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Once a second: late requests are asked elsewhere, routes planned anew."""
        for link in self._links.values():
            link.forgive(now_s)
            for flight in link.flights.values():
                if not flight.late and flight.deadline_s <= now_s:
                    link.mark_late(flight, now_s)
                    self._unask(flight)
                elif flight.deadline_s + SILENCE_S <= now_s:
                    self._emit(Hangup(link.number, f"no answer for chunk {short(flight.name)}"))
                    break
        self.serving.tick(now_s)
        self.plans.tidy(self._is_over)
        for stream in self.routing.following:
            self.routing.plan(stream)
        self.request(now_s)

    def _is_over(self, attempt: bytes) -> bool:
        series = self.stock.series.get(attempt)
        return series is None or series.complete()

    def due_s(self) -> float | None:
        """When `act` should be called next, or None."""
        dues = [due for due in (self.stock.due_s(), self.routing.due_s(), self._turn_due_s) if due is not None]
        return min(dues, default=None)

    def act(self, now_s: float) -> None:
        """Do what has come due: say HAVEs, and take over what others fail to bring."""
        if self.routing.plan_due():
            self.request(now_s)
        have_due = self.stock.due_s()
        if have_due is not None and have_due <= now_s:
            self.stock.say()
        if self._turn_due_s is not None and self._turn_due_s <= now_s:
            self._turn_due_s = None
            self._turn(now_s)

    def _turn(self, now_s: float) -> None:
        for link in self._links.values():
            link.deferred.clear()
        wanted = self.routing.wanted()
        alive = self.plans.alive()
        for series in wanted:
            self._step_in(series, alive, now_s)
        if any(series.missing_data() or series.missing_meta() for series in wanted):
            self._turn_due_s = now_s + TURN_S
        self.request(now_s)

    def _step_in(self, series: Series, alive: frozenset[bytes], now_s: float) -> None:
        data, meta = self.plans.of(series, alive, now_s)
        missing = series.missing_data() & ~series.asked.data
        # A seed in this site is asked for what is dealt here only: what a silent mate leaves undone is there to take.
        near, far = self._offered(series, data, seeds=False)
        home = self._offered_by_home_seeds(series, data)
        free = missing & ~near.data
        taken = list(data.step_in(free, far.data, now_s))
        taken += data.relieve(free, far.data | home, self._rng, now_s)
        if taken:
            self._tell_site(Claim(series.attempt, 0, ChunkSet(bits_of(taken)).ranges()))
        # Blobs are few: whoever steps in for them does so without a claim.
        for _ in meta.step_in(series.missing_meta() & ~series.asked.meta & ~near.meta, far.meta, now_s):
            pass

    def _offered_by_home_seeds(self, series: Series, plan: Plan) -> int:
        """Data ordinals that a seed of this site offers."""
        offers = (
            link.offers(series.attempt)
            for link in self._links.values()
            if link.node in plan.seeds and link.site == self.site
        )
        return functools.reduce(operator.or_, (offered.data for offered in offers if offered), 0)

    def _offered(self, series: Series, plan: Plan, *, seeds: bool = True) -> tuple[ChunkSet, ChunkSet]:
        """What peers of this site, `seeds` included or not, and of other sites offer; the seed's site apart."""
        near, far = ChunkSet(), ChunkSet()
        for link in self._links.values():
            offered = link.offers(series.attempt)
            if offered is None or link.is_stuck or (link.node in plan.seeds and not seeds):
                continue
            if link.site == self.site or not plan.is_source(link):
                side = near if link.site == self.site else far
                side.data |= offered.data
                side.meta |= offered.meta
        return near, far

    # -- requests -------------------------------------------------------------------------------------------

    def request(self, now_s: float) -> None:
        """Ask every link for what may be asked of it, the nearest first."""
        lists, wanted = self.routing.wanted_lists(), self.routing.wanted()
        if not lists and not wanted:
            return
        if any(series.lacks_unasked() for series in (*lists, *wanted)):
            for link in self._nearest():
                self._request_from(link, lists, wanted, now_s)
        elif wanted:
            self._turn_due_s = self._turn_due_s or now_s + TURN_S

    def request_more(self, link: Link, now_s: float) -> None:
        """Ask one link, whose window has room again."""
        self._request_from(link, self.routing.wanted_lists(), self.routing.wanted(), now_s)

    def _nearest(self) -> list[Link]:
        ready = (link for link in self._links.values() if link.record is not None)
        return sorted(
            ready, key=lambda link: (link.strikes, link.site != self.site, link.min_rtt_s or 1.0, link.inflight_bytes)
        )

    def _request_from(self, link: Link, lists: list[Series], wanted: list[Series], now_s: float) -> None:
        if now_s < self._held_off_s or link.record is None:
            return
        for series in lists:
            self._ask(link, series, now_s, data=False)
        for series in wanted:
            self._ask(link, series, now_s, data=True)
        if self._turn_due_s is None and wanted:
            self._turn_due_s = now_s + TURN_S

    def _is_full(self) -> bool:
        """Whether as much is asked for, of all peers together, as there is memory for."""
        limit = self._inflight_limit
        return (
            limit is not None
            and sum(link.inflight_bytes + link.awaited_bytes for link in self._links.values()) >= limit
        )

    def _ask(self, link: Link, series: Series, now_s: float, *, data: bool) -> None:
        """Ask `link` for chunks of one series as long as its window has room."""
        if data and link.site != self.site and not self._is_full():
            self._advance.ask(link, series, now_s)
        offered = link.offers(series.attempt)
        if offered is None or link.is_stuck or not link.has_room():
            return
        meta = series.missing_meta() & ~series.asked.meta & offered.meta
        bits = series.missing_data() & ~series.asked.data & offered.data if data else 0
        if not meta and not bits:
            return
        deferred = link.deferred.get(series.attempt) or ChunkSet()
        if link.site != self.site and self.plans.awaits_roster(series, now_s):
            return
        plan, meta_plan = self.plans.of(series, None, now_s)
        meta &= ~deferred.meta & meta_plan.allowed(link, self.site)
        self._depart(link, series, meta, META_ORDINAL, now_s)
        bits &= ~deferred.data
        if link.site == self.site:
            self._depart(link, series, bits & plan.allowed(link, self.site), 0, now_s)
            return
        if link.node in plan.seeds and self.serving.behind_s(now_s) > BEHIND_S:
            return  # what others are to get from here comes first
        if link.node not in plan.seeds and not bits & plan.allowed(link, self.site):
            return
        near, far = self._offered(series, plan)
        bits &= ~near.data
        self._depart(link, series, bits & plan.allowed(link, self.site), 0, now_s)
        if link.node in plan.seeds and bits and link.has_room():
            self._steal(link, series, plan, bits & ~far.data, now_s)

    def _steal(self, link: Link, series: Series, plan: Plan, bits: int, now_s: float) -> None:
        """Ask a seed with room for chunks that only it has and that were dealt to other sites."""
        while link.has_room() and not self._is_full():
            ordinal = plan.steal(bits & ~series.asked.data, self._rng, now_s)
            if ordinal is None:
                return
            self._depart(link, series, 1 << ordinal, 0, now_s)

    def _brings(self, name: bytes) -> bool:
        """Whether this node is to bring a chunk into its site that it lacks."""
        for series, ordinal in self.stock.lacking(name):
            plans = self.plans.get(series.attempt)
            if plans is None or ordinal >= META_ORDINAL or not plans[0].mine & 1 << ordinal:
                continue
            if ordinal in series.asked or name in self._advance or plans[0].owned & 1 << ordinal:
                return True
        return False

    def _depart(self, link: Link, series: Series, bits: int, base: int, now_s: float) -> None:
        # A random start within a site, so that its members fetch different chunks and exchange them; across sites
        # the order of encoding, so that thieves can begin at the far end.
        start = self._rng.randrange(bits.bit_length()) if bits and link.site == self.site else 0
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

    def _landed(self, link: Link, number: int, now_s: float, *, arrived: bool) -> Flight | None:
        in_advance = number in link.awaited
        flight = link.land(number, now_s, arrived=arrived)
        if flight is not None and in_advance:
            self._advance.closed(flight)
        elif flight is not None and not flight.late:
            self._unask(flight)
        return flight

    def _unask(self, flight: Flight) -> None:
        series = self.stock.series.get(flight.attempt)
        if series is not None:
            series.asked.remove(flight.ordinal)
