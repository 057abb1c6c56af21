"""Watch: notices requests that will not be answered in good time, so that the chunks are asked for elsewhere.

Three things give a peer away: the deadline of a request passes; nothing at all comes over its link for a second and a
few round trips; or what comes is a trickle beside what others bring. The last two count only while somebody else has
the chunk, since a queue at the only one who has it is no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from .effects import Effect, Hangup
from .ids import short
from .link import Flight, Link

SILENCE_S: Final = 30.0
"""A peer that leaves a request unanswered this long after its deadline is no use."""

CRAWL_S: Final = 4.0
"""A chunk that takes longer than this may be worth asking for twice."""

CRAWL_SHARE: Final = 8
"""By so much others have to be faster: a host that is merely slow is left to do its part."""


class Watch:
    """Looks at all requests under way. `unask` gives a chunk free to be asked for again."""

    def __init__(
        self, links: Mapping[int, Link], emit: Callable[[Effect], None], unask: Callable[[Flight], None]
    ) -> None:
        self._links = links
        self._emit = emit
        self._unask = unask

    def look(self, now_s: float) -> None:
        """Give up on what stalls or crawls. Call every tenth of a second while something is missing."""
        for link in self._links.values():
            if not link.flights:
                continue
            link.measure_pace(now_s)
            for flight in link.flights.values():
                if flight.is_counted_on and (self._stalls(link, flight, now_s) or self._crawls(link, flight)):
                    self._give_up(link, flight, now_s)

    def check_deadlines(self, now_s: float) -> None:
        """Give up on what is late, and hang up on who says nothing at all. Call once a second."""
        for link in self._links.values():
            for flight in link.flights.values():
                if flight.whole:
                    continue  # it is here, and being verified or stored: that is not the peer's
                if flight.is_counted_on and flight.deadline_s <= now_s:
                    if not link.prolong(flight, now_s):
                        self._give_up(link, flight, now_s)
                elif flight.deadline_s + SILENCE_S <= now_s:
                    self._emit(Hangup(link.number, f"no answer for chunk {short(flight.name)}"))
                    break

    def _give_up(self, link: Link, flight: Flight, now_s: float) -> None:
        link.mark_late(flight, now_s)
        self._unask(flight)

    def _stalls(self, link: Link, flight: Flight, now_s: float) -> bool:
        return link.stalls(flight, now_s) and any(self._others(link, flight))

    def _crawls(self, link: Link, flight: Flight) -> bool:
        """Whether the chunk will take long at the pace of late, and somebody who has it was much faster."""
        if link.pace is None or flight.whole or flight.size < CRAWL_S * link.pace:
            return False
        fastest = max((other.goodput for other in self._others(link, flight)), default=0.0)
        return link.pace * CRAWL_SHARE < fastest

    def _others(self, link: Link, flight: Flight) -> Iterator[Link]:
        """Links to others that have the chunk, and that can be counted on."""
        for other in self._links.values():
            if other is not link and other.record is not None and not other.is_doubtful:
                offered = other.offers.of(flight.attempt)
                if offered is not None and flight.ordinal in offered:
                    yield other
