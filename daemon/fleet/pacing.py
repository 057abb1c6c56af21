"""Pacing: keeps a flow of bytes at a configured rate, by saying how long to wait."""

from __future__ import annotations

from typing import Final

_BURST_S: Final = 0.1


class Pacer:
    """A rate in bytes per second, 0 for no limit; a tenth of a second's worth may go at once. Times are seconds."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at_s = 0.0

    def set_rate(self, rate: float) -> None:
        """Go on at another rate."""
        self._rate = rate

    def book(self, size: int, now_s: float) -> float:
        """Count `size` bytes that are about to move, or just moved; returns the seconds to wait because of them."""
        if not self._rate:
            return 0.0
        self._free_at_s = max(self._free_at_s, now_s - _BURST_S) + size / self._rate
        return max(0.0, self._free_at_s - now_s)
