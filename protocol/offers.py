"""Offers: what one peer has said it has, and how far that is believed just now."""

from __future__ import annotations

from typing import Final

from .series import ChunkSet

DOUBT_S: Final = 10.0
"""How long a peer is not asked again for chunks that it offered and did not bring."""

MAX_HAVES_BYTES: Final = 4 * 1024 * 1024
"""Bitmaps remembered of one peer's HAVEs: enough for 8000 series of 3000 chunks."""

MAX_SERIES: Final = 4096
"""Series of which a peer's HAVE is remembered."""


class Offers:
    """The chunks that a peer offers, by attempt."""

    def __init__(self) -> None:
        self._said: dict[bytes, ChunkSet] = {}  # oldest first
        self._said_bytes = 0
        self._deferred: dict[bytes, ChunkSet] = {}  # rejected as busy: not asked before the next turn
        self._doubted: dict[bytes, ChunkSet] = {}  # offered and not brought: not asked for a while
        self._doubted_at_s = 0.0

    def remember(self, attempt: bytes, ranges: tuple[tuple[int, int], ...]) -> ChunkSet:
        """Take the ranges of a HAVE; returns what is new. The oldest series are forgotten beyond the limits.

        Raises MessageError for ordinals that no series can have.
        """
        known = self._said.pop(attempt, ChunkSet())
        before = ChunkSet(known.data, known.meta)
        known.add_ranges(ranges)
        self._said_bytes += known.size_bytes() - before.size_bytes()
        self._said[attempt] = known
        while len(self._said) > 1 and (len(self._said) > MAX_SERIES or self._said_bytes > MAX_HAVES_BYTES):
            self._said_bytes -= self._said.pop(next(iter(self._said))).size_bytes()
        return ChunkSet(known.data & ~before.data, known.meta & ~before.meta)

    def said(self, attempt: bytes) -> ChunkSet | None:
        """All that the peer has said it has of a series, None where it has said nothing."""
        return self._said.get(attempt)

    def of(self, attempt: bytes) -> ChunkSet | None:
        """The same without what it failed to bring of late."""
        said = self._said.get(attempt)
        doubted = self._doubted.get(attempt) if self._doubted else None
        if said is None or doubted is None:
            return said
        return ChunkSet(said.data & ~doubted.data, said.meta & ~doubted.meta)

    def deferred(self, attempt: bytes) -> ChunkSet | None:
        """What of a series it had no time for since the last `undefer`."""
        return self._deferred.get(attempt)

    def doubt(self, attempt: bytes, ordinal: int, now_s: float) -> None:
        """Note that the peer did not bring what it had offered, whatever it goes on to say."""
        if not self._doubted:
            self._doubted_at_s = now_s
        self._doubted.setdefault(attempt, ChunkSet()).add(ordinal)

    def take_back(self, attempt: bytes, ordinal: int, now_s: float) -> bool:
        """Note that the peer says it has not got a chunk. Returns whether it had offered it."""
        said = self._said.get(attempt)
        was_said = said is not None and ordinal in said
        if said is not None and was_said:
            self._said_bytes -= said.size_bytes()
            said.remove(ordinal)
            self._said_bytes += said.size_bytes()
        self.doubt(attempt, ordinal, now_s)
        return was_said

    def trust(self, attempt: bytes, ordinal: int) -> None:
        """Take a doubt back."""
        if attempt in self._doubted:
            self._doubted[attempt].remove(ordinal)

    def forgive(self, now_s: float) -> None:
        """Believe everything again after DOUBT_S."""
        if self._doubted and now_s - self._doubted_at_s > DOUBT_S:
            self._doubted.clear()

    def defer(self, attempt: bytes, ordinal: int) -> None:
        """Do not ask for this chunk here before `undefer`."""
        self._deferred.setdefault(attempt, ChunkSet()).add(ordinal)

    def undefer(self) -> None:
        """Ask again for what it had no time for."""
        self._deferred.clear()
