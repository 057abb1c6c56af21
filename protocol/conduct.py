"""Conduct: how a node has kept its word of late. It is kept by node, so that a new connection begins nothing anew.

A node that was late, sent damage, or offered what it has not is struck and benched: it is asked only for what nobody
else offers, and nobody waits for what it offers or claims. The bench is short at first and doubles with each strike
that is not forgiven; nobody is banned for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .backoff import doubled

BENCH_S: Final = 30.0
MAX_BENCH_S: Final = 600.0
FORGIVE_S: Final = 120.0
"""Good conduct for so long takes one strike back."""

ONE_EVENT_S: Final = 1.0
"""Strikes closer together than this are one: what is late at one time has one cause."""

SECOND_CHANCES: Final = 2
"""Strikes up to which a chunk that comes after all ends the bench: a path may have been cut, and healed."""

BROKEN_OFFERS: Final = 3
"""Offers in a row that the node did not stand by and that count as one strike: a store may have lost something."""


@dataclass(slots=True)
class Conduct:
    """Strikes of one node. Times are seconds of the caller's clock."""

    strikes: int = 0
    struck_at_s: float = 0.0
    is_benched: bool = False
    benched_until_s: float = 0.0
    broken_offers: int = 0

    def strike(self, now_s: float) -> None:
        """Note a failure: the node is benched, each time for longer."""
        if self.strikes and now_s - self.struck_at_s < ONE_EVENT_S:
            return
        self.strikes += 1
        self.struck_at_s = now_s
        self.is_benched = True
        self.benched_until_s = now_s + doubled(BENCH_S, self.strikes - 1, MAX_BENCH_S)

    def broke_offer(self, now_s: float) -> None:
        """Note that the node has not got what it said it has."""
        self.broken_offers += 1
        if self.broken_offers >= BROKEN_OFFERS:
            self.broken_offers = 0
            self.strike(now_s)

    def kept_word(self) -> None:
        """Note that a chunk came, whole and right."""
        self.broken_offers = 0
        if self.strikes <= SECOND_CHANCES:
            self.is_benched = False

    def forgive(self, now_s: float) -> None:
        """End a bench that has lasted long enough, and take one strike back for every FORGIVE_S without another."""
        if self.is_benched and now_s >= self.benched_until_s:
            self.is_benched = False
        if self.strikes and now_s - self.struck_at_s > FORGIVE_S:
            self.strikes -= 1
            self.struck_at_s = now_s

    @property
    def is_clean(self) -> bool:
        """Whether nothing is held against the node."""
        return not self.strikes and not self.is_benched and not self.broken_offers


@dataclass(slots=True)
class Conducts:
    """The conduct of every node that was ever linked to, until nothing is held against it."""

    _of: dict[bytes, Conduct] = field(default_factory=dict)

    def of(self, node: bytes) -> Conduct:
        """The conduct of one node; what is noted there counts for all its connections."""
        return self._of.setdefault(node, Conduct())

    def forgive(self, linked: frozenset[bytes], now_s: float) -> None:
        """Once a second: let time heal, and forget nodes that are not `linked` and against which nothing is held."""
        for node, conduct in list(self._of.items()):
            conduct.forgive(now_s)
            if conduct.is_clean and node not in linked:
                del self._of[node]

    def __len__(self) -> int:
        return len(self._of)
