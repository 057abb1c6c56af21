"""Congestion: which of the kernel's congestion controls the lanes to one site use.

They begin with the one that takes loss for congestion (cubic): it leaves the buffers of a clean path half empty, where
BBR (version 1, in Linux) drops a tenth of what it sends and recovers for seconds. On a path that loses packets while
its queues are empty cubic collapses, and BBR holds its rate: there the lanes change to it.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

CAREFUL: Final = b"cubic"
STUBBORN: Final = b"bbr"

SHORT_SHARE: Final = 0.2
"""A queue that makes a round trip longer by less than this share is short: it drops nothing."""

LEAST_STRAY: Final = 2
"""Times that packets were lost in a short queue before that is believed: repeats are sent later than the loss was."""

STRAY_SHARE: Final = 4
"""And at least every so manieth loss must have been in one."""

WITNESSES: Final = 2
"""Nodes on whose lanes it must have been seen before others are told, where so many are sent to: one may be lying."""

LOSSY_S: Final = 600.0
"""How long a lossy path is taken to be one."""

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

    @property
    def queue_is_short(self) -> bool:
        """Whether next to nothing waits on the path: it is not full, and drops nothing."""
        return self.rtt_s - self.least_rtt_s < SHORT_SHARE * self.least_rtt_s

    @property
    def is_near(self) -> bool:
        """Whether the path is so short that round trips say nothing about queues on it."""
        return self.least_rtt_s < NEAR_S


class Uplink:
    """What all lanes of this host share.

    When one path is known to lose packets, the lanes to all other places change with those of that one: cubic starves
    beside BBR, and they meet on this host's own link. After LOSSY_S it has to be seen again. `found(site)` is called
    when it is seen here, on the path to a site: hosts beside this one, and those there, meet on the same links.
    """

    def __init__(self, found: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._found = found
        self._clock = clock
        self._lossy_until_s = -math.inf
        self._paths: dict[str, Path] = {}

    @property
    def is_lossy(self) -> bool:
        """Whether some path from here loses packets that no queue explains, as far as was seen or heard of late."""
        return self._clock() < self._lossy_until_s

    def path_to(self, site: str, node: bytes) -> Congestion:
        """What is known of the path to a node at a site; where the site has no name, nothing yet."""
        return Congestion(self, self._paths.setdefault(site, Path(site)) if site else Path(site), node)

    def bear_loss(self) -> None:
        """Note that a path from here loses packets, seen or heard."""
        self._lossy_until_s = self._clock() + LOSSY_S

    def tell(self, path: Path) -> None:
        """Say that a path loses packets; once while that counts."""
        if self._clock() >= path.told_until_s:
            path.told_until_s = self._clock() + LOSSY_S
            self._found(path.site)


@dataclass(slots=True)
class Path:
    """What the lanes to one site have shown."""

    site: str
    losses: int = 0
    stray: int = 0  # of these, in a short queue
    nodes: set[bytes] = field(default_factory=set)  # that anything was sent to
    witnesses: set[bytes] = field(default_factory=set)  # whose lanes lost packets in a short queue
    told_until_s: float = -math.inf  # until then everyone there knows


class Congestion:
    """The congestion control of the lanes to one node."""

    def __init__(self, uplink: Uplink, path: Path, node: bytes) -> None:
        self.uplink = uplink
        self._path = path
        self._node = node

    def choose(self, connection: socket.socket) -> bool:
        """Set the control of a connection; where the kernel has not got it, it keeps its own. Whether it bears loss."""
        lossy = self.uplink.is_lossy
        with contextlib.suppress(OSError, AttributeError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, STUBBORN if lossy else CAREFUL)
        return lossy

    def look(self, before: Reading, now: Reading) -> None:
        """Take two readings of one connection, a fraction of a second apart."""
        path = self._path
        if len(path.nodes) < WITNESSES:
            path.nodes.add(self._node)
        if now.resent == before.resent or now.is_near:
            return
        path.losses += 1
        if before.queue_is_short and now.queue_is_short:
            if not path.stray and not self.uplink.is_lossy:
                path.witnesses.clear()  # what was seen then is over
            path.stray += 1
            path.witnesses.add(self._node)
        if path.stray < max(LEAST_STRAY, path.losses / STRAY_SHARE):
            return
        if len(path.witnesses) >= min(WITNESSES, len(path.nodes)):
            self.uplink.tell(path)
        self.uplink.bear_loss()
        path.losses = path.stray = 0


def unshared() -> Congestion:
    """For a connection of which nothing is known, and from which nothing is to be learned for others."""
    return Uplink(lambda _: None).path_to("", b"")


def read(connection: socket.socket) -> Reading | None:
    """Ask the kernel; None where it does not say."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        rtt_us, resent, least_us = _RTT.unpack(info)
    except (OSError, AttributeError, struct.error):
        return None
    return Reading(rtt_us / 1e6, least_us / 1e6, resent)
