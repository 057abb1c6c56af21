"""Routes: how to get from what a host holds to the version it wants.

Transitions are the edges of a graph whose nodes are manifests and "nothing". The cheapest route is the one with
the fewest bytes still to fetch; among equals the one with fewer bytes to apply, then with fewer legs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from .manifest import Route, Transition

NOTHING: Final = b""


def plan_route(
    held: AbstractSet[bytes],
    target: bytes,
    transitions: Iterable[Transition],
    missing_bytes: Callable[[Transition], int],
    bad: AbstractSet[bytes] = frozenset(),
) -> tuple[Transition, ...] | None:
    """The cheapest legs from any of the manifest digests in `held`, or from nothing, to `target`.

    `missing_bytes` says how much of a transition is not on this host yet; transitions whose attempt is in `bad`
    are left out. Returns () when `target` is held, None when no route is known. Deterministic.
    """
    if target in held:
        return ()
    edges: dict[bytes, list[Transition]] = {}
    for transition in transitions:
        if transition.kind is not Route.BASE and transition.attempt not in bad:
            edges.setdefault(transition.source, []).append(transition)
    came_by: dict[bytes, Transition | None] = {}  # manifest -> last leg of the cheapest route there
    queued = itertools.count()
    queue: list[tuple[tuple[int, int, int], bytes, bytes, int, Transition | None]] = [
        ((0, 0, 0), start, b"", next(queued), None) for start in sorted({NOTHING, *held})
    ]
    while queue:
        # Among equals the attempt decides, which every node sees alike.
        (fetch, apply, legs), at, _, _, last = heapq.heappop(queue)
        if at in came_by:
            continue
        came_by[at] = last
        if at == target:
            return _walk_back(came_by, at)
        for leg in edges.get(at, ()):
            if leg.target not in came_by:
                size = sum(part.size for part in leg.parts)
                cost = (fetch + missing_bytes(leg), apply + size, legs + 1)
                heapq.heappush(queue, (cost, leg.target, leg.attempt, next(queued), leg))
    return None


def _walk_back(came_by: dict[bytes, Transition | None], at: bytes) -> tuple[Transition, ...]:
    route: list[Transition] = []
    while (leg := came_by[at]) is not None:
        route.append(leg)
        at = leg.source
    return tuple(reversed(route))
