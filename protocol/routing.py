"""Routing: which version each followed stream works towards, over which transitions, in which order.

The node wants the newest manifest. The route to it is planned over the transitions that are known; its oldest
incomplete leg comes first, then what a head is still encoding. A route is handed to the rebuild only when every
chunk of it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .chain import plan_route
from .effects import Effect, RouteReady
from .gossip import Gossip
from .link import Link
from .manifest import Route, Transition
from .series import Series

_UNOBTAINABLE: Final = 2**50
"""Added to the cost of a transition that lacks chunks of which no connected peer offers any."""

_NEAR: Final = 4
"""So many bytes that a peer of this site offers count as one that has to cross from another."""

_FIRST_STEP_SHARE: Final = 1 / 64
"""Guess of a step's size over that of its version, before any step of the stream is known."""


@dataclass(slots=True)
class Following:
    """One stream that this node keeps up with."""

    stream: str
    held: frozenset[bytes] = frozenset()  # manifest digests that a slot or base has
    bad: set[bytes] = field(default_factory=set)  # attempts that contradicted a verified base
    restore: set[bytes] = field(default_factory=set)  # attempts that were whole here until the store lost a chunk
    lists_of: frozenset[bytes] = frozenset()  # manifests whose lists are wanted though no route goes there
    lists_first: bool = False  # a local base waits to be compared: fetch blobs only
    route: tuple[Transition, ...] | None = None
    announced: tuple[bytes, ...] | None = None  # attempts of the last RouteReady
    asked_room: tuple[bytes, ...] | None = None  # attempts that room was asked for since the last plan
    has_room: bool = True  # the answer


