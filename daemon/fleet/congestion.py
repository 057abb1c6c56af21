"""Congestion: which of the kernel's congestion controls the lanes to one site use.

They begin with the one that takes loss for congestion (cubic): it leaves the buffers of a clean path half empty, where
BBR (version 1, in Linux) drops a tenth of what it sends and recovers for seconds. On a path that loses packets while
its queues are empty cubic collapses, and BBR holds its rate: there the lanes change to it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Final

CAREFUL: Final = b"cubic"
STUBBORN: Final = b"bbr"

NO_QUEUE_SHARE: Final = 0.1
NO_QUEUE_S: Final = 0.002
"""A round trip that is longer than the least by no more than this share and this time saw no queue."""

SHORT_SHARE: Final = 0.4
"""A queue is short below this share of the longest that was seen."""

LEAST_SHORT: Final = 2
"""Times that packets were lost in a short queue before that is believed. Once is enough where there was no queue."""

NEAR_S: Final = 0.005
"""On a shorter round trip either control will do."""

_INFO_BYTES: Final = 152
_RTT: Final = struct.Struct("=68xI28xI44xI")
"""tcpi_rtt, tcpi_total_retrans and tcpi_min_rtt of struct tcp_info, as Linux has had it since 4.6 (linux/tcp.h)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the kernel says of one connection."""

    rtt_s: float
    least_rtt_s: float
    resent: int
    """Packets sent again so far."""


class Congestion:
    """What the lanes to one site have shown of the path."""

    def __init__(self) -> None:
        self.is_lossy = False
        """Whether the path loses packets that no queue explains."""
        self._longest_s = 0.0  # queue
        self._in_short = 0

    def choose(self, connection: socket.socket) -> None:
        """Set the control of a connection; where the kernel has not got it, it keeps its own."""
        with contextlib.suppress(OSError, AttributeError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, STUBBORN if self.is_lossy else CAREFUL)

    def look(self, before: Reading, now: Reading) -> None:
        """Take two readings of one connection, a fraction of a second apart."""
        queue_s = max(before.rtt_s, now.rtt_s) - now.least_rtt_s
        self._longest_s = max(self._longest_s, queue_s)
        if now.resent == before.resent or now.least_rtt_s < NEAR_S:
            return
        if queue_s < SHORT_SHARE * self._longest_s:
            self._in_short += 1
        in_none = queue_s < NO_QUEUE_SHARE * now.least_rtt_s + NO_QUEUE_S
        self.is_lossy = self.is_lossy or in_none or self._in_short >= LEAST_SHORT


def read(connection: socket.socket) -> Reading | None:
    """Ask the kernel; None where it does not say."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        rtt_us, resent, least_us = _RTT.unpack(info)
    except (OSError, AttributeError, struct.error):
        return None
    return Reading(rtt_us / 1e6, least_us / 1e6, resent)
