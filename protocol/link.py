"""Link: what this node knows of one connected peer, and what is under way between the two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from .conduct import Conduct
from .manifest import NodeRecord
from .offers import Offers

MIN_DEADLINE_S: Final = 2.0
DEADLINE_GAIN: Final = 4.0
"""A chunk is late when it takes so many times as long as the peer's rate lets expect."""

MIN_WINDOW_BYTES: Final = 256 * 1024
MIN_FLIGHTS: Final = 2
"""Chunks asked of a peer at least, so that the next one leaves while the last is on its way."""

LEAST_RTT_S: Final = 0.02
"""Taken for a round trip within a site: there it is queues, and the turns of busy hosts, that requests wait for."""

FIRST_WINDOW_BYTES: Final = 10 * 1448
"""What TCP sends before anything is acknowledged (RFC 6928)."""

LEAST_RATE: Final = 1.0
"""Bytes per second that a link is taken to have when nothing comes, to divide by."""

LOOK_S: Final = 0.1
"""How often it is looked what has come."""

FIRST_RTT_S: Final = 0.1
"""Taken for a round trip until one has been measured."""

RATE_MEMORY_S: Final = 10.0
"""How long the best delivery rate counts: as BBR's max filter, which outlives a pause but not a change of path."""

NEAR_MEMORY_S: Final = 1.0
"""Within a site there is no slow start to forget: mates come and go on links that all share."""

MAX_DEADLINE_S: Final = 60.0
"""However slow a peer was, or made itself look: what it has not brought by then may be asked for elsewhere."""

STALL_S: Final = 1.0
"""Nothing of any chunk has come for so long and four round trips, though something was asked for: the peer stalls."""

MAX_STALL_S: Final = 3.0
"""However long the peer makes its round trips look."""

REFUSING_S: Final = 5.0
"""A peer that has had no time for this node for so long, and sent it nothing, is not waited for."""

HOPE_S: Final = 0.5
"""How long a chunk that is at another site is waited for until the border of its column there has it, too."""

PACE_S: Final = 1.0
MAX_PACE_S: Final = 3.0
"""A rate is measured for so long and ten round trips, at most for this: slow start is over by then."""

RATED_S: Final = 0.3
"""And the rate of the moment for so long: a few round trips, in which one chunk or more comes."""


@dataclass(slots=True)
class Flight:
    """A chunk asked for and not yet answered."""

    attempt: bytes
    ordinal: int
    name: bytes
    size: int
    sent_at_s: float
    deadline_s: float
    delivered_before: int  # bytes that had come over the link when this was asked
    late: bool = False  # the deadline has passed and the chunk may be asked for elsewhere
    whole: bool = False  # all of it has come, and is being verified
    hoped: bool = False  # asked for before the peer had it; somebody of its site has it by now
    moved: bool = False  # asked for elsewhere meanwhile, and taken back here: nobody is to blame

    @property
    def is_counted_on(self) -> bool:
        """Whether the chunk is to come by this request, and no other."""
        return not self.late and not self.moved

    @property
    def is_coming(self) -> bool:
        """Whether bytes of the chunk are still to come by this request."""
        return not self.whole and not self.moved


