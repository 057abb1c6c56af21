"""Link: what this node knows of one connected peer, and what is under way between the two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .manifest import NodeRecord
from .series import ChunkSet

MIN_DEADLINE_S: Final = 2.0
MAX_SERIES: Final = 4096
"""Series of which a peer's HAVE is remembered."""


@dataclass(slots=True)
class Flight:
    """A chunk asked for and not yet answered."""

    attempt: bytes
    ordinal: int
    name: bytes
    size: int
    sent_at_s: float
    deadline_s: float
    late: bool = False  # the deadline has passed and the chunk may be asked for elsewhere


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
    srtt_s: float | None = None
    rttvar_s: float = 0.0
    goodput: float = 0.0  # bytes per second that arrive from there, smoothed
    haves: dict[bytes, ChunkSet] = field(default_factory=dict)
    unsaid: dict[bytes, ChunkSet] = field(default_factory=dict)  # HAVEs waiting to be sent together
    flights: dict[int, Flight] = field(default_factory=dict)
    by_name: dict[bytes, int] = field(default_factory=dict)
    inflight_bytes: int = 0
    next_request: int = 0
    damaged: set[bytes] = field(default_factory=set)  # names that a lane brought damaged: asked again over TLS
    strikes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    pinged_at_s: float = 0.0

    def measured_rtt(self, rtt_s: float) -> None:
        """Smooth a round-trip time as RFC 6298 does."""
        if self.srtt_s is None:
            self.srtt_s, self.rttvar_s = rtt_s, rtt_s / 2
        else:
            self.rttvar_s += (abs(self.srtt_s - rtt_s) - self.rttvar_s) / 4
            self.srtt_s += (rtt_s - self.srtt_s) / 8

    def depart(self, attempt: bytes, ordinal: int, name: bytes, size: int, now_s: float) -> int:
        """Note a request; returns its number on this connection."""
        number = self.next_request
        self.next_request = (number + 1) & 0xFFFFFFFF
        rtt = self.srtt_s or 0.2
        rate = self.goodput or 1e6
        expected = rtt + 4 * self.rttvar_s + (self.inflight_bytes + size) / rate
        self.flights[number] = Flight(attempt, ordinal, name, size, now_s, now_s + max(MIN_DEADLINE_S, 4 * expected))
        self.by_name[name] = number
        self.inflight_bytes += size
        return number

    def land(self, number: int, now_s: float, *, arrived: bool) -> Flight | None:
        """Close a request, by its chunk or without it. Returns None when there is no such request."""
        flight = self.flights.pop(number, None)
        if flight is None:
            return None
        self.by_name.pop(flight.name, None)
        if arrived:
            self.received_bytes += flight.size
            # What was in flight when this chunk was asked for came within its time: that is the link's rate.
            rate = self.inflight_bytes / max(now_s - flight.sent_at_s, 1e-4)
            self.goodput = rate if not self.goodput else self.goodput + (rate - self.goodput) / 8
        self.inflight_bytes -= flight.size
        return flight

    def offers(self, attempt: bytes) -> ChunkSet | None:
        """What the peer has said it has of one series."""
        return self.haves.get(attempt)

    def remember(self, attempt: bytes) -> ChunkSet:
        """The peer's set of one series, made when new; the oldest one is forgotten beyond MAX_SERIES."""
        known = self.haves.get(attempt)
        if known is None:
            if len(self.haves) >= MAX_SERIES:
                self.haves.pop(next(iter(self.haves)))
            known = self.haves[attempt] = ChunkSet()
        return known
