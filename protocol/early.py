"""Early pages: index pages that came before the opening they belong to, which is pulled while they are pushed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

EARLY_BYTES: Final = 256 * 1024
"""Kept of one peer; the oldest go first."""


@dataclass(slots=True)
class _Kept:
    pages: deque[tuple[bytes, bytes]] = field(default_factory=deque)  # (attempt, signed page), oldest first
    size_bytes: int = 0


class EarlyPages:
    """Pages by the link that they came over, until their opening is here: it alone says who has to have signed them."""

    def __init__(self) -> None:
        self._of: dict[int, _Kept] = {}

    def keep(self, attempt: bytes, signed: bytes, origin: int) -> None:
        """Keep a page that came over the link `origin`."""
        kept = self._of.setdefault(origin, _Kept())
        kept.pages.append((attempt, signed))
        kept.size_bytes += len(signed)
        while kept.size_bytes > EARLY_BYTES:
            kept.size_bytes -= len(kept.pages.popleft()[1])

    def take(self, attempt: bytes) -> list[tuple[bytes, int]]:
        """(signed page, link) of all that belong to an attempt; they are kept no more."""
        taken: list[tuple[bytes, int]] = []
        for origin, kept in list(self._of.items()):
            pages = list(kept.pages)
            self.lost(origin)
            for of, signed in pages:
                if of == attempt:
                    taken.append((signed, origin))
                else:
                    self.keep(of, signed, origin)
        return taken

    def lost(self, origin: int) -> None:
        """Let go of what a link that is gone has said too early."""
        self._of.pop(origin, None)
