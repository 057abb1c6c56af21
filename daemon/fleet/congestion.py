"""Congestion: which of the kernel's congestion controls the lanes to one site use.

They begin with the one that takes loss for congestion (cubic): it leaves the buffers of a clean path half empty, where
BBR (version 1, in Linux) drops a tenth of what it sends and recovers for seconds. On a path that loses packets while
its queues are empty cubic collapses, and BBR holds its rate: there the lanes change to it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

CAREFUL: Final = b"cubic"
STUBBORN: Final = b"bbr"

SHORT_SHARE: Final = 0.2
"""A queue that makes a round trip longer by less than this share is short: it drops nothing."""

LEAST_STRAY: Final = 2
"""Times that packets were lost in a short queue before that is believed: repeats are sent later than the loss was."""

STRAY_SHARE: Final = 4
"""And at least every so manieth loss must have been in one."""

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


class Uplink:
    """What all lanes of this host share.

    When one path is known to lose packets, the lanes to all other places change with those of that one: cubic starves
    beside BBR, and they meet on this host's own link. `found(site)` is called when it is seen here, on the path to a
    site: hosts beside this one, and those there, meet on the same links.
    """

    def __init__(self, found: Callable[[str], None]) -> None:
        self.is_lossy = False
        """Whether some path from here loses packets that no queue explains, as far as was seen or heard."""
        self._found = found
        self._paths: dict[str, Congestion] = {}

    def path_to(self, site: str) -> Congestion:
        """What is known of the path to a site; to a peer whose site has no name, nothing yet."""
        return self._paths.setdefault(site, Congestion(self, site)) if site else Congestion(self, site)

    def loses(self, site: str) -> None:
        """Note that the path to a site was seen to lose packets."""
        if not self.is_lossy:
            self.is_lossy = True
            self._found(site)


class Congestion:
    """What the lanes to one site have shown of the path."""

    def __init__(self, uplink: Uplink, site: str) -> None:
        self.uplink = uplink
        self._site = site
        self._losses = 0
        self._stray = 0  # of these, in a short queue

    def choose(self, connection: socket.socket) -> None:
        """Set the control of a connection; where the kernel has not got it, it keeps its own."""
        control = STUBBORN if self.uplink.is_lossy else CAREFUL
        with contextlib.suppress(OSError, AttributeError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)

    def look(self, before: Reading, now: Reading) -> None:
        """Take two readings of one connection, a fraction of a second apart."""
        if now.resent == before.resent or now.least_rtt_s < NEAR_S:
            return
        self._losses += 1
        queue_s = max(before.rtt_s, now.rtt_s) - now.least_rtt_s
        self._stray += queue_s < SHORT_SHARE * now.least_rtt_s
        if self._stray >= max(LEAST_STRAY, self._losses / STRAY_SHARE):
            self.uplink.loses(self._site)


def read(connection: socket.socket) -> Reading | None:
    """Ask the kernel; None where it does not say."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        rtt_us, resent, least_us = _RTT.unpack(info)
    except (OSError, AttributeError, struct.error):
        return None
    return Reading(rtt_us / 1e6, least_us / 1e6, resent)
