"""Pages: what a publish has made so far, listed in signed pages as it goes, so that peers fetch while it encodes."""

from __future__ import annotations

import asyncio
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..protocol.manifest import PAGE_ENTRIES, IndexPage, Opening
from ..protocol.seal import INDEX_ENTRY
from ..protocol.signed import sign
from ..storage.diff import Made
from .fleet.fleet import Fleet

PAGE_DELAY_S: Final = 0.05


class Pages:
    """Lists finished chunks in signed pages: a page goes out when it is full, or a moment after its first entry.

    When it is not `streamed` all of them wait for `flush`.
    """

    def __init__(self, opening: Opening, key: Ed25519PrivateKey, fleet: Fleet, *, streamed: bool) -> None:
        self._opening = opening
        self._key = key
        self._fleet = fleet
        self._waiting: dict[int, Made] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None
        self._open = streamed

    def add(self, made: Made) -> None:
        """A chunk is in the store."""
        self._waiting[made.ordinal] = made
        if not self._open:
            return
        if len(self._waiting) >= PAGE_ENTRIES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAGE_DELAY_S, self.flush)

    def close(self) -> None:
        """No page goes out by itself any more."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()

    def flush(self) -> None:
        """Send every chunk that follows without a gap on what has been sent."""
        self._timer = None
        ready: list[Made] = []
        while (made := self._waiting.pop(self._next, None)) is not None:
            ready.append(made)
            self._next += 1
        for at in range(0, len(ready), PAGE_ENTRIES):
            self._send(ready[at : at + PAGE_ENTRIES])

    def _send(self, batch: list[Made]) -> None:
        opening = self._opening
        entries = b"".join(INDEX_ENTRY.pack(made.name, made.size) for made in batch)
        page = IndexPage(opening.stream, opening.attempt, 0, batch[0].ordinal, entries)
        self._fleet.add_page(sign(page, self._key))
        for made in batch:
            self._fleet.stored(made.name)
