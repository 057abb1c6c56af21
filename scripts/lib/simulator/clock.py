"""Clock: simulated time, and what is to happen when. Equal times keep the order in which they were asked for."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Any


class Clock:
    """A heap of (time in seconds, call). Nothing here depends on the machine's own clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._asked = 0

    def at(self, when_s: float, call: Callable[..., object], *args: Any) -> None:
        """Call `call(*args)` at `when_s`, or now if that is past."""
        self._asked += 1
        heapq.heappush(self._heap, (max(when_s, self.now_s), self._asked, call, args))

    def run(self, until_s: float, waiting: Collection[object] = (None,)) -> None:
        """Let things happen until `until_s`, until nothing is left to happen, or until nobody of `waiting` is left."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, call, args = heapq.heappop(heap)
            call(*args)
            if not waiting:
                return
        self.now_s = max(self.now_s, until_s)
