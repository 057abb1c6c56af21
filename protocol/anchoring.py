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


def registered_bases(transitions: Iterable[Transition]) -> dict[bytes, Transition]:
    """The newest lists-only record of each registered base, by the base's manifest."""
    found: dict[bytes, Transition] = {}
    for each in transitions:
        if each.kind is Route.BASE and (each.target not in found or _order(found[each.target]) < _order(each)):
            found[each.target] = each
    return found


def due_renewals(order: tuple[int, int], transitions: Iterable[Transition]) -> list[Transition]:
    """Records of bases that are to be signed again, for the newest version (epoch, version): before all forget them.

    Their lists say which bytes a base has, so a host that holds it needs them however old the base is.
    """
    epoch, version = order
    bases = registered_bases(transitions).values()
    return [each for each in bases if each.epoch < epoch or version - each.version >= _FAR]


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
    means never, but what a complete way in lacks is made in any case: a full one when the way in from nothing is gone
    or costs over twice its full transition, a skip when that from a base is gone, and either when it is about to be
    forgotten.
    """
    known = list(transitions)
    bases = registered_bases(known)
    due = []
    if _full_due(head, version, known, full_every, has_base=bool(bases)):
        due.append(Anchor(Route.FULL, b""))
    due += [Anchor(Route.SKIP, base) for base in bases if _skip_due(base, head, version, known, anchor_every)]
    if anchor_every and frozen is not None and version - frozen[1] >= anchor_every:
        due.append(Anchor(Route.SKIP, frozen[0]))
    return due


def _skip_due(base: bytes, head: bytes, version: int, known: list[Transition], anchor_every: int) -> bool:
    """Whether the way in from one base has to be made anew."""
    way_in = plan_route(frozenset((base,)), head, [each for each in known if each.kind is not Route.FULL], size_of)
    if way_in is None:
        return True
    if not way_in:
        return False  # the base is the newest version
    if version - way_in[0].version >= _FAR:
        return True
    began = min(each.version for each in known if base in {each.target, each.source})
    skips = [each.version for each in known if each.kind is Route.SKIP and each.source == base]
    return bool(anchor_every) and version - max([began, *skips]) >= anchor_every


def _full_due(head: bytes, version: int, known: list[Transition], full_every: int, *, has_base: bool) -> bool:
    fulls = [each for each in known if each.kind is Route.FULL]
    if not fulls and has_base:
        # A stream that began with a base has no full one until somebody asks for it by `full_every`: who has nothing
        # fetches blocks.
        return bool(full_every) and any(version - each.version >= full_every for each in known)
    if full_every and fulls and version - max(each.version for each in fulls) >= full_every:
        return True
    way_in = plan_route(frozenset(), head, known, size_of)
    if way_in is None:
        return True
    return sum(size_of(leg) for leg in way_in) > 2 * size_of(way_in[0]) or version - way_in[0].version >= _FAR


def _order(transition: Transition) -> tuple[int, int]:
    return transition.epoch, transition.version


def size_of(transition: Transition) -> int:
    """Sealed bytes of a transition's chunks."""
    return sum(part.size for part in transition.parts)
