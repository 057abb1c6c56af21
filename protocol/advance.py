"""Advance: requests for chunks that the peer has yet to get: they wait there, and are answered as the chunks come.

A border asks the one of its column at another site for what that one takes from the seed. When some site says that
it has the chunk, the request counts as under way; when the chunk comes from elsewhere, it is taken back.
"""

from __future__ import annotations

from collections.abc import Callable

from .effects import Effect, Send
from .link import Flight, Link
from .messages import Cancel, Request
from .plans import Plans
from .ranges import iterate
from .series import Series
from .stock import Stock


class Advance:
    """The requests made in advance, one for each chunk at most."""

    def __init__(self, stock: Stock, plans: Plans, emit: Callable[[Effect], None]) -> None:
        self._stock = stock
        self._plans = plans
        self._emit = emit
        self._awaited: dict[bytes, Link] = {}  # chunk name -> the peer it was asked of

    def __contains__(self, name: bytes) -> bool:
        return name in self._awaited

    def can_ask(self, link: Link, series: Series) -> bool:
        """Whether a border of another site takes anything from the seed that it may be asked for in advance."""
        return bool(self._askable(link, series)) and link.has_room_to_await()

    def _askable(self, link: Link, series: Series) -> int:
        plans = self._plans.get(series.attempt)
        bits = plans[0].to_come(link.node) if plans is not None else 0
        if bits:
            bits &= series.missing_data() & ~series.asked.data & ~series.awaited
        if bits:
            offered = link.offers.of(series.attempt)
            bits &= ~(offered.data if offered else 0)
        return bits

    def ask(self, link: Link, series: Series, now_s: float) -> None:
        """Ask a border of another site for chunks that it takes from the seed, as far ahead as its window reaches."""
        bits = self._askable(link, series)
        while bits and link.has_room_to_await():
            low = bits & -bits
            bits ^= low
            ordinal = low.bit_length() - 1
            name, size = series.entry(ordinal)
            if name in self._awaited or name in link.by_name:
                continue
            self._awaited[name] = link
            series.awaited |= low
            number = link.expect(series.attempt, ordinal, name, size, now_s)
            self._emit(Send(link.number, Request(number, name)))

    def begin(self, series: Series, ordinals: int, heard: Link, now_s: float) -> None:
        """Count on what was asked for: a site that is not the seed's has it, so it is on its way.

        Unless that is another site than the one it was asked of, and brings it sooner: it is asked there instead.
        """
        for ordinal in iterate(ordinals & series.awaited & ~series.asked.data):
            name, size = series.entry(ordinal)
            series.awaited &= ~(1 << ordinal)
            link, number = self._take(name)
            if link is None or number is None:
                continue
            if link.site != heard.site and heard.wait_s(size) < link.wait_s(size):
                self._emit(Send(link.number, Cancel(number)))
            else:
                link.begin(number, now_s)
                series.asked.add(ordinal)

    def cancel(self, name: bytes) -> None:
        """Take back the request for a chunk that came from elsewhere."""
        link, number = self._take(name)
        if link is not None and number is not None:
            self._emit(Send(link.number, Cancel(number)))

    def closed(self, flight: Flight) -> None:
        """Note that a request was answered, or has gone with its link."""
        self._awaited.pop(flight.name, None)
        series = self._stock.series.get(flight.attempt)
        if series is not None:
            series.awaited &= ~(1 << flight.ordinal)

    def _take(self, name: bytes) -> tuple[Link | None, int | None]:
        """The peer and the number of a request that still waits; it is followed no more."""
        link = self._awaited.pop(name, None)
        number = None if link is None else link.by_name.get(name)
        return link, number if link is not None and number in link.awaited else None