class Routing:
    """Plans for every followed stream. `series` is the stock's table, `site()` where this node is."""

    def __init__(
        self,
        gossip: Gossip,
        links: Mapping[int, Link],
        series: Mapping[bytes, Series],
        emit: Callable[[Effect], None],
        site: Callable[[], str],
    ) -> None:
        self._gossip = gossip
        self._links = links
        self._series = series
        self._emit = emit
        self._site = site
        self.room: Callable[[str, int, int], bool] = lambda _stream, _size, _version: True
        """Asked before the first request, and at each plan: whether the host can keep so many bytes that are still to
        come of a stream, and then build a version of so many; (stream, 0, 0) when nothing is to come any more."""
        self.mirrored: dict[str, frozenset[bytes]] = {}
        """By stream, attempts that can be had of a mirror, every chunk of them."""
        self.following: dict[str, Following] = {}
        self._stale: dict[str, float] = {}  # stream -> since when its plan is out of date

    def hold(self, stream: str, held: frozenset[bytes], *, lists_first: bool) -> None:
        """Say which manifests of `stream` this host has the bytes of; starts following it."""
        following = self.following.setdefault(stream, Following(stream))
        following.held = held
        following.lists_first = lists_first
        self.plan(stream)

    def mark_bad(self, stream: str, attempt: bytes) -> None:
        """Leave a transition out of every route: a verified base contradicted it."""
        self.following[stream].bad.add(attempt)
        self.plan(stream)

    def restore(self, stream: str, attempts: Iterable[bytes]) -> None:
        """Fetch what is missing of these attempts, though no route may go over them: others count on them."""
        self.following[stream].restore.update(attempts)

    def announce_again(self, stream: str) -> None:
        """Hand the route over once more when it is complete again."""
        self.following[stream].announced = None

    def plan_soon(self, stream: str, now_s: float) -> None:
        """Plan at the next `plan_due`: once for all that a newcomer learns in one breath."""
        self._stale.setdefault(stream, now_s)

    def due_s(self) -> float:
        """Since when something waits to be planned; infinity when nothing does."""
        return min(self._stale.values()) if self._stale else math.inf

    def plan_due(self) -> bool:
        """Plan what waits for it. Returns whether anything did."""
        stale, self._stale = self._stale, {}
        for stream in stale:
            self.plan(stream)
        return bool(stale)

    def plan(self, stream: str) -> None:
        """Plan the route of one stream anew."""
        following = self.following.get(stream)
        target = self._gossip.head_digest(stream)
        if following is None or target is None:
            return
        routes = self._gossip.routes(stream)
        following.route = plan_route(following.held, target, routes, self._cost, frozenset(following.bad))
        if following.route is None or _attempts(following.route) != following.announced:
            following.announced = None  # it was handed over for nothing, and is again when it is the plan again
        if following.asked_room:
            following.asked_room = None  # less is to come by now, or more
        self.check_ready(stream)

    def check_ready(self, stream: str) -> None:
        """Hand the route over when it is complete and was not handed over yet."""
        following = self.following.get(stream)
        if following is None or following.route is None or following.lists_first:
            return
        attempts = _attempts(following.route)
        legs = [self._series.get(attempt) for attempt in attempts]
        if attempts != following.announced and all(leg is not None and leg.complete() for leg in legs):
            following.announced = attempts
            self._emit(RouteReady(stream, following.route))

    def _cost(self, transition: Transition) -> int:
        """Bytes still to fetch, those that can be had within this site at a part of it."""
        missing = self._bytes_left(transition)
        if not missing or missing >= _UNOBTAINABLE:
            return missing
        series, site = self._series[transition.attempt], self._site()
        lacking = (series.expected() or 0) & ~series.have.data
        near = 0
        for link in self._links.values():
            offered = link.offers.said(series.attempt)
            if offered is not None and link.site == site and not (link.conduct.is_benched or link.gives_nothing):
                near |= offered.data & lacking
        share = near.bit_count() / max(lacking.bit_count(), 1)
        return missing - int(missing * share * (_NEAR - 1) / _NEAR)

    def _bytes_left(self, transition: Transition) -> int:
        series = self._series.get(transition.attempt)
        if series is None:
            return _UNOBTAINABLE
        if series.complete():
            return 0
        obtainable = transition.attempt in self.mirrored.get(transition.stream, ()) or self._is_offered(series)
        return series.missing_bytes() + (0 if obtainable else _UNOBTAINABLE)

    def _is_offered(self, series: Series) -> bool:
        """Whether some connected peer has anything of what is still missing.

        Blobs count where only blobs are missing: versions of one layout share them, so whoever has deleted all of a
        step's chunks goes on to offer those. An offer that is doubted for a while is one still.
        """
        missing = (series.expected() or 0) & ~series.have.data
        blobs = 0 if missing else series.missing_meta()
        return any(
            offered.data & missing or offered.meta & blobs
            for offered in (link.offers.said(series.attempt) for link in self._links.values() if not link.gives_nothing)
            if offered is not None
        )

    def _is_whole(self, attempt: bytes) -> bool:
        series = self._series.get(attempt)
        return series is None or series.complete()

    def wanted(self) -> list[Series]:
        """Series to fetch, most urgent first: the legs of each route, then what a head is still making."""
        wanted: list[Series] = []
        for following in self.following.values():
            if following.lists_first:
                continue
            found = self._wanted_of(following)
            if self._finds_room(following, found):
                wanted += found
        return wanted

    def _wanted_of(self, following: Following) -> list[Series]:
        route = following.route or ()
        legs = [self._series[leg.attempt] for leg in route if leg.attempt in self._series]
        wanted = [series for series in legs if not series.complete()]
        if following.restore:
            following.restore = {each for each in following.restore if not self._is_whole(each)}
            wanted += [self._series[attempt] for attempt in sorted(following.restore - {leg.attempt for leg in route})]
        making = [
            series
            for series in self._series.values()
            if series.transition is None and series.stream == following.stream
        ]
        if making:
            targets = following.held.union(leg.target for leg in route)
            wanted += [series for series in making if not series.source or series.source in targets]
        return wanted

    def _finds_room(self, following: Following, wanted: list[Series]) -> bool:
        """Whether the host has room for what is wanted of one stream; asked once for the same series."""
        attempts = tuple([series.attempt for series in wanted])
        if attempts != following.asked_room and (attempts or following.asked_room is not None):
            following.asked_room = attempts
            size = sum(self._bytes_to_come(series) for series in wanted)
            following.has_room = self.room(following.stream, size, max(map(self._version_bytes, wanted), default=0))
        return following.has_room

    def _bytes_to_come(self, series: Series) -> int:
        """Bytes still to fetch. One in the making is taken to be as large as the stream's newest step."""
        missing = series.missing_bytes()
        if series.opening is None or series.transition is not None:
            return missing
        steps = [each for each in self._gossip.routes(series.stream) if each.kind is Route.STEP]
        newest = max(steps, key=lambda each: (each.epoch, each.version), default=None)
        if not series.source:
            expected = series.opening.size
        elif newest is None:
            expected = int(series.opening.size * _FIRST_STEP_SHARE)
        else:
            expected = sum(part.size for part in newest.parts)
        return missing + max(expected - sum(size for _, size in series.chunks.values()), 0)

    def _version_bytes(self, series: Series) -> int:
        """Size of the version that a series leads to, 0 while that is not known."""
        if series.opening is not None:
            return series.opening.size
        manifest = self._gossip.manifests.get(series.transition.target) if series.transition is not None else None
        return manifest.size if manifest is not None else 0

    def wanted_lists(self) -> list[Series]:
        """Series of which only the blobs are wanted: to compare a local base with, or to fetch a version in blocks."""
        return [
            series
            for following in self.following.values()
            if following.lists_first or following.lists_of
            for series in self._series.values()
            if series.stream == following.stream
            and series.transition is not None
            and (
                series.transition.target in following.lists_of
                or (following.lists_first and series.transition.kind in (Route.FULL, Route.BASE))
            )
        ]

    def way_in_bytes(self, stream: str) -> int | None:
        """Bytes still to fetch of the route, None when there is none whose every leg somebody offers."""
        following = self.following.get(stream)
        if following is None or following.route is None:
            return None
        cost = sum(self._bytes_left(leg) for leg in following.route)
        return None if cost >= _UNOBTAINABLE else cost

    def want_lists(self, stream: str, manifests: frozenset[bytes]) -> None:
        """Fetch the lists of the transitions to these versions, whatever the route is."""
        if stream in self.following:
            self.following[stream].lists_of = manifests


def _attempts(route: tuple[Transition, ...]) -> tuple[bytes, ...]:
    """What tells one route from another."""
    return tuple(leg.attempt for leg in route)
