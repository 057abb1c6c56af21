"""Retention: which kept things go when there are too many, too large or too old.

Decisions only; whoever keeps the things deletes them. What is pinned (leased, on a planned route, being fetched, a
way in that must stay complete) is never chosen, and counts towards the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from .chunks import ChunkStore
from .errors import StorageError


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is kept. None: no limit of that kind."""

    count: int | None = None
    size_bytes: int | None = None
    age_s: float | None = None

    def __post_init__(self) -> None:
        for limit in (self.count, self.size_bytes, self.age_s):
            if limit is not None and limit < 0:
                raise StorageError(f"a retention limit of {limit} is below zero")


@dataclass(frozen=True, slots=True)
class Kept:
    """One thing that is kept, e.g. a transition with its chunks. `made_at` in Unix seconds."""

    key: bytes
    order: tuple[int, int]
    size_bytes: int
    made_at: float


def surplus(kept: Iterable[Kept], limits: Limits, pinned: Collection[bytes], now: float) -> list[Kept]:
    """What has to go so that the rest is within `limits`, oldest first; pinned keys never."""
    order = sorted(kept, key=lambda each: (each.order, each.made_at, each.key))
    count, size = len(order), sum(each.size_bytes for each in order)
    gone = []
    for each in order:
        too_many = limits.count is not None and count > limits.count
        too_large = limits.size_bytes is not None and size > limits.size_bytes
        too_old = limits.age_s is not None and now - each.made_at > limits.age_s
        if each.key not in pinned and (too_many or too_large or too_old):
            gone.append(each)
            count -= 1
            size -= each.size_bytes
    return gone


def space_needed(kept: Iterable[Kept], pinned: Collection[bytes], size_bytes: int) -> list[Kept]:
    """The oldest unpinned things that together free at least `size_bytes`; all of them when that is not enough."""
    gone, freed = [], 0
    for each in sorted(kept, key=lambda each: (each.order, each.made_at, each.key)):
        if freed >= size_bytes:
            break
        if each.key not in pinned:
            gone.append(each)
            freed += each.size_bytes
    return gone


def sweep(store: ChunkStore, wanted: Callable[[bytes], bool]) -> int:
    """Remove every chunk that is not wanted, e.g. after a crash between two deletions: bytes freed.

    Interrupted anywhere, it has removed only what nobody wants.
    """
    freed = 0
    for name in store.names():
        if not wanted(name):
            freed += store.size(name)
            store.remove(name)
    return freed
