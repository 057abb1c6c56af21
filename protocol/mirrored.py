"""Mirrored: which chunks this node takes from a mirror: wanted ones that nobody it is linked to offers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from .chance import Chance
from .link import Link
from .messages import META_ORDINAL
from .ranges import iterate
from .routing import Routing
from .series import ChunkSet, Series

PATIENCE_S: Final = 3.0
"""A peer may be about to get a chunk: for so long nobody must have offered it, if there are peers at all."""

RETRY_S: Final = 15.0
"""A chunk that did not come is not asked for again for so long."""

MAX_SILENCES: Final = 3
"""Tries at one chunk that may come to nothing before another way is looked for. One that is wrong or gone has none."""

DOUBT_S: Final = 120.0
"""For so long a transition of which something did not come counts as if the mirror did not have it."""


@dataclass(frozen=True, slots=True)
class Order:
    """A chunk to be taken from the mirror."""

    stream: str
    attempt: bytes
    ordinal: int
    name: bytes
    size: int


class Mirrored:
    """Owns what is asked of a mirror. Each order of `orders` is closed once, by `close`."""

    def __init__(
        self, routing: Routing, series: Mapping[bytes, Series], links: Mapping[int, Link], rng: Chance
    ) -> None:
        self._routing = routing
        self._series = series
        self._links = links
        self._rng = rng
        self._held: dict[str, frozenset[bytes]] = {}  # stream -> attempts that the mirror's list names
        self._alone_since_s: dict[bytes, float] = {}  # attempt -> since when some of it is offered by nobody
        self._failed_until_s: dict[bytes, float] = {}  # chunk name -> when it may be asked for again
        self._silences: Counter[bytes] = Counter()  # chunk name -> tries in a row without an answer
        self._lacking: dict[bytes, float] = {}  # attempt -> until when it is doubted: the mirror lacks some of it
        self._silent: dict[bytes, float] = {}  # the same: the mirror does not answer

    def holds(self, stream: str, attempts: frozenset[bytes]) -> None:
        """Note of which transitions of a stream the mirror has every chunk."""
        self._held[stream] = attempts
        self._plan()

    def lacks(self, stream: str, now_s: float) -> bool:
        """Whether a stream lacks something that nobody offers, and has for a while: the mirror may have it."""
        return any(series.stream == stream for series, _, _ in self._unoffered(now_s))

    def orders(self, limit_bytes: int, now_s: float) -> list[Order]:
        """Chunks to ask for now, at most so many bytes of them, or one. A random one first: mates take others."""
        for kept in (self._failed_until_s, self._lacking, self._silent):
            for key in [key for key, until_s in kept.items() if until_s <= now_s]:
                del kept[key]
        self._plan()
        orders: list[Order] = []
        room = limit_bytes
        for series, lists, data in self._unoffered(now_s):
            if series.attempt not in self._held.get(series.stream, ()):
                continue
            for ordinal in (*(each + META_ORDINAL for each in iterate(lists)), *self._shuffled(data)):
                name, size = series.entry(ordinal)
                if name in self._failed_until_s or ordinal in series.asked:
                    continue
                if orders and size > room:
                    return orders
                room -= size
                series.asked.add(ordinal)
                orders.append(Order(series.stream, series.attempt, ordinal, name, size))
                if room <= 0:
                    return orders
        return orders

    def close(self, order: Order, now_s: float, *, arrived: bool, lacks: bool = False) -> None:
        """The chunk is in the store, or has not come: because of an error, or because the mirror `lacks` it.

        A mirror that does not give what its list promises must not keep a node from another, costlier way.
        """
        series = self._series.get(order.attempt)
        if series is not None:
            series.asked.remove(order.ordinal)
        if arrived:
            self._silences.clear()
            self._silent.clear()  # it answers again
        else:
            self._failed_until_s[order.name] = now_s + RETRY_S
            self._silences[order.name] += 1
            if lacks:
                self._lacking[order.attempt] = now_s + DOUBT_S
            elif self._silences[order.name] >= MAX_SILENCES:
                self._silent[order.attempt] = now_s + DOUBT_S
        self._plan()

    def _plan(self) -> None:
        """Have the routes go over what the mirror can be counted on for."""
        for stream, attempts in self._held.items():
            sure = attempts - self._lacking.keys() - self._silent.keys()
            if sure != self._routing.mirrored.get(stream):
                self._routing.mirrored[stream] = sure
                self._routing.plan(stream)

    def _unoffered(self, now_s: float) -> Iterator[tuple[Series, int, int]]:
        """Series that lack chunks which nobody offers, with those of their lists and of their data."""
        linked = any(link.record is not None for link in self._links.values())
        wanted = {series.attempt: (series, False) for series in self._routing.wanted_lists()}
        wanted |= {series.attempt: (series, True) for series in self._routing.wanted()}
        for attempt in [attempt for attempt in self._alone_since_s if attempt not in wanted]:
            del self._alone_since_s[attempt]
        for series, whole in wanted.values():
            offered = self._offered(series.attempt)
            lists = series.missing_meta() & ~series.asked.meta & ~offered.meta
            data = series.missing_data() & ~series.asked.data & ~offered.data if whole else 0
            if not lists and not data:
                if not series.asked:
                    self._alone_since_s.pop(series.attempt, None)
                continue
            since_s = self._alone_since_s.setdefault(series.attempt, now_s)
            if not linked or now_s - since_s >= PATIENCE_S:
                yield series, lists, data

    def _offered(self, attempt: bytes) -> ChunkSet:
        union = ChunkSet()
        for link in self._links.values():
            offered = link.offers.of(attempt)
            if offered is not None and not link.is_doubtful:
                union.data |= offered.data
                union.meta |= offered.meta
        return union

    def _shuffled(self, bits: int) -> Iterator[int]:
        if bits:
            start = self._rng.randrange(bits.bit_length())
            yield from iterate(bits >> start << start)
            yield from iterate(bits & ((1 << start) - 1))
