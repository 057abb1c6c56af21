"""Shun: who broke a rule of the protocol comes back only after a while, longer each time, and is forgiven in the end.

Only what came over TLS counts, and nobody on the path can change that: damage never gets an honest peer shunned.
"""

from __future__ import annotations

from typing import Final

from ...protocol.backoff import doubled

FIRST_S: Final = 1.0
LAST_S: Final = 60.0
FORGIVEN_S: Final = 600.0
MAX_NODES: Final = 4096


class Shunned:
    """Nodes that broke a rule of late. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._offences: dict[bytes, tuple[int, float]] = {}  # node key -> how many, and when the last was

    def offended(self, node_key: bytes, now_s: float) -> None:
        """Note an offence."""
        self._forgive(now_s)
        count, _ = self._offences.pop(node_key, (0, 0.0))
        self._offences[node_key] = count + 1, now_s
        while len(self._offences) > MAX_NODES:
            del self._offences[next(iter(self._offences))]

    def is_shunned(self, node_key: bytes, now_s: float) -> bool:
        """Whether a node is not let in yet."""
        count, at_s = self._offences.get(node_key, (0, 0.0))
        return count > 0 and now_s < at_s + doubled(FIRST_S, count - 1, LAST_S)

    def _forgive(self, now_s: float) -> None:
        for key in [key for key, (_, at_s) in self._offences.items() if now_s > at_s + FORGIVEN_S]:
            del self._offences[key]
