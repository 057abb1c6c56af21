"""Serving: the answers to the requests of others: each gets its chunk or a reject, once.

A chunk that is on its way here is not refused: the request waits for it, so that it leaves for the next site the
moment it is verified, without a word between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from .effects import Effect, Send, Serve, Withdraw
from .link import Link
from .messages import Reason, Reject, Request
from .stock import Stock

MAX_COPIES: Final = 3
"""Peers that one chunk is sent to at a time; others are told who they are, and ask those, or ask again."""

CROSSING_S: Final = 1.5
"""For so long a seed sends a chunk across to nobody else: who has it passes it on."""

SLOW_STARTS: Final = 1.5
"""And for so many times as long as slow start takes for a chunk of its size."""

LEAVING_S: Final = 6.0
"""But for so long at most, and as long while that copy has not left yet."""

FASTER: Final = 2.0
"""Unless the one who asks takes chunks from it so many times as often: it has it long before the other one does."""

AGAIN_SHARE: Final = 0.05
"""At most this part of what crosses is sent twice for that."""

PAUSE_S: Final = 5.0
"""Who asks for nothing for so long had nothing to ask for: that says nothing of its pace."""

PACE_MEMORY_S: Final = 600.0
"""How long the pace of a node is remembered that asks for nothing."""

MAX_WAITING: Final = 256
"""Requests of one peer that may wait for their chunks."""

CHAIN_S: Final = 0.3
"""A node that is this long behind with passing chunks on sends each to one peer only, from which others get it."""

WAITING_S: Final = 10.0
"""How long a request waits for its chunk."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    link: int
    request: Request
    since_s: float


@dataclass(slots=True)
class _Passing:
    since_s: float
    left: int
    """Copies that have to leave until it counts as passed on."""


class _Crossing(NamedTuple):
    """A copy on its way to another site: to whom, since when, and from when on it should be there."""

    node: bytes
    since_s: float
    until_s: float


@dataclass(slots=True)
class _Pace:
    """How often a node at another site takes a chunk from this seed."""

    last_s: float
    gap_s: float | None = None

    def took(self, now_s: float) -> None:
        gap_s, self.last_s = now_s - self.last_s, now_s
        if gap_s < PAUSE_S:
            self.gap_s = gap_s if self.gap_s is None else self.gap_s + (gap_s - self.gap_s) / 4

    def is_faster(self, other: _Pace) -> bool:
        return self.gap_s is not None and other.gap_s is not None and FASTER * self.gap_s < other.gap_s


