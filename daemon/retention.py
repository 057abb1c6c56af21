"""Retention: which transitions' chunks stay on this host, and what is deleted.

Kept are the transitions to the newest versions, whatever a planned route needs, and on the publisher one complete
way in from nothing. A chunk goes when no kept transition names it.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from ..protocol.chain import plan_route
from ..protocol.errors import SealError
from ..protocol.manifest import Route, Transition
from ..storage.chunks import ChunkStore
from ..storage.errors import StorageError
from .transition import chunk_names

_log = structlog.get_logger(__name__)


def surplus(
    transitions: Iterable[Transition],
    head: bytes,
    keep_versions: int,
    *,
    planned: frozenset[bytes],
    publisher: bool,
) -> list[Transition]:
    """Transitions whose chunks need not be kept, oldest first. `planned` are attempts that a route needs.

    Lists-only records (BASE) stay: they are small, and say which bytes a base must have.
    """
    known = sorted(transitions, key=lambda each: (each.epoch, each.version))
    newest = sorted({(each.epoch, each.version) for each in known})[-keep_versions:]
    kept = set(planned)
    if publisher:
        entry = plan_route(frozenset(), head, known, lambda each: sum(part.size for part in each.parts)) or ()
        kept.update(each.attempt for each in entry)
    return [
        each
        for each in known
        if each.kind is not Route.BASE and each.attempt not in kept and (each.epoch, each.version) not in newest
    ]


def delete_chunks(store: ChunkStore, gone: Iterable[Transition], kept: Iterable[Transition]) -> int:
    """Delete the chunks of `gone` that none of `kept` names; returns how many. Blocking."""
    doomed: set[bytes] = set()
    for transition in gone:
        try:
            doomed.update(chunk_names(store, transition))
        except (StorageError, SealError) as error:
            _log.debug("chunks not listed", version=transition.version, reason=str(error))
    for transition in kept:
        if not doomed:
            break
        doomed.difference_update(name for part in transition.parts for ref in part.blobs for name, _ in ref.chunks)
    for name in doomed:
        store.remove(name)
    return len(doomed)
