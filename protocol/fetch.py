"""Fetch: what happened, told to those who decide: what is wanted, asked for, served, taken over, given up.

Each request is closed exactly once: by its chunk, by a reject, or with its link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from .advance import Advance
from .asking import Asking
from .chance import Chance
from .effects import Dropped, Effect, HeadMoved, StreamKnown
from .gossip import Body, Gossip, Learned
from .link import Flight, Link
from .manifest import Manifest, Opening, StreamRecord, Transition
from .messages import META_ORDINAL, Cancel, Claim, Have, Message, Page, Reason, Reject, Request
from .mirrored import Mirrored
from .moving import Moving
from .picker import REFUSED_S
from .plans import Plans
from .routing import Routing
from .serving import Serving
from .stepping import Stepping
from .stock import Stock
from .watch import Watch

AGAIN_S: Final = 0.02
"""After a mate had no time for a chunk it is asked for again, if nobody has said meanwhile that it is there, too."""

TURN_S: Final = 0.1
"""While something is missing: how often it is looked whether this node should step in for another."""


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
        self.routing = Routing(gossip, links, self.stock.series, emit, self._here)
        self.mirrored = Mirrored(self.routing, self.stock.series, links, rng)
        self.duplicate_bytes = 0
        self._gossip = gossip
        self._links = links
        self._emit = emit
        self._has = has
        self._node = node
        self.site = site
        self.plans = Plans(gossip, links, node, self._here)
        self.serving = Serving(self.stock, links, emit, has, self._brings, node)
        self._advance = Advance(self.stock, self.plans, emit)
        self._asking = Asking(
            links, self.routing, self.plans, self.serving, self._advance, emit, self._here, rng, inflight_limit
        )
        self._moving = Moving(links, self.plans, emit, self._here, self._asking.depart)
        self._stepping = Stepping(
            self.stock, links, self.plans, self.serving, self._asking, self._moving, emit, self._here, rng
        )
        self._watch = Watch(links, emit, self._unask)
        self._turn_due_s = math.inf
        self._again_due_s = math.inf  # when chunks are asked for that a mate had no time for

    def _here(self) -> str:
        return self.site

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
        self.stock.lost(link)
        self.request(now_s)

    def receive(self, link: Link, message: Message, now_s: float) -> None:
        """Handle one swarm message."""
        match message:
            case Have():
                self._heard(link, message, now_s)
            case Request():
                self.serving.asked(link, message, self.site, now_s)
            case Reject():
                self._rejected(link, message, now_s)
            case Page():
                self.add_page(message.data, link.number, now_s)
            case Claim():
                if self._stepping.heard(link, message, now_s):
                    self.request(now_s)
            case Cancel():
                self.serving.cancelled(link, message.request)
            case _:
                raise AssertionError(message)

    def _heard(self, link: Link, have: Have, now_s: float) -> None:
        new = link.offers.remember(have.attempt, have.ranges)
        plans = self.plans.get(have.attempt)
        if plans is not None:
            for plan, ordinals in zip(plans, (new.data, new.meta), strict=True):
                if ordinals:
                    plan.heard(link.node, link.site, ordinals, now_s)
        series = self.stock.series.get(have.attempt)
        if series is None:
            return
        if link.site != self.site and not (plans is not None and plans[0].is_source(link)):
            self._advance.begin(series, new.data, link, now_s)
        if series.lacks(new):
            self.request_more(link, now_s)

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
        if flight is not None and link.site != self.site and flight.ordinal < META_ORDINAL:
            plans = self.plans.get(flight.attempt)
            if plans is not None:
                plans[0].came(now_s - flight.sent_at_s, now_s)
        asked_over_tls = name in link.damaged
        link.damaged.discard(name)
        if not intact:
            if secure or asked_over_tls:  # who sends it over a lane all the same is to blame for what came
                link.strike(now_s)
                if flight is not None:
                    link.offers.doubt(flight.attempt, flight.ordinal, now_s)  # it has other bytes under that name
            else:
                link.damaged.add(name)
        else:
            link.conduct.kept_word()
            if flight is not None and not self.stock.is_missing(name):
                self.duplicate_bytes += flight.size

    def not_kept(self, link: Link, name: bytes, now_s: float) -> None:
        """Close the request for an intact chunk that the store could not keep: it is missing still."""
        number = link.by_name.get(name)
        if number is not None:
            self._landed(link, number, now_s, arrived=True)

    def hold_off(self, until_s: float) -> None:
        """Ask for nothing until then: the store cannot keep what comes."""
        self._asking.hold_off(until_s)

    def _rejected(self, link: Link, reject: Reject, now_s: float) -> None:
        in_advance = reject.request in link.awaited
        flight = self._landed(link, reject.request, now_s, arrived=False)
        if flight is None or flight.moved:
            return
        plans = self.plans.get(flight.attempt)
        at_seed = plans is not None and flight.ordinal < META_ORDINAL and link.node in plans[0].seeds
        if at_seed and reject.reason is Reason.BUSY and self._stepping.take_detour(flight, reject.holders):
            link.offers.defer(flight.attempt, flight.ordinal)
            self.request(now_s)
            return
        if in_advance or at_seed:
            self._brought_by(link, flight, reject.holders)
        if plans is not None and at_seed:
            plans[0].refused[flight.ordinal] = now_s + REFUSED_S
        if in_advance:
            pass
        elif reject.reason is Reason.MISSING:
            link.went_back_on(flight.attempt, flight.ordinal, now_s)
        else:
            link.offers.trust(flight.attempt, flight.ordinal)  # it may have been late, and taken for a false offer
            link.offers.defer(flight.attempt, flight.ordinal)
            if not at_seed:  # which has to turn away whoever is not first
                link.refused(now_s)
            self._stepping.give_back(flight)
            self.serving.refused(flight.name, reject.holders)
            if link.site == self.site:
                self._again_due_s = min(self._again_due_s, now_s + AGAIN_S)
                return
        self.request(now_s)

    def _brought_by(self, link: Link, flight: Flight, holders: tuple[bytes, ...]) -> None:
        """Note who takes a chunk from the seed, when it is not the one that was asked to pass it on, or this node."""
        plans = self.plans.get(flight.attempt)
        if plans is not None:
            before = self._node if link.node in plans[0].seeds else link.node
            plans[0].brings_instead(before, flight.ordinal, holders[0] if holders else None)

    # -- time -----------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Once a second: late requests are asked elsewhere, routes planned anew."""
        for link in self._links.values():
            link.offers.forgive(now_s)
        self._watch.check_deadlines(now_s)
        self.serving.tick(now_s)
        self.plans.tidy(self._is_over)
        for stream in self.routing.following:
            self.routing.plan(stream)
        self.request(now_s)

    def _is_over(self, attempt: bytes) -> bool:
        series = self.stock.series.get(attempt)
        return series is None or series.complete()

    def due_s(self) -> float:
        """When `act` should be called next; infinity when nothing is to be done."""
        return min(self.stock.due_s(), self.routing.due_s(), self._turn_due_s, self._again_due_s)

    def act(self, now_s: float) -> None:
        """Do what has come due: say HAVEs, and take over what others fail to bring."""
        if self.routing.plan_due():
            self.request(now_s)
        if self.stock.due_s() <= now_s:
            self.stock.say()
        if self._again_due_s <= now_s:
            self.request(now_s)
        if self._turn_due_s <= now_s:
            self._turn_due_s = math.inf
            self._turn(now_s)

    def _turn(self, now_s: float) -> None:
        for link in self._links.values():
            link.offers.undefer()
        self._watch.look(now_s)
        wanted = self.routing.wanted()
        alive = self.plans.alive()
        for series in wanted:
            self._stepping.step_in(series, alive, now_s)
            self._moving.move(series, now_s)
        if any(each.missing_data() or each.missing_meta() for each in wanted) or any(
            each.missing_meta() for each in self.routing.wanted_lists()
        ):
            self._turn_due_s = now_s + TURN_S
        self.request(now_s)

    # -- requests -------------------------------------------------------------------------------------------

    def request(self, now_s: float) -> None:
        """Ask every link for what may be asked of it, the nearest first."""
        self._again_due_s = math.inf
        if self._asking.ask_all(now_s):
            self._turn_due_s = min(self._turn_due_s, now_s + TURN_S)

    def request_more(self, link: Link, now_s: float) -> None:
        """Ask one link, whose window has room again."""
        if self._asking.ask_one(link, now_s):
            self._turn_due_s = min(self._turn_due_s, now_s + TURN_S)

    def _brings(self, name: bytes, now_s: float) -> bool:
        """Whether a chunk is to come here soon: this node brings it into its site, or a mate has claimed it."""
        for series, ordinal in self.stock.lacking(name):
            plans = self.plans.get(series.attempt)
            if plans is None or ordinal >= META_ORDINAL:
                continue
            if plans[0].is_to_come(ordinal, now_s):
                return True
            if not plans[0].mine & 1 << ordinal:
                continue
            if ordinal in series.asked or name in self._advance or plans[0].owned & 1 << ordinal:
                return True
        return False

    def _landed(self, link: Link, number: int, now_s: float, *, arrived: bool) -> Flight | None:
        in_advance = number in link.awaited
        flight = link.land(number, now_s, arrived=arrived)
        if flight is not None and in_advance:
            self._advance.closed(flight)
        elif flight is not None and flight.is_counted_on:
            self._unask(flight)
        return flight

    def _unask(self, flight: Flight) -> None:
        series = self.stock.series.get(flight.attempt)
        if series is not None:
            series.asked.remove(flight.ordinal)
