"""Stock: which chunks exist, which of them are here, and telling the peers that lack them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Final

from .early import EarlyPages
from .effects import Dropped, Effect, IndexHere, Send
from .errors import MessageError, ProtocolError
from .gossip import Gossip
from .ids import short
from .link import Link
from .manifest import IndexPage, Opening, Transition
from .messages import META_ORDINAL, Have, Page
from .series import ChunkSet, Series
from .signed import peek, verify

HAVE_DELAY_S: Final = 0.02
_RANGES_PER_HAVE: Final = 4096


class Stock:
    """All series known to this node. `has` tells whether the chunk store holds a name."""

    def __init__(
        self, gossip: Gossip, links: Mapping[int, Link], emit: Callable[[Effect], None], has: Callable[[bytes], bool]
    ) -> None:
        self._gossip = gossip
        self._links = links
        self._emit = emit
        self._has = has
        self.series: dict[bytes, Series] = {}
        self._places: dict[bytes, list[tuple[Series, int]]] = {}  # chunk name -> where it belongs
        self._unsaid: dict[bytes, ChunkSet] = {}  # HAVEs waiting to be said together, by attempt
        self._have_due_s = math.inf
        self._early = EarlyPages()
        self._told_all: set[int] = set()  # links to benched peers that have been told all that is here

    def describe(self, of: Opening | Transition, now_s: float) -> None:
        """Take an opening or a transition record."""
        series = self.series.get(of.attempt)
        if series is None:
            series = Series(of.stream, of.attempt, (of.epoch, of.version), of.source)
            self.series[of.attempt] = series
        series.describe(of)
        self._enter(series, now_s)
        for signed, origin in self._early.take(series.attempt):
            with contextlib.suppress(ProtocolError):  # of who has sent the opening nothing else is wrong
                self.add_page(signed, origin, now_s)
        if isinstance(of, Transition):
            self._check_lists(series)
            self._tell_makers_of_whole(series)

    def add_page(self, signed: bytes, origin: int, now_s: float) -> Series | None:
        """Take an index page, made here (`origin` -1) or received, and pass it on. Returns its series if it is new."""
        page = peek(signed, IndexPage)
        series = self.series.get(page.attempt)
        if series is None:
            self._early.keep(page.attempt, signed, origin)
            return None
        if page.first in series.pages or series.transition is not None:
            return None
        publisher = self._gossip.publisher(series.stream, series.version[0])
        if publisher is None or page.stream != series.stream:
            raise MessageError(f"page of attempt {short(page.attempt)} names another stream")
        verify(signed, IndexPage, publisher)
        if not series.add_page(page, signed):
            return None
        for link in self._links.values():
            if link.number != origin and link.record is not None:
                self._emit(Send(link.number, Page(signed)))
        self._enter(series, now_s)
        return series

    def lost(self, link: Link) -> None:
        """Let go of what a link that is gone has said too early."""
        self._early.lost(link.number)

    def add_index(self, attempt: bytes, part: int, data: bytes, now_s: float) -> Series | None:
        """Take the opened index blob of one part of a transition."""
        series = self.series.get(attempt)
        if series is not None:
            series.add_index(part, data)
            self._enter(series, now_s)
        return series

    def stored(self, name: bytes, now_s: float) -> list[tuple[Series, int]]:
        """Note a verified chunk in the store, and offer it. Returns where it was missing: (series, ordinal)."""
        new = [place for place in self._places.get(name, ()) if place[1] not in place[0].have]
        for series, ordinal in new:
            series.have.add(ordinal)
            self._offer(series, ordinal, now_s)
            if ordinal >= META_ORDINAL:
                self._check_lists(series)
            self._tell_makers_of_whole(series)
        return new

    def attempts_of(self, name: bytes) -> list[bytes]:
        """Attempts that the chunk belongs to: more than one when lists are alike."""
        return [series.attempt for series, _ in self._places.get(name, ())]

    def streams_of(self, name: bytes) -> set[str]:
        """Streams that the chunk belongs to."""
        return {series.stream for series, _ in self._places.get(name, ())}

    def whole_with(self, stream: str, names: frozenset[bytes]) -> list[bytes]:
        """Attempts of a stream that are whole here, some of these chunks being theirs."""
        return [
            series.attempt
            for series in self.series.values()
            if series.stream == stream
            and series.complete()
            and any(name in names for name, _ in (*series.meta, *series.chunks.values()))
        ]

    def is_named(self, name: bytes) -> bool:
        """Whether any series has the chunk: one that came for an attempt dropped meanwhile is of no use."""
        return name in self._places

    def is_missing(self, name: bytes) -> bool:
        """Whether any series still lacks the chunk."""
        return any(ordinal not in series.have for series, ordinal in self._places.get(name, ()))

    def lacking(self, name: bytes) -> list[tuple[Series, int]]:
        """Where a chunk is missing: (series, ordinal)."""
        return [(series, ordinal) for series, ordinal in self._places.get(name, ()) if ordinal not in series.have]

    def size(self, name: bytes) -> int:
        """Sealed size of a chunk, 0 of one that no series has."""
        return next((series.entry(ordinal)[1] for series, ordinal in self._places.get(name, ())), 0)

    def missing_size(self, name: bytes) -> int | None:
        """Sealed size of a chunk that some series lacks, None for any other."""
        sizes = (
            series.entry(ordinal)[1] for series, ordinal in self._places.get(name, ()) if ordinal not in series.have
        )
        return next(sizes, None)

    def is_seeding(self, name: bytes, node: bytes) -> bool:
        """Whether `node` made the chunk and a roster says who passes it on."""
        return any(
            series.opening is not None
            and series.opening.roster
            and any(part.node == node for part in series.opening.parts)
            for series, _ in self._places.get(name, ())
        )

    def recount(self, series: Series) -> None:
        """Compare what is thought to be stored with the store, which may have lost or deleted something."""
        series.keep_only(self._has)

    def forget(self, attempt: bytes) -> Series | None:
        """Let go of a series, and return it."""
        series = self.series.pop(attempt, None)
        if series is None:
            return None
        self._unsaid.pop(attempt, None)
        for name, _ in [*series.meta, *series.chunks.values()]:
            places = [place for place in self._places.get(name, ()) if place[0] is not series]
            if places:
                self._places[name] = places
            else:
                self._places.pop(name, None)
        return series

    def void(self, stream: str, version: tuple[int, int], attempt: bytes) -> None:
        """Drop attempts at versions up to `version`, other than `attempt`, that came to nothing.

        An earlier version whose manifest is announced came to something: its transition record is on the way.
        """
        for series in list(self.series.values()):
            unfinished = series.stream == stream and series.transition is None
            older = series.attempt != attempt and series.version <= version
            if unfinished and older and not self._gossip.finished(stream, series.version, series.attempt):
                self.drop(series.attempt)

    def drop(self, attempt: bytes) -> None:
        """Let go of a series and have its chunks deleted, save those that another series has too."""
        series = self.forget(attempt)
        if series is not None:
            named = dict.fromkeys(name for name, _ in [*series.meta, *series.chunks.values()])
            self._emit(Dropped(attempt, tuple(name for name in named if name not in self._places)))

    # -- telling peers --------------------------------------------------------------------------------------

    def greet(self, link: Link) -> None:
        """Tell a new peer what is here, and the pages of what is being made."""
        for series in self.series.values():
            if series.transition is None:
                for signed in series.signed_pages():
                    self._emit(Send(link.number, Page(signed)))
        self._say(link, self._all(), {})

    def due_s(self) -> float:
        """When `say` should be called; never is infinity."""
        return self._have_due_s

    def say(self) -> None:
        """Send the HAVEs that have gathered, to those who lack the chunks."""
        self._have_due_s = math.inf
        unsaid, self._unsaid = self._unsaid, {}
        known: dict[tuple[bytes, int, int], list[Have]] = {}
        benched = {link.number for link in self._links.values() if link.conduct.is_benched}
        newly, self._told_all = benched - self._told_all, benched  # these may not have what they said they had
        for link in self._links.values():
            if link.record is not None:
                self._say(link, self._all() if link.number in newly else unsaid, known)

    def _tell_makers_of_whole(self, series: Series) -> None:
        """Tell those who made a series, when all of it is here, that they get back from here what they lose.

        HAVEs leave out who has the chunks.
        """
        if not series.complete():
            return
        of = series.transition or series.opening
        makers = {part.node for part in of.parts} if of is not None else set()
        for link in self._links.values():
            if link.node in makers and link.record is not None:
                for message in _haves(series.attempt, series.have):
                    self._emit(Send(link.number, message))

    def _all(self) -> dict[bytes, ChunkSet]:
        return {series.attempt: series.have for series in self.series.values()}

    def _offer(self, series: Series, ordinal: int, now_s: float) -> None:
        self._unsaid.setdefault(series.attempt, ChunkSet()).add(ordinal)
        self._have_due_s = min(self._have_due_s, now_s + HAVE_DELAY_S)

    def _say(
        self, link: Link, unsaid: Mapping[bytes, ChunkSet], known: dict[tuple[bytes, int, int], list[Have]]
    ) -> None:
        """Send one peer what of `unsaid` it has not itself. `known` are messages made before: most peers lack alike.

        Of a benched one nothing is believed: who says that it has what it has not would fetch that across sites.
        """
        for attempt, new in unsaid.items():
            offered = None if link.conduct.is_benched else link.offers.of(attempt)
            data = new.data & ~offered.data if offered else new.data
            meta = new.meta & ~offered.meta if offered else new.meta
            if data or meta:
                messages = known.get((attempt, data, meta))
                if messages is None:
                    messages = known[attempt, data, meta] = _haves(attempt, ChunkSet(data, meta))
                for message in messages:
                    self._emit(Send(link.number, message))

    def _enter(self, series: Series, now_s: float) -> None:
        """Enter newly named chunks in the table by name, and offer those that are stored already."""
        for ordinal in series.take_unplaced():
            name, _ = series.entry(ordinal)
            self._places.setdefault(name, []).append((series, ordinal))
            if self._has(name):
                series.have.add(ordinal)
                self._offer(series, ordinal, now_s)

    def _check_lists(self, series: Series) -> None:
        if series.transition is not None and not series.missing_meta():
            self._emit(IndexHere(series.attempt))


def _haves(attempt: bytes, chunks: ChunkSet) -> list[Have]:
    """What says that these chunks are here, in messages that each fit a frame."""
    ranges = chunks.ranges()
    return [Have(attempt, ranges[at : at + _RANGES_PER_HAVE]) for at in range(0, len(ranges), _RANGES_PER_HAVE)]
