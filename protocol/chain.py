"""Routes: how to get from what a host holds to the version it wants.

Transitions are the edges of a graph whose nodes are manifests and "nothing". The cheapest route is the one with
the fewest bytes still to fetch; among equals the one with fewer bytes to apply, then with fewer legs.
"""

from __future__ import annotations

import heapq
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
    done: set[bytes] = set()
    queue: list[tuple[tuple[int, int, int], bytes, tuple[Transition, ...]]] = [
        ((0, 0, 0), start, ()) for start in sorted({NOTHING, *held})
    ]
    heapq.heapify(queue)
    while queue:
        (fetch, apply, legs), at, route = heapq.heappop(queue)
        if at == target:
            return route
        if at in done:
            continue
        done.add(at)
        for leg in edges.get(at, ()):
            if leg.target not in done:
                size = sum(part.size for part in leg.parts)
                cost = (fetch + missing_bytes(leg), apply + size, legs + 1)
                heapq.heappush(queue, (cost, leg.target, (*route, leg)))
    return None
