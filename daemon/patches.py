"""Patches: what transitions exist, what they change, and which of their chunks are on the way, for those who watch."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict
from typing import Final

from ..protocol.codec.record import SPARSE, Reader, Record
from ..protocol.elements import BITS
from ..protocol.layout import Layout, Role
from ..protocol.manifest import Route, Transition
from ..protocol.ranges import to_ranges
from ..storage.chunks import ChunkStore
from ..storage.errors import ChunkMissingError
from .fleet.fleet import Fleet
from .local.errors import UnknownVersionError
from .local.observing import ChunkMap, GroupChange, PatchContents, PatchInfo
from .transition import chunk_readers, read_layout

MAX_READ_BYTES: Final = 256 * 1024 * 1024
"""A larger patch is not opened only to look at it."""
_KEPT: Final = 64
_FROM_DIRS: Final = "compare the two checkpoints with 'patchswarm inspect --dirs OLD NEW'"
_NUMBER: Final = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")


class Patches:
    """Answers about the transitions of one node's streams. Its methods are called on the event loop."""

    def __init__(self, fleet: Fleet, store: ChunkStore) -> None:
        self._fleet = fleet
        self._store = store
        self._read: OrderedDict[bytes, list[GroupChange]] = OrderedDict()

    def known(self, stream: str) -> list[PatchInfo]:
        """Every transition that is known, newest version first."""
        here = {each.attempt for each in self._fleet.view.complete(stream)}
        found = [self._info(each, here=each.attempt in here) for each in self._fleet.swarm.gossip.routes(stream)]
        return sorted(found, key=lambda info: (info.epoch, info.version, info.kind), reverse=True)

    async def contents(self, stream: str, version: int) -> PatchContents:
        """What the patch to a version changes; of several, the one that is cheapest to read."""
        found = [each for each in self._fleet.view.complete(stream) if each.version == version]
        if not found:
            raise UnknownVersionError(
                f"no patch to version {version} of {stream} is complete on this node", remedy=_FROM_DIRS
            )
        transition = min(found, key=_size)
        if _size(transition) > MAX_READ_BYTES:
            raise UnknownVersionError(
                f"the patch to version {version} of {stream} is too large to be looked into", remedy=_FROM_DIRS
            )
        groups = self._read.get(transition.attempt)
        if groups is None:
            try:
                groups = await asyncio.to_thread(self._look_into, transition)
            except ChunkMissingError:
                raise UnknownVersionError(
                    f"the patch to version {version} of {stream} was just deleted", remedy=_FROM_DIRS
                ) from None
            self._read[transition.attempt] = groups
            if len(self._read) > _KEPT:
                self._read.popitem(last=False)
        return PatchContents(patch=self._info(transition, here=True), groups=groups)

    def fetching(self, stream: str) -> list[ChunkMap]:
        """What of the way to the newest version is not complete, oldest version first."""
        series = self._fleet.swarm.fetch.stock.series
        legs = [series[attempt] for attempt in self._fleet.view.planned(stream) if attempt in series]
        return [
            ChunkMap(
                version=leg.version[1],
                chunks=len(leg.chunks),
                here=list(to_ranges(leg.have.data)),
                asked=list(to_ranges(leg.asked.data & ~leg.have.data)),
            )
            for leg in sorted(legs, key=lambda leg: leg.version)
            if not leg.complete()
        ]

    def _info(self, transition: Transition, *, here: bool) -> PatchInfo:
        manifest = self._fleet.view.manifest(transition.target)
        return PatchInfo(
            epoch=transition.epoch,
            version=transition.version,
            kind=Route(transition.kind).name.lower(),
            chunks=sum(part.count for part in transition.parts),
            size_bytes=_size(transition),
            full_bytes=manifest.size if manifest else 0,
            here=here,
        )

    def _look_into(self, transition: Transition) -> list[GroupChange]:
        """Read the heads of all records. In a thread."""
        layout = read_layout(self._store, transition)
        changed: Counter[int] = Counter()
        for read in chunk_readers(self._store, transition):
            reader = Reader(read())
            tables = reader.tables()
            while not reader.done:
                _count(reader.record(tables), changed)
        return _by_group(layout, changed)


def _size(transition: Transition) -> int:
    return sum(part.size for part in transition.parts)


def _count(record: Record, changed: Counter[int]) -> None:
    """Add a record's changed elements to its regions. A dense record is taken as changed throughout."""
    bits = BITS[record.kind]
    total = record.size * 8 // bits
    events = sum(record.counts) if record.type == SPARSE else total
    for segment in record.segments:
        elements = segment.size * 8 // bits
        changed[segment.region] += round(events * elements / total) if total else 0


def _by_group(layout: Layout, changed: Counter[int]) -> list[GroupChange]:
    elements: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for placed in layout.placed():
        region = placed.region
        if region.role is Role.TENSOR:
            group = _NUMBER.sub("*", region.name)
            elements[group] += region.size * 8 // BITS[region.kind]
            moved[group] += changed[placed.number]
    return [GroupChange(group=group, elements=count, changed=moved[group]) for group, count in elements.items()]
