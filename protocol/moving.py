"""Moving: what is queued at another site behind other chunks is asked where it comes sooner, or left to a mate.

A request whose chunk has not begun to leave costs nothing to take back.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from .effects import Effect, Send
from .link import Flight, Link
from .messages import META_ORDINAL, Cancel
from .picker import Plan
from .plans import Plans
from .ranges import bits_of
from .series import Series

LONG_S: Final = 0.8
"""A chunk that takes longer to come from where it is queued is offered to mates that have nothing to do."""

YIELD_S: Final = 0.5
"""What comes sooner than this is not left to a mate that claims it: that one may be turned away."""

MOVE_GAIN: Final = 2.0
"""How many times as long a chunk takes where it is queued as elsewhere before it is moved."""


class _Queued(NamedTuple):
    """A request at another site behind others; `left_s` until all of the chunk is here."""

    link: Link
    flight: Flight
    left_s: float


class Moving:
    """Looks at the queues of one node's links. `site()` is where it is, `depart` asks a link for some of a series."""

    def __init__(
        self,
        links: Mapping[int, Link],
        plans: Plans,
        emit: Callable[[Effect], None],
        site: Callable[[], str],
        depart: Callable[[Link, Series, int, float], None],
    ) -> None:
        self._links = links
        self._plans = plans
        self._emit = emit
        self._site = site
        self._depart = depart

    def move(self, series: Series, now_s: float) -> None:
        """Ask elsewhere for what would come much sooner from there: first for what has longest to wait."""
        plan, _ = self._plans.of(series, None, now_s)
        waiting = itertools.chain(self._queued(series), self._hoped_in_vain(series, now_s))
        queued = sorted(waiting, key=operator.attrgetter("left_s"), reverse=True)
        for each in queued:
            flight = each.flight
            if flight.late or plan.moved >> flight.ordinal & 1:
                continue
            other = self._soonest(series, plan, each)
            if other is not None and each.left_s > MOVE_GAIN * other.wait_s(flight.size):
                plan.moved |= 1 << flight.ordinal
                self._take_back(each, series)
                self._depart(other, series, 1 << flight.ordinal, now_s)

    def _queued(self, series: Series) -> Iterator[_Queued]:
        """Chunks of a series that wait at other sites behind another, which is coming."""
        site = self._site()
        for link in self._links.values():
            if link.site != site:
                for flight, left_s in itertools.islice(link.queue(), 1, None):
                    if flight.attempt == series.attempt and flight.ordinal < META_ORDINAL:
                        yield _Queued(link, flight, left_s)

    def _hoped_in_vain(self, series: Series, now_s: float) -> Iterator[_Queued]:
        """Chunks asked of another site in advance that its border should have been given by its mates, and was not."""
        for link in self._links.values():
            for flight in link.flights.values():
                if flight.attempt == series.attempt and link.hopes_in_vain(flight, now_s):
                    yield _Queued(link, flight, math.inf)

    def waiting_long(self, series: Series) -> int:
        """Ordinals that are queued at other sites, behind so much that it will take long until they begin to come."""
        return bits_of(each.flight.ordinal for each in self._queued(series) if each.left_s > LONG_S)

    def comes_soon(self, size: int) -> bool:
        """Whether a chunk would come much sooner than one that waits long, from a site that has brought something."""
        return any(
            link.goodput and link.site != self._site() and link.has_room() and MOVE_GAIN * link.wait_s(size) < LONG_S
            for link in self._links.values()
        )

    def yield_queued(self, series: Series, ordinals: int) -> bool:
        """Take back requests for chunks that another border of this site will bring in, as far as they are queued.

        Returns whether there were any.
        """
        if not ordinals & series.asked.data:
            return False  # as nearly always
        yielded = [
            each for each in self._queued(series) if ordinals >> each.flight.ordinal & 1 and each.left_s > YIELD_S
        ]
        for each in yielded:
            self._take_back(each, series)
        return bool(yielded)

    def _take_back(self, queued: _Queued, series: Series) -> None:
        self._emit(Send(queued.link.number, Cancel(queued.link.move(queued.flight))))
        series.asked.remove(queued.flight.ordinal)

    def _soonest(self, series: Series, plan: Plan, queued: _Queued) -> Link | None:
        """The peer with room that offers a chunk, has brought something, and would bring it first."""
        best: Link | None = None
        site, flight = self._site(), queued.flight
        for link in self._links.values():
            if link is queued.link or link.is_doubtful or not link.goodput or not link.has_room():
                continue
            if link.site != site and plan.is_source(link):
                continue
            offered = link.offers.of(series.attempt)
            if offered is None or flight.ordinal not in offered or flight.name in link.by_name:
                continue
            if best is None or link.wait_s(flight.size) < best.wait_s(flight.size):
                best = link
        return best
