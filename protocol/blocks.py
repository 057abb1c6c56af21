"""Blocks: 4 MiB parts of a version's files from the slots of peers, for repairs and for joiners.

Whoever says in its record that it holds the version is asked first, the same site before others, a few blocks at a
time each. A reject, a wrong block or silence counts against a peer for this version only. What every peer was asked
for in vain is given up; the caller has to verify what comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .effects import Effect, Send, ServeBlock
from .gossip import Gossip
from .link import Link
from .messages import BlockReject, BlockRequest, Message, Reason

BLOCKS_PER_LINK: Final = 4
"""Blocks asked of one peer at a time."""

SERVED_PER_LINK: Final = 16
"""Blocks that one peer may have asked here at a time; more are rejected."""

SILENCE_S: Final = 60.0
"""A peer that brings a block no sooner is not asked for this version any more."""


@dataclass(slots=True)
class _Flight:
    manifest: bytes
    block: int
    deadline_s: float


@dataclass(slots=True)
class _Wanted:
    """What is still to come of one version. `refused` are nodes that are not asked any more."""

    blocks: set[int]
    asked: set[int] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)


class Blocks:
    """The block requests of one node, its own and those of its peers."""

    def __init__(self, gossip: Gossip, links: Mapping[int, Link], emit: Callable[[Effect], None], site: str) -> None:
        self._gossip = gossip
        self._links = links
        self._emit = emit
        self._site = site
        self._wanted: dict[bytes, _Wanted] = {}
        self._flights: dict[tuple[int, int], _Flight] = {}  # by link and request
        self._serving: dict[int, int] = {}  # blocks being sent, by link
        self._next = 0

    # -- asking ---------------------------------------------------------------------------------------------

    def want(self, manifest: bytes, blocks: Iterable[int], now_s: float) -> None:
        """Ask for blocks of a version."""
        wanted = self._wanted.setdefault(manifest, _Wanted(set()))
        wanted.blocks.update(blocks)
        self.request(now_s)

    def unwant(self, manifest: bytes) -> None:
        """Ask for nothing more of a version, and forget who refused; what is under way is dropped when it comes."""
        self._wanted.pop(manifest, None)

    def holders(self, manifest: bytes) -> list[Link]:
        """Connected peers that said that they hold a version, nearest first."""
        said = [link for link in self._links.values() if self._says(link, manifest)]
        return sorted(said, key=lambda link: (link.site != self._site, link.min_rtt_s or 1.0, link.number))

    def given_up(self, manifest: bytes) -> set[int]:
        """Blocks that no connected peer is left to be asked for."""
        wanted = self._wanted.get(manifest)
        if wanted is None:
            return set()
        if any(self._may_ask(link, wanted) for link in self._links.values()):
            return set()
        return wanted.blocks - wanted.asked

    def request(self, now_s: float) -> None:
        """Ask for what may be asked for."""
        load: dict[int, int] = {}
        for number, _ in self._flights:
            load[number] = load.get(number, 0) + 1
        for manifest, wanted in self._wanted.items():
            for block in sorted(wanted.blocks - wanted.asked):
                ready = [
                    link
                    for link in self._links.values()
                    if load.get(link.number, 0) < BLOCKS_PER_LINK and self._may_ask(link, wanted)
                ]
                if not ready:
                    continue
                link = min(ready, key=lambda each: self._rank(each, manifest, load))
                self._depart(link, manifest, block, wanted, now_s)
                load[link.number] = load.get(link.number, 0) + 1

    def _rank(self, link: Link, manifest: bytes, load: Mapping[int, int]) -> tuple[bool, bool, int, float, int]:
        elsewhere = link.site != self._site
        return (
            not self._says(link, manifest),
            elsewhere,
            load.get(link.number, 0),
            link.min_rtt_s or 1.0,
            link.number,
        )

    def _says(self, link: Link, manifest: bytes) -> bool:
        record = self._gossip.nodes.get(link.node)
        return link.record is not None and record is not None and any(h.manifest == manifest for h in record.heads)

    @staticmethod
    def _may_ask(link: Link, wanted: _Wanted) -> bool:
        return link.record is not None and link.node not in wanted.refused

    def _depart(self, link: Link, manifest: bytes, block: int, wanted: _Wanted, now_s: float) -> None:
        number, self._next = self._next, (self._next + 1) % 2**31
        self._flights[link.number, number] = _Flight(manifest, block, now_s + SILENCE_S)
        wanted.asked.add(block)
        self._emit(Send(link.number, BlockRequest(number, manifest, block)))

    # -- what happens ---------------------------------------------------------------------------------------

    def receive(self, link: Link, message: Message, now_s: float) -> None:
        """Handle a message about blocks."""
        match message:
            case BlockRequest(number, manifest, block):
                if self._serving.get(link.number, 0) >= SERVED_PER_LINK:
                    self._emit(Send(link.number, BlockReject(number, Reason.BUSY)))
                    return
                self._serving[link.number] = self._serving.get(link.number, 0) + 1
                self._emit(ServeBlock(link.number, number, manifest, block))
            case BlockReject(number, _):
                self._refused(link, number, now_s)
            case _:
                raise AssertionError(message)

    def served(self, number: int) -> None:
        """Note that the block of a `ServeBlock` has left for a link, or will not."""
        if number in self._serving:
            self._serving[number] -= 1

    def flight(self, number: int, request: int) -> tuple[bytes, int] | None:
        """(manifest, block) that was asked of a link under `request`, None when nothing was."""
        flight = self._flights.get((number, request))
        return None if flight is None else (flight.manifest, flight.block)

    def arrived(self, number: int, request: int, now_s: float, *, good: bool) -> None:
        """Close a request whose block came. A wrong one is asked of others."""
        if not good:
            link = self._links.get(number)
            if link is not None:
                link.strike(now_s)
                self._refused(link, request, now_s)
            return
        flight = self._flights.pop((number, request), None)
        wanted = None if flight is None else self._wanted.get(flight.manifest)
        if flight is not None and wanted is not None:
            wanted.asked.discard(flight.block)
            wanted.blocks.discard(flight.block)
        self.request(now_s)

    def lost(self, link: Link, now_s: float) -> None:
        """Ask elsewhere for what was asked of a link that is gone."""
        self._serving.pop(link.number, None)
        for key in [key for key in self._flights if key[0] == link.number]:
            flight = self._flights.pop(key)
            if flight.manifest in self._wanted:
                self._wanted[flight.manifest].asked.discard(flight.block)
        self.request(now_s)

    def tick(self, now_s: float) -> None:
        """Once a second: who was silent for too long is not asked again."""
        for (number, request), flight in list(self._flights.items()):
            link = self._links.get(number)
            if link is not None and flight.deadline_s <= now_s:
                self._refused(link, request, now_s)
        self.request(now_s)

    def _refused(self, link: Link, request: int, now_s: float) -> None:
        flight = self._flights.pop((link.number, request), None)
        wanted = None if flight is None else self._wanted.get(flight.manifest)
        if flight is not None and wanted is not None:
            wanted.asked.discard(flight.block)
            wanted.refused.add(link.node)
        self.request(now_s)