@dataclass(slots=True)
class Link:
    """One control connection and the lanes that belong to it. Times are seconds of the caller's clock."""

    number: int
    node_key: bytes
    node: bytes
    dialled: bool
    since_s: float
    heard_at_s: float
    record: NodeRecord | None = None  # set by Hello; nothing else is said or heard before
    pinged_at_s: float = 0.0
    srtt_s: float | None = None
    rttvar_s: float = 0.0
    min_rtt_s: float | None = None
    goodput: float = 0.0  # best recent delivery rate, bytes per second
    goodput_at_s: float = 0.0
    offers: Offers = field(default_factory=Offers)
    flights: dict[int, Flight] = field(default_factory=dict)
    awaited: dict[int, Flight] = field(default_factory=dict)  # asked for before the peer has them; outside the window
    awaited_bytes: int = 0
    by_name: dict[bytes, int] = field(default_factory=dict)
    inflight_bytes: int = 0
    next_request: int = 0
    damaged: set[bytes] = field(default_factory=set)  # names that a lane brought damaged: asked again over TLS
    conduct: Conduct = field(default_factory=Conduct)  # shared by all connections of the node
    received_bytes: int = 0
    late_flights: int = 0
    refused_since_s: float = math.inf  # since when it has had no time for anything that it was asked for
    gives_nothing: bool = False  # for so long that what it offers is not waited for any more
    moved_bytes: int = 0  # of chunks that have come, parts of them included, as far as was reported
    moved_at_s: float = 0.0  # when the last of them came
    pace: float | None = None  # bytes per second of late; None: not measured since something was last asked for
    rate: float | None = None  # the same over less than half a second
    _rated_at_s: float = 0.0
    _rated_bytes: int = 0
    _paced_at_s: float = 0.0
    _paced_bytes: int = 0
    _coming_bytes: int = 0  # of requests whose chunks are still to come by them, parts that have come included
    _whole_bytes: int = 0  # of chunks that have come whole

    @property
    def site(self) -> str:
        """The peer's site, empty before its hello."""
        return self.record.site if self.record else ""

    @property
    def _rtt_s(self) -> float:
        return self.srtt_s if self.srtt_s is not None else FIRST_RTT_S

    @property
    def _least_rtt_s(self) -> float:
        return self.min_rtt_s if self.min_rtt_s is not None else FIRST_RTT_S

    def measured_rtt(self, rtt_s: float) -> None:
        """Smooth a round-trip time as RFC 6298 does, and keep the least one: our own queues hide in the others."""
        if self.srtt_s is None or self.min_rtt_s is None:
            self.srtt_s, self.rttvar_s, self.min_rtt_s = rtt_s, rtt_s / 2, rtt_s
        else:
            self.rttvar_s += (abs(self.srtt_s - rtt_s) - self.rttvar_s) / 4
            self.srtt_s += (rtt_s - self.srtt_s) / 8
            self.min_rtt_s = min(self.min_rtt_s, rtt_s)

    @property
    def _memory_s(self) -> float:
        return NEAR_MEMORY_S if self._least_rtt_s < LEAST_RTT_S else RATE_MEMORY_S

    def window_bytes(self) -> int:
        """Bytes that may be asked of the peer at once: twice what its best rate fills one empty round trip with.

        Twice, so that it doubles each round trip until the rate stops growing, as slow start does.
        """
        return max(MIN_WINDOW_BYTES, int(2 * self.goodput * max(self._least_rtt_s, LEAST_RTT_S)))

    def has_room(self) -> bool:
        """Whether one more chunk may be asked for: what is still to come fills no window.

        One that has carried nothing yet, or would be through before it is looked at again, has two chunks to send.
        """
        left = self.left_bytes()
        if left < MIN_WINDOW_BYTES or left < self.window_bytes():
            return True
        return len(self.flights) < MIN_FLIGHTS and (not self.goodput or left < self.goodput * LOOK_S)

    def left_bytes(self) -> int:
        """Bytes asked for that have not come, as far as was reported."""
        return max(self._coming_bytes - self._partial_bytes(), 0)

    def _partial_bytes(self) -> int:
        """Bytes that have come of chunks that are not whole yet."""
        return max(self.moved_bytes - self._whole_bytes, 0)

    def wait_s(self, size: int) -> float:
        """How long a chunk of so many bytes would take if it were asked for now, behind what is under way."""
        if not self.goodput and self.rate is None:
            return self.slow_start_s(self.left_bytes() + size)
        return self._least_rtt_s + (self.left_bytes() + size) / self._rate_now()

    def _rate_now(self) -> float:
        """Bytes per second to be expected: as of late, or the best known; of a link that is new, that of slow start."""
        if self.rate is not None:
            return max(self.rate, LEAST_RATE)
        return max(self.goodput, MIN_WINDOW_BYTES / (2 * self._least_rtt_s))

    def slow_start_s(self, size: int) -> float:
        """How long so many bytes take over a connection that has carried nothing yet: it doubles each round trip."""
        return self._least_rtt_s * (1 + math.log2(1 + size / FIRST_WINDOW_BYTES))

    def queue(self) -> Iterator[tuple[Flight, float]]:
        """Chunks under way in the order in which they were asked for, with the seconds until all of each is here."""
        rate = self._rate_now()
        return ((flight, left / rate) for flight, left in self._line() if flight.is_coming)

    def _line(self) -> Iterator[tuple[Flight, int]]:
        """All requests in the order in which they were made, with the bytes until all of each is here."""
        left = -self._partial_bytes()
        for flight in self.flights.values():
            left += flight.size if flight.is_coming else 0
            yield flight, left

    def move(self, flight: Flight) -> int:
        """Note that a chunk is asked for elsewhere, where it comes sooner. Returns the request's number, to cancel."""
        self._coming_bytes -= flight.size if flight.is_coming else 0
        flight.moved = True
        return self.by_name[flight.name]

    def depart(self, attempt: bytes, ordinal: int, name: bytes, size: int, now_s: float) -> int:
        """Note a request; returns its number on this connection."""
        number = self._number(name)
        flight = Flight(attempt, ordinal, name, size, now_s, math.inf, self.received_bytes)
        self._take_off(number, flight, now_s)
        return number

    def has_room_to_await(self) -> bool:
        """Whether one more chunk may be asked for that the peer has yet to get."""
        return len(self.awaited) < MIN_FLIGHTS or self.awaited_bytes < self.window_bytes()

    def expect(self, attempt: bytes, ordinal: int, name: bytes, size: int, now_s: float) -> int:
        """Note a request for a chunk that the peer will have in a while; returns its number on this connection."""
        number = self._number(name)
        self.awaited[number] = Flight(attempt, ordinal, name, size, now_s, math.inf, self.received_bytes)
        self.awaited_bytes += size
        return number

    def begin(self, number: int, now_s: float) -> None:
        """Note that the peer has by now what was asked of it in advance: it is on its way, as if just asked for."""
        flight = self.awaited.pop(number)
        self.awaited_bytes -= flight.size
        flight.sent_at_s = max(flight.sent_at_s, now_s - self._least_rtt_s)
        flight.delivered_before = self.received_bytes
        flight.hoped = True
        self._take_off(number, flight, now_s)

    def _number(self, name: bytes) -> int:
        number = self.next_request
        self.next_request = (number + 1) & 0xFFFFFFFF
        self.by_name[name] = number
        return number

    def _take_off(self, number: int, flight: Flight, now_s: float) -> None:
        if not self.flights:
            self._pace_anew(now_s)
        self.inflight_bytes += flight.size
        self._coming_bytes += flight.size if flight.is_coming else 0
        expected_s = self.expected_s(self.inflight_bytes)
        flight.deadline_s = now_s + min(max(MIN_DEADLINE_S, DEADLINE_GAIN * expected_s), MAX_DEADLINE_S)
        self.flights[number] = flight

    def prolong(self, flight: Flight, now_s: float) -> bool:
        """Move a deadline that has passed by what comes now: the best rate known may be that of an idle path.

        Returns whether there is a later one: not when nothing comes, nor beyond MAX_DEADLINE_S.
        """
        rate = max(self.rate or 0.0, self.pace or 0.0)
        if not rate:
            return False
        left = next(left for other, left in self._line() if other is flight)
        expected_s = self._rtt_s + max(left, 0) / rate
        flight.deadline_s = min(now_s + DEADLINE_GAIN * expected_s, flight.sent_at_s + MAX_DEADLINE_S)
        return flight.deadline_s > now_s

    def flight(self, number: int) -> Flight | None:
        """The request of this number that has not been answered."""
        return self.flights.get(number) or self.awaited.get(number)

    def expected_s(self, size: int) -> float:
        """Seconds in which `size` bytes asked for now should come."""
        return self._rtt_s + 4 * self.rttvar_s + size / (self.goodput or 1e6)

    def progressed(self, total_bytes: int, now_s: float) -> None:
        """Note how many bytes of chunks have come over this link by now, parts of chunks included."""
        if total_bytes > self.moved_bytes:
            self.moved_bytes, self.moved_at_s = total_bytes, now_s
        if self.flights and now_s - self._rated_at_s >= RATED_S:
            self.rate = (self.moved_bytes - self._rated_bytes) / (now_s - self._rated_at_s)
            self._rated_at_s, self._rated_bytes = now_s, self.moved_bytes
        if not self.flights and not self.awaited:
            self._whole_bytes = self.moved_bytes

    def excuse(self, now_s: float) -> None:
        """Note that nothing could come just now, because this node does not read."""
        self.moved_at_s = now_s
        self._pace_anew(now_s)
        for flight in self.flights.values():
            flight.deadline_s = max(flight.deadline_s, now_s + MIN_DEADLINE_S)

    def came_whole(self, name: bytes) -> None:
        """Note that all bytes of a chunk are here; what is left to do with it is not the peer's."""
        number = self.by_name.get(name, -1)
        flight = self.flight(number)
        if flight is not None and not flight.whole:
            self._coming_bytes -= flight.size if flight.is_coming and number in self.flights else 0
            flight.whole = True
            self._whole_bytes += flight.size

    def stalls(self, flight: Flight, now_s: float) -> bool:
        """Whether nothing has come over the link for longer than any path explains, since this was asked for.

        What comes of other chunks counts: a peer that sends one after another is at work.
        """
        if flight.whole:
            return False
        return now_s - max(self.moved_at_s, flight.sent_at_s) > min(STALL_S + 4 * self._rtt_s, MAX_STALL_S)

    def hopes_in_vain(self, flight: Flight, now_s: float) -> bool:
        """Whether the peer was to have a chunk in a moment, and nothing has come over the link for longer than that."""
        return (
            flight.hoped and not flight.whole and now_s - max(self.moved_at_s, flight.sent_at_s) > HOPE_S + self._rtt_s
        )

    def measure_pace(self, now_s: float) -> None:
        """Measure how fast bytes have come of late, when they were asked for all the time."""
        passed_s = now_s - self._paced_at_s
        if self.flights and passed_s >= min(PACE_S + 10 * self._rtt_s, MAX_PACE_S):
            self.pace = (self.moved_bytes - self._paced_bytes) / passed_s
            self._paced_at_s, self._paced_bytes = now_s, self.moved_bytes

    def _pace_anew(self, now_s: float) -> None:
        self.pace = self.rate = None
        self._paced_at_s, self._paced_bytes = now_s, self.moved_bytes
        self._rated_at_s, self._rated_bytes = now_s + self._rtt_s, self.moved_bytes

    def mark_late(self, flight: Flight, now_s: float) -> None:
        """Note that a request takes too long. The request stands, the offer does not."""
        flight.late = True
        self.late_flights += 1
        self.strike(now_s)
        self.offers.doubt(flight.attempt, flight.ordinal, now_s)

    def refused(self, now_s: float) -> None:
        """Note that the peer has no time for a chunk that it offers. Who never has any for REFUSING_S gives nothing."""
        if self.refused_since_s > now_s or self.moved_at_s > self.refused_since_s:
            self.refused_since_s = now_s
        self.gives_nothing = now_s - self.refused_since_s >= REFUSING_S

    @property
    def is_stuck(self) -> bool:
        """Whether everything that was asked of the peer is late: nothing else it offers is to be counted on."""
        return 0 < self.late_flights == len(self.flights)

    @property
    def is_doubtful(self) -> bool:
        """Whether what the peer offers is not to be waited for, as long as somebody else offers it."""
        return self.conduct.is_benched or self.is_stuck or self.gives_nothing

    def land(self, number: int, now_s: float, *, arrived: bool) -> Flight | None:
        """Close a request, by its chunk or without it. Returns None when there is no such request."""
        flight = self.flight(number)
        if flight is None:
            return None
        if self.by_name.get(flight.name) == number:
            del self.by_name[flight.name]
        if arrived:
            self.received_bytes += flight.size
            self.refused_since_s, self.gives_nothing = math.inf, False
        if number in self.awaited:
            del self.awaited[number]
            self.awaited_bytes -= flight.size
            return flight
        del self.flights[number]
        self.inflight_bytes -= flight.size
        self._coming_bytes -= flight.size if flight.is_coming else 0
        self.late_flights -= flight.late
        if arrived:
            self.moved_at_s = now_s
            rate = (self.received_bytes - flight.delivered_before) / max(now_s - flight.sent_at_s, 1e-4)
            if rate >= self.goodput or now_s - self.goodput_at_s > self._memory_s:
                self.goodput, self.goodput_at_s = rate, now_s
        return flight

    def went_back_on(self, attempt: bytes, ordinal: int, now_s: float) -> None:
        """Note that the peer says it has not got a chunk: it may have deleted it since it offered it."""
        if self.offers.take_back(attempt, ordinal, now_s):
            self.conduct.broke_offer(now_s)

    @property
    def strikes(self) -> int:
        """Failures of the peer that are not forgiven."""
        return self.conduct.strikes

    def strike(self, now_s: float) -> None:
        """Note that the peer was late, or sent damaged bytes: it is not counted on for a while."""
        self.conduct.strike(now_s)
