"""Chance: what the protocol needs of a random number generator, which its caller seeds and passes in."""

from __future__ import annotations

from typing import Protocol


class Chance(Protocol):
    """The part of `random.Random` that is used here."""

    def randrange(self, stop: int, /) -> int:
        """A whole number from 0 to `stop` - 1."""
        ...

    def uniform(self, a: float, b: float, /) -> float:
        """A number between `a` and `b`."""
        ...
