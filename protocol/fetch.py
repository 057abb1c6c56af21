"""Fetch: which versions this node works towards, over which route, and the requests that bring it there.

For each followed stream the node wants the newest manifest. The route to it is planned over the transitions that
are known; its oldest incomplete leg comes first, then what a head is still encoding. A route is handed to the
rebuild only when every chunk of it is stored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .chain import plan_route
from .effects import Dropped, Effect, Hangup, HeadMoved, IndexHere, RouteReady, Send, Serve, StreamKnown
from .errors import MessageError
from .gossip import Gossip, Learned
from .ids import short
from .link import Flight, Link
from .manifest import IndexPage, Manifest, Opening, Route, StreamRecord, Transition
from .messages import META_ORDINAL, Cancel, Claim, Have, Message, Page, Reason, Reject, Request
from .picker import pick
from .series import ChunkSet, Series
from .signed import peek, verify

HAVE_DELAY_S: Final = 0.02
SILENCE_S: Final = 30.0
"""A peer that leaves a request unanswered this long after its deadline is no use."""

_UNOBTAINABLE: Final = 2**50
"""Added to the cost of a transition that lacks chunks and that no connected peer offers."""


@dataclass(slots=True)
class Following:
    """One stream that this node keeps up with."""

    stream: str
    held: frozenset[bytes] = frozenset()  # manifest digests that a slot or base has
    bad: set[bytes] = field(default_factory=set)  # attempts that contradicted a verified base
    lists_first: bool = False  # a local base waits to be compared: fetch blobs only
    route: tuple[Transition, ...] | None = None
    announced: tuple[bytes, ...] | None = None  # attempts of the last RouteReady


class Fetch:
    """Owns all series and requests. `has` tells whether the chunk store holds a name."""

    def __init__(
        self,
        gossip: Gossip,
        links: Mapping[int, Link],
        emit: Callable[[Effect], None],
        has: Callable[[bytes], bool],
        site: str,
        rng: random.Random,
    ) -> None:
        self._gossip = gossip
        self._links = links
        self._emit = emit
        self._has = has
        self._site = site
        self._rng = rng
        self.series: dict[bytes, Series] = {}
        self.following: dict[str, Following] = {}
        self._places: dict[bytes, list[tuple[Series, int]]] = {}  # chunk name -> where it belongs
        self._asked: dict[bytes, int] = {}  # chunk name -> requests under way
        self._held_off_s = 0.0
        self._have_due_s: float | None = None

    # -- local facts ----------------------------------------------------------------------------------------

    def hold(self, stream: str, held: frozenset[bytes], *, lists_first: bool, now_s: float) -> None:
        """Say which manifests of `stream` this host has the bytes of; starts following it."""
        following = self.following.setdefault(stream, Following(stream))
        following.held = held
        following.lists_first = lists_first
        self.plan(stream, now_s)

    def mark_bad(self, stream: str, attempt: bytes, now_s: float) -> None:
        """Leave a transition out of every route: a verified base contradicted it."""
        self.following[stream].bad.add(attempt)
        self.plan(stream, now_s)

    def learned(self, value: Learned, now_s: float) -> None:
        """Take what gossip has just learned."""
        match value:
            case Opening():
                self._retire(value.stream, (value.epoch, value.version), value.attempt)
                self._describe(value, now_s)
            case Transition():
                self._describe(value, now_s)
                self.plan(value.stream, now_s)
            case Manifest():
                self._retire(value.stream, (value.epoch, value.version), value.attempt)
                if self._gossip.head(value.stream) == value:
                    self._emit(HeadMoved(value.stream))
                self.plan(value.stream, now_s)
            case StreamRecord():
                self._emit(StreamKnown(value.stream))
            case _:
                pass

    def add_page(self, signed: bytes, origin: int, now_s: float) -> None:
        """Take an index page, made here (`origin` -1) or received, and pass it on when it is new."""
        page = peek(signed, IndexPage)
        series = self.series.get(page.attempt)
        if series is None or page.first in series.pages or series.transition is not None:
            return
        record = self._gossip.streams.get(series.stream)
        if record is None or page.stream != series.stream:
            raise MessageError(f"page of attempt {short(page.attempt)} names another stream")
        verify(signed, IndexPage, record.publisher)
        if not series.add_page(page, signed):
            return
        for link in self._links.values():
            if link.number != origin and link.record is not None:
                self._emit(Send(link.number, Page(signed)))
        self._index(series, now_s)
        self.request(now_s)

    def index_known(self, attempt: bytes, part: int, data: bytes, now_s: float) -> None:
        """Take the opened index blob of one part of a transition."""
        series = self.series[attempt]
        series.add_index(part, data)
        self._index(series, now_s)
        self.plan(series.stream, now_s)

    def stored(self, name: bytes, now_s: float) -> None:
        """Note a verified chunk that is now in the store: offer it, and see what is complete."""
        for series, ordinal in self._places.get(name, ()):
            if ordinal in series.have:
                continue
            series.have.add(ordinal)
            for link in self._links.values():
                offered = link.offers(series.attempt)
                if link.record is not None and (offered is None or ordinal not in offered):
                    link.unsaid.setdefault(series.attempt, ChunkSet()).add(ordinal)
                    self._have_due_s = self._have_due_s or now_s + HAVE_DELAY_S
            self._lists_complete(series, ordinal)
            if ordinal < META_ORDINAL or not series.missing_meta():
                self._ready(series.stream)
        self.request(now_s)

    def rescan(self, stream: str, now_s: float) -> None:
        """Compare what is thought to be stored with the store, which may have lost something, and plan anew."""
        for series in self.series.values():
            if series.stream == stream:
                series.keep_only(self._has)
        self.following[stream].announced = None
        self.plan(stream, now_s)

    def deleted(self, attempt: bytes) -> None:
        """Note that retention deleted the chunks of a series."""
        series = self.series.get(attempt)
        if series is not None:
            series.keep_only(self._has)

    def forget(self, attempt: bytes) -> None:
        """Let go of a series whose chunks were deleted by retention."""
        series = self.series.pop(attempt, None)
        if series is not None:
            self._unplace(series)

    # -- links ----------------------------------------------------------------------------------------------

    def greet(self, link: Link) -> None:
        """Tell a new peer what is here, and the pages of what is being made."""
        for series in self.series.values():
            if series.have:
                link.unsaid[series.attempt] = ChunkSet(series.have.data, series.have.meta)
            if series.transition is None:
                for signed in series.signed_pages():
                    self._emit(Send(link.number, Page(signed)))
        self._say(link)

    def lost(self, link: Link, now_s: float) -> None:
        """Ask elsewhere for everything that was asked of a link that is gone."""
        for number in list(link.flights):
            self._landed(link, number, now_s, arrived=False)
        self.request(now_s)

    def receive(self, link: Link, message: Message, now_s: float) -> None:
        """Handle one swarm message."""
        match message:
            case Page():
                self.add_page(message.data, link.number, now_s)
            case Have():
                link.remember(message.attempt).add_ranges(message.ranges)
                self.request(now_s)
            case Request():
                if self._has(message.name):
                    self._emit(Serve(link.number, message.request, message.name, message.secure))
                else:
                    self._emit(Send(link.number, Reject(message.request, Reason.MISSING)))
            case Reject():
                flight = self._landed(link, message.request, now_s, arrived=False)
                if flight is not None and message.reason is Reason.MISSING:
                    link.remember(flight.attempt).remove(flight.ordinal)
                self.request(now_s)
            case Cancel() | Claim():
                pass  # a hint; serving the chunk all the same is a correct answer
            case _:
                raise AssertionError(message)

    def expected(self, link: Link, name: bytes) -> int | None:
        """Size of the chunk when it was asked of this link, else None: nobody may send what was not asked for."""
        number = link.by_name.get(name)
        return None if number is None else link.flights[number].size

    def arrived(self, link: Link, name: bytes, now_s: float, *, intact: bool, secure: bool) -> None:
        """Close the request for a chunk that came; an `intact` one is in the store by now (call `stored` next).

        A chunk damaged on a lane is asked again over TLS and blames nobody: the path may have done it. Damaged
        there too, it counts against the peer.
        """
        number = link.by_name.get(name)
        if number is None:
            return
        self._landed(link, number, now_s, arrived=intact)
        link.damaged.discard(name)
        if not intact:
            if secure:
                link.strikes += 1
            else:
                link.damaged.add(name)

    def not_kept(self, link: Link, name: bytes, now_s: float) -> None:
        """Close the request for an intact chunk that the store could not keep: it is missing still."""
        number = link.by_name.get(name)
        if number is not None:
            self._landed(link, number, now_s, arrived=True)

    def hold_off(self, until_s: float) -> None:
        """Ask for nothing until then: the store cannot keep what comes."""
        self._held_off_s = until_s

    # -- time -----------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Once a second: late requests are asked elsewhere, routes planned anew."""
        for link in self._links.values():
            for flight in link.flights.values():
                if not flight.late and flight.deadline_s <= now_s:
                    flight.late = True
                    link.strikes += 1
                    self._unask(flight.name)
                elif flight.deadline_s + SILENCE_S <= now_s:
                    self._emit(Hangup(link.number, f"no answer for chunk {short(flight.name)}"))
                    break
        for stream in self.following:
            self.plan(stream, now_s)

    def due_s(self) -> float | None:
        """When `say` should be called next, or None."""
        return self._have_due_s

    def say(self) -> None:
        """Send the HAVEs that have gathered."""
        self._have_due_s = None
        for link in self._links.values():
            self._say(link)

    def _say(self, link: Link) -> None:
        for attempt, new in link.unsaid.items():
            offered = link.offers(attempt)
            lacking = ChunkSet(new.data, new.meta)
            if offered is not None:
                lacking.data &= ~offered.data
                lacking.meta &= ~offered.meta
            if lacking:
                for ranges in _pieces(lacking.ranges()):
                    self._emit(Send(link.number, Have(attempt, ranges)))
        link.unsaid.clear()

    # -- series ---------------------------------------------------------------------------------------------

    def _describe(self, of: Opening | Transition, now_s: float) -> None:
        series = self.series.get(of.attempt)
        if series is None:
            series = Series(of.stream, of.attempt, (of.epoch, of.version), of.source)
            self.series[of.attempt] = series
        series.describe(of)
        self._index(series, now_s)
        if isinstance(of, Transition) and not series.missing_meta():
            self._lists_complete(series, META_ORDINAL)

    def _index(self, series: Series, now_s: float) -> None:
        """Enter newly named chunks in the table by name, and offer those that are stored already."""
        found = ChunkSet()
        for ordinal in series.take_unplaced():
            name, _ = series.entry(ordinal)
            self._places.setdefault(name, []).append((series, ordinal))
            if self._has(name):
                series.have.add(ordinal)
                found.add(ordinal)
        if found:
            for link in self._links.values():
                said = link.unsaid.setdefault(series.attempt, ChunkSet())
                said.data |= found.data
                said.meta |= found.meta
            self._have_due_s = self._have_due_s or now_s + HAVE_DELAY_S

    def _unplace(self, series: Series) -> None:
        for name, _ in [*series.meta, *series.chunks.values()]:
            places = [place for place in self._places.get(name, ()) if place[0] is not series]
            if places:
                self._places[name] = places
            else:
                self._places.pop(name, None)

    def _retire(self, stream: str, version: tuple[int, int], attempt: bytes) -> None:
        """Drop attempts at versions up to `version` that another attempt has made void."""
        for series in list(self.series.values()):
            if (
                series.stream == stream
                and series.transition is None
                and series.attempt != attempt
                and series.version <= version
            ):
                self.forget(series.attempt)
                names = tuple(name for name, _ in series.chunks.values() if name not in self._places)
                self._emit(Dropped(series.attempt, names))

    def _lists_complete(self, series: Series, ordinal: int) -> None:
        if ordinal >= META_ORDINAL and series.transition is not None and not series.missing_meta():
            self._emit(IndexHere(series.attempt))

    # -- routes ---------------------------------------------------------------------------------------------

    def plan(self, stream: str, now_s: float) -> None:
        """Plan the route of one stream anew, and request what it lacks."""
        following = self.following.get(stream)
        target = self._gossip.head_digest(stream)
        if following is None or target is None:
            return
        following.route = plan_route(
            following.held, target, self._gossip.routes(stream), self._cost, frozenset(following.bad)
        )
        self._ready(stream)
        self.request(now_s)

    def _cost(self, transition: Transition) -> int:
        series = self.series.get(transition.attempt)
        if series is None:
            return _UNOBTAINABLE
        if series.complete():
            return 0
        offered = any(link.offers(series.attempt) for link in self._links.values())
        return series.missing_bytes() + (0 if offered else _UNOBTAINABLE)

    def _ready(self, stream: str) -> None:
        following = self.following.get(stream)
        if following is None or following.route is None or following.lists_first:
            return
        attempts = tuple(leg.attempt for leg in following.route)
        if attempts != following.announced and all(self.series[attempt].complete() for attempt in attempts):
            following.announced = attempts
            self._emit(RouteReady(stream, following.route))

    def wanted(self) -> list[Series]:
        """Series to fetch, most urgent first: the legs of each route, then what a head is still making."""
        wanted: list[Series] = []
        for following in self.following.values():
            if following.lists_first:
                continue
            legs = [self.series[leg.attempt] for leg in following.route or () if leg.attempt in self.series]
            wanted += [series for series in legs if not series.complete()]
            targets = following.held.union(leg.target for leg in following.route or ())
            wanted += [
                series
                for series in self.series.values()
                if series.stream == following.stream and series.transition is None and series.source in targets
            ]
        return wanted

    def wanted_lists(self) -> list[Series]:
        """Series of which only the blobs are wanted: to compare a local base with."""
        return [
            series
            for following in self.following.values()
            if following.lists_first
            for series in self.series.values()
            if series.stream == following.stream
            and series.transition is not None
            and series.transition.kind in (Route.FULL, Route.BASE)
        ]

    # -- requests -------------------------------------------------------------------------------------------

    def request(self, now_s: float) -> None:
        """Send the requests that windows allow."""
        lists = self.wanted_lists()
        if now_s < self._held_off_s:
            return
        under_way = set(self._asked)
        for one in pick(self.wanted(), lists, self._links.values(), under_way, self._site, self._rng):
            name, size = one.series.entry(one.ordinal)
            self._asked[name] = self._asked.get(name, 0) + 1
            number = one.link.depart(one.series.attempt, one.ordinal, name, size, now_s)
            self._emit(Send(one.link.number, Request(number, name, name in one.link.damaged)))

    def _landed(self, link: Link, number: int, now_s: float, *, arrived: bool) -> Flight | None:
        flight = link.land(number, now_s, arrived=arrived)
        if flight is not None and not flight.late:
            self._unask(flight.name)
        return flight

    def _unask(self, name: bytes) -> None:
        count = self._asked.get(name, 0) - 1
        if count > 0:
            self._asked[name] = count
        else:
            self._asked.pop(name, None)


def _pieces(ranges: tuple[tuple[int, int], ...]) -> list[tuple[tuple[int, int], ...]]:
    """Ranges split so that each HAVE fits a frame."""
    return [ranges[at : at + 4096] for at in range(0, len(ranges), 4096)]
