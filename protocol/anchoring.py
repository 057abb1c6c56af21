"""Anchoring: which transitions a publisher adds later, so that the ways in to its newest version stay short.

A skip leads from an older version (each registered base, and the last anchor) to the newest; a full one from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .chain import plan_route
from .gossip import WINDOW
from .manifest import Route, Transition

_FAR: Final = WINDOW * 3 // 4
"""Transitions this many versions old are about to be forgotten by everyone."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A transition to be made to the newest version. `source` is empty for a full one."""

    kind: Route
    source: bytes


def due_anchors(
    head: bytes,
    version: int,
    transitions: Iterable[Transition],
    *,
    frozen: tuple[bytes, int] | None,
    anchor_every: int,
    full_every: int,
) -> list[Anchor]:
    """What is due now that `version` with manifest `head` is the newest, most useful first.

    `frozen` is (manifest, version) of the last anchor, whose bytes the publisher still holds. 0 for either interval
    means never, but a full one is made in any case when the way in from nothing is gone or costs over twice its
    full transition, or is about to be forgotten.
    """
    known = list(transitions)
    due = []
    if _full_due(head, version, known, full_every):
        due.append(Anchor(Route.FULL, b""))
    if not anchor_every:
        return due
    for base in [each for each in known if each.kind is Route.BASE]:
        skips = [each.version for each in known if each.kind is Route.SKIP and each.source == base.target]
        if version - max([base.version, *skips]) >= anchor_every:
            due.append(Anchor(Route.SKIP, base.target))
    if frozen is not None and version - frozen[1] >= anchor_every:
        due.append(Anchor(Route.SKIP, frozen[0]))
    return due


def _full_due(head: bytes, version: int, known: list[Transition], full_every: int) -> bool:
    fulls = [each for each in known if each.kind is Route.FULL]
    if not fulls:
        # A stream that began with a base has no full one until somebody asks for it by `full_every`.
        return bool(full_every) and any(version - each.version >= full_every for each in known)
    if full_every and version - max(each.version for each in fulls) >= full_every:
        return True
    way_in = plan_route(frozenset(), head, known, _size)
    if way_in is None:
        return True
    return sum(_size(leg) for leg in way_in) > 2 * _size(way_in[0]) or version - way_in[0].version >= _FAR


def _size(transition: Transition) -> int:
    return sum(part.size for part in transition.parts)
