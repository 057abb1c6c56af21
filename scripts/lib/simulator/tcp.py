"""Tcp: how fast one flow may go on a path: slow start, the largest window, and what loss leaves of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

SEGMENT_BYTES: Final = 1448
_BBR_CLIFF: Final = 0.15


@dataclass(frozen=True, slots=True)
class Tcp:
    """Behaviour of the sending kernels. Bytes and seconds."""

    bbr: bool = False
    max_window: float = 4.2e6
    """What common sysctls allow: 21 MB/s per flow at 200 ms."""
    first_window: float = 10 * SEGMENT_BYTES
    growth_paced: float = 0.25
    """Window growth per byte delivered once the flow has met its share: between cubic's probing and slow start."""
    overshoot: float = 1.25
    """Window over what the network takes, when that is the limit."""

    @property
    def standing_queue(self) -> float:
        """Part of a full link's buffer that is filled: cubic fills it and falls back by 0.3, BBR keeps little."""
        return 0.25 if self.bbr else 0.8

    def after_idle(self, window: float, idle_s: float, rtt_s: float) -> float:
        """Window after a pause: halved for each retransmission timeout (RFC 2861), from the first window up."""
        timeout_s = max(0.2, 2 * rtt_s)
        if idle_s > timeout_s:
            window *= math.pow(0.5, idle_s / timeout_s)
        return max(window, self.first_window)

    def loss_limit(self, rtt_s: float, loss: float) -> float:
        """Bytes per second that a flow can hold at a packet loss rate.

        Reno (Mathis, Semke, Mahdavi, Ott 1997) or, where it gets more, cubic (RFC 9438, 5.1); BBR does not take
        random loss for congestion until about 15%.
        """
        if loss <= 0.0:
            return math.inf
        if self.bbr:
            return math.inf if loss < _BBR_CLIFF else SEGMENT_BYTES / rtt_s
        reno = math.sqrt(1.5 / loss)
        cubic = 1.054 * math.pow(rtt_s / loss, 0.75)
        return max(reno, cubic) * SEGMENT_BYTES / rtt_s
