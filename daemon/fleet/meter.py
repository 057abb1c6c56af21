"""Meter: a rate over the last few seconds, from byte counts as they happen."""

from __future__ import annotations

import math
from typing import Final

_SMOOTHING_S: Final = 3.0


class Meter:
    """Bytes per second, smoothed exponentially over about three seconds. Times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._level = 0.0  # bytes, decaying
        self._at_s = 0.0

    def add(self, size: int, now_s: float) -> None:
        """Count bytes."""
        self._level = self._decayed(now_s) + size
        self._at_s = now_s

    def rate(self, now_s: float) -> float:
        """Bytes per second of late."""
        return self._decayed(now_s) / _SMOOTHING_S

    def _decayed(self, now_s: float) -> float:
        return self._level * math.exp(min(0.0, self._at_s - now_s) / _SMOOTHING_S)
