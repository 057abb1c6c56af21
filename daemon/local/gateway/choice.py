"""Which version comes next, how long a request waits for it, and when a node is too far behind. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from .constraint import Constraint

ANNOUNCE_S: Final = 2.0
"""How long a version that nobody has announced is waited for when the request does not say."""

Order = tuple[int, int]
"""(epoch, version): the order of versions."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The weights that an engine has confirmed."""

    epoch: int
    version: int
    manifest: str
    label: str = ""

    @property
    def order(self) -> Order:
        """What versions are compared by."""
        return self.epoch, self.version


def next_version(applied: Order | None, held: Collection[Order], waiting: Collection[Constraint]) -> Order | None:
    """The version to move to, of those `held` on this host; None when there is none after `applied`.

    The newest, except that a request that waits for an older one, which the newest would pass by, gets it first:
    each step goes forward, so none can hold the engine back for ever.
    """
    newer = sorted(order for order in held if applied is None or order > applied)
    if not newer:
        return None
    newest = newer[-1]
    for order in newer:
        if any(each.satisfied_by(order[1]) and not each.satisfied_by(newest[1]) for each in waiting):
            return order
    return newest


def has_passed(constraint: Constraint, applied: Order | None, head: Order | None) -> bool:
    """Whether no version that can still come satisfies `constraint`: numbers rise within an epoch."""
    if applied is None or (head is not None and head[0] > applied[0]):
        return False
    return constraint.first_from(applied[1] + 1) is None and not constraint.satisfied_by(applied[1])


def patience_s(constraint: Constraint, applied: Order | None, head: Order | None, default_s: float) -> float:
    """Seconds that a request with an unsatisfied constraint waits, from its arrival on.

    As long as it says itself; else `default_s` for what is announced, and at most ANNOUNCE_S for what is not.
    """
    if has_passed(constraint, applied, head):
        return 0.0
    if constraint.wait_s is not None:
        return constraint.wait_s
    first = constraint.first_from(0)
    announced = head is not None and first is not None and first <= head[1]
    return default_s if announced else min(default_s, ANNOUNCE_S)


@dataclass(frozen=True, slots=True)
class Staleness:
    """How far behind a node may be and still be ready. 0: no limit."""

    versions: int = 0
    seconds: float = 0.0

    def reason(self, lag: int, lag_s: float) -> str | None:
        """Why a node `lag` versions and `lag_s` seconds behind is not ready, or None."""
        if self.versions and lag > self.versions:
            return f"{lag} versions behind, more than max_lag_versions = {self.versions}"
        if self.seconds and lag_s > self.seconds:
            return f"behind for {lag_s:.1f} s, more than max_lag_s = {self.seconds:g}"
        return None