class Serving:
    """Answers requests. `has` tells whether the chunk store holds a name, `brings` whether it is to come here soon."""

    def __init__(
        self,
        stock: Stock,
        links: Mapping[int, Link],
        emit: Callable[[Effect], None],
        has: Callable[[bytes], bool],
        brings: Callable[[bytes, float], bool],
        node: bytes,
    ) -> None:
        self._stock = stock
        self._links = links
        self._emit = emit
        self._has = has
        self._brings = brings
        self._node = node
        self._copies: dict[bytes, list[bytes]] = {}  # chunk name -> nodes it is being sent to
        self._sent: dict[bytes, _Crossing] = {}  # chunk name -> how this seed sent it to another site
        self._paces: dict[bytes, _Pace] = {}  # by node
        self._crossed_count = 0  # chunks that were sent across of late
        self._again_count = 0  # and those of them that were still on their way to somebody else
        self._waiting: dict[bytes, list[_Waiting]] = {}  # chunk name -> requests for it, made before it came
        self._passing: dict[bytes, _Passing] = {}  # chunks that others waited for and that are being sent, oldest first
        self._stopping = False

    @property
    def idle(self) -> bool:
        """Whether nothing is being sent, and nobody waits for a chunk."""
        return not self._copies and not self._waiting and not self._passing

    def asked(self, link: Link, request: Request, site: str, now_s: float) -> None:
        """Answer a request of a peer; this node is at `site`."""
        name = request.name
        copies = self._copies.get(name, [])
        if self._stopping:
            self._emit(Send(link.number, Reject(request.request, Reason.STOPPING)))
        elif not self._has(name):
            if self._waits(link, name):
                self._emit(Send(link.number, Reject(request.request, Reason.BUSY)))  # one answer is on its way already
            elif self._brings(name, now_s) and self._waiting_for(link) < MAX_WAITING:
                self._waiting.setdefault(name, []).append(_Waiting(link.number, request, now_s))
            else:
                self._emit(Send(link.number, Reject(request.request, Reason.MISSING)))
        elif (other := self._crossed(link, name, site, now_s)) is not None:
            self._emit(Send(link.number, Reject(request.request, Reason.BUSY, (other,))))
        elif len(copies) >= MAX_COPIES or link.node in copies:
            self._emit(Send(link.number, Reject(request.request, Reason.BUSY, tuple(copies))))
        else:
            self._send(link, request)

    def cancelled(self, link: Link, number: int) -> None:
        """Let a request go that still waits for its chunk, or whose chunk has not begun to leave."""
        for name, waiting in self._waiting.items():
            for each in waiting:
                if each.link == link.number and each.request.request == number:
                    waiting.remove(each)
                    if not waiting:
                        del self._waiting[name]
                    self._waits_no_more(name)
                    self._emit(Send(link.number, Reject(number, Reason.BUSY)))
                    return
        self._emit(Withdraw(link.number, number))

    def stored(self, name: bytes, now_s: float) -> None:
        """A chunk is here: those who wait for it get it, as many at a time as may."""
        waiting = self._waiting.get(name)
        if waiting is None:
            return
        if self.behind_s(now_s) > CHAIN_S:
            first = max(waiting, key=lambda each: self._links[each.link].goodput)
            waiting.remove(first)
            self.refused(name, (self._links[first.link].node,))
            waiting = [first]
        self._passing[name] = _Passing(now_s, (len(waiting) + 1) // 2)
        self._send_waiting(name, waiting)

    def behind_s(self, now_s: float) -> float:
        """How long ago the oldest chunk came here that most of those who waited for it still wait for."""
        oldest = next(iter(self._passing.values()), None)
        return 0.0 if oldest is None else now_s - oldest.since_s

    def _send_waiting(self, name: bytes, waiting: list[_Waiting]) -> None:
        while waiting and len(self._copies.get(name, ())) < MAX_COPIES:
            first = waiting.pop(0)
            self._send(self._links[first.link], first.request)
        if waiting:
            self._waiting[name] = waiting
        else:
            self._waiting.pop(name, None)

    def refused(self, name: bytes, holders: tuple[bytes, ...] = ()) -> None:
        """A chunk will not come here from the seed: those who wait for it are told to ask `holders`."""
        for each in self._waiting.pop(name, ()):
            self._emit(Send(each.link, Reject(each.request.request, Reason.BUSY, holders)))
        self._waits_no_more(name)

    def stop(self) -> None:
        """Turn away who waits, and whoever asks from now on: this node leaves, and they ask elsewhere."""
        self._stopping = True
        for each in [each for waiting in self._waiting.values() for each in waiting]:
            self._emit(Send(each.link, Reject(each.request.request, Reason.STOPPING)))
        self._waiting.clear()

    def served(self, node: bytes, name: bytes) -> None:
        """Note that a chunk of a `Serve` has left for a node, or will not."""
        copies = self._copies.get(name, [])
        if node in copies:
            copies.remove(node)
        if not copies:
            self._copies.pop(name, None)
        passing = self._passing.get(name)
        if passing is not None:
            passing.left -= 1
            self._waits_no_more(name)
        if name in self._waiting and self._has(name):
            self._send_waiting(name, self._waiting[name])

    def lost(self, link: Link) -> None:
        """Forget what a link that is gone had asked for."""
        for name in list(self._waiting):
            left = [each for each in self._waiting[name] if each.link != link.number]
            if left:
                self._waiting[name] = left
            else:
                del self._waiting[name]
        for name in list(self._copies):
            while link.node in self._copies.get(name, ()):
                self.served(link.node, name)
        for name in list(self._passing):
            self._waits_no_more(name)

    def tick(self, now_s: float) -> None:
        """Once a second: whoever has waited for long is told to ask elsewhere."""
        for name in [name for name in self._sent if not self._is_crossing(name, now_s)]:
            del self._sent[name]
        if not self._sent:
            self._crossed_count = self._again_count = 0
            self._paces = {node: pace for node, pace in self._paces.items() if now_s - pace.last_s < PACE_MEMORY_S}
        for name in [name for name, waiting in self._waiting.items() if now_s - waiting[0].since_s >= WAITING_S]:
            self.refused(name)

    def _send(self, link: Link, request: Request) -> None:
        self._copies.setdefault(request.name, []).append(link.node)
        self._emit(Serve(link.number, request.request, request.name, request.secure))

    def _waits_no_more(self, name: bytes) -> None:
        """A chunk that is here counts as passed on when enough of those who waited have it, or nobody else waits."""
        passing = self._passing.get(name)
        if passing is not None:
            passing.left = min(passing.left, len(self._copies.get(name, ())) + len(self._waiting.get(name, ())))
            if passing.left <= 0:
                del self._passing[name]

    def _waits(self, link: Link, name: bytes) -> bool:
        return any(each.link == link.number for each in self._waiting.get(name, ()))

    def _waiting_for(self, link: Link) -> int:
        return sum(each.link == link.number for waiting in self._waiting.values() for each in waiting)

    def _crossed(self, link: Link, name: bytes, site: str, now_s: float) -> bytes | None:
        """The other node that this seed has just sent the chunk across to, and from which it will spread."""
        if link.site == site or not self._stock.is_seeding(name, self._node):
            return None
        before = self._sent.get(name)
        if before is not None and before.node == link.node:
            return None  # who asks again and again is no faster for it, and does not keep the chunk from the others
        pace = self._paces.setdefault(link.node, _Pace(-math.inf))
        if before is not None and self._is_crossing(name, now_s):
            if not pace.is_faster(self._paces[before.node]) or self._again_count >= AGAIN_SHARE * self._crossed_count:
                return before.node
            self._again_count += 1
        self._crossed_count += 1
        pace.took(now_s)
        crossing_s = max(CROSSING_S, SLOW_STARTS * link.slow_start_s(self._stock.size(name)))
        self._sent[name] = _Crossing(link.node, now_s, now_s + min(crossing_s, LEAVING_S))
        return None

    def _is_crossing(self, name: bytes, now_s: float) -> bool:
        """Whether the chunk was sent across just now, or is still leaving, to a host on a slow link."""
        crossing = self._sent[name]
        leaving = crossing.node in self._copies.get(name, ())
        return now_s < (crossing.since_s + LEAVING_S if leaving else crossing.until_s)
