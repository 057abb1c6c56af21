"""Tally: what moved between this node and the others since it started, in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .traffic import Kept

Scope = Literal["site", "wan"]
"""Whether a peer is of this node's own site."""


@dataclass(slots=True)
class Tally:
    """Sealed bytes of chunks and lists by scope, and what went wrong with them."""

    received_bytes: dict[Scope, int] = field(default_factory=lambda: {"site": 0, "wan": 0})
    sent_bytes: dict[Scope, int] = field(default_factory=lambda: {"site": 0, "wan": 0})
    damaged_chunks: int = 0
    """Chunks whose bytes were not those of their name."""
    unstored_chunks: int = 0
    """Chunks for which the disk had no room."""

    def count(self, kept: Kept, size_bytes: int, scope: Scope) -> None:
        """Count a chunk that came, and what became of it."""
        self.received_bytes[scope] += size_bytes
        self.damaged_chunks += kept is Kept.DAMAGED
        self.unstored_chunks += kept is Kept.NO_ROOM
