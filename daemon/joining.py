"""Joining by blocks: a version into which no transition leads this node is fetched as plain blocks from peers' slots.

Every block is verified by the signed digest table before it is written, so the version is proven when it is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import structlog

from ..protocol.errors import ProtocolError
from ..protocol.ids import short
from ..protocol.layout import Layout
from ..protocol.manifest import Manifest
from ..storage.building import Building
from ..storage.errors import StorageError
from ..storage.slots import Slot
from .fleet.fleet import Fleet
from .replica import Replica

_log: Final = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
PATIENCE_LOOKS: Final = 5
"""How often in a row there must be no way in: what is announced arrives in pieces."""

RETRY_S: Final = 15.0
BATCH_BLOCKS: Final = 16
"""Blocks fetched at a time: bounds the memory they take."""


class Joining:
    """Gets one stream's first version in blocks where it must. `run` is its task."""

    def __init__(self, replica: Replica, fleet: Fleet) -> None:
        self._replica = replica
        self._fleet = fleet

    async def run(self) -> None:
        """Look until cancelled whether a version has to be fetched in blocks."""
        stuck = 0
        while True:
            await asyncio.sleep(LOOK_S)
            stuck = stuck + 1 if self._is_stuck() else 0
            if stuck < PATIENCE_LOOKS:
                continue
            try:
                await self._join()
            except (StorageError, ProtocolError, OSError) as error:
                _log.warning("not fetched in blocks", stream=self._replica.stream, reason=str(error))
                self._replica.report(f"no transition leads here, and blocks could not be had: {error}")
                await asyncio.sleep(RETRY_S)
            finally:
                self._fleet.want_lists(self._replica.stream, frozenset())
            stuck = 0

    def _is_stuck(self) -> bool:
        """Whether nothing is here, and every way in is closed or costs more than the whole version."""
        replica, stream = self._replica, self._replica.stream
        head = self._fleet.swarm.gossip.head(stream)
        if head is None or replica.slots.slots() or replica.rebuilding is not None or replica.compares_base:
            return False
        cost = self._fleet.view.way_in_bytes(stream)
        return (cost is None or cost > head.size) and bool(self._holders(stream))

    def _holders(self, stream: str) -> list[object]:
        manifest = self._fleet.swarm.gossip.head_digest(stream)
        return [] if manifest is None else list(self._fleet.swarm.blocks.holders(manifest))

    async def _join(self) -> None:
        replica, fleet, stream = self._replica, self._fleet, self._replica.stream
        name = fleet.swarm.gossip.head_digest(stream)
        manifest = fleet.view.manifest(name) if name is not None else None
        if name is None or manifest is None:
            return
        fleet.want_lists(stream, frozenset((name,)))
        digests = layout = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                while digests is None or layout is None:
                    await asyncio.sleep(LOOK_S / 4)
                    digests, layout = await replica.digests_of(name), await replica.layout_of(name)
        if digests is None or layout is None:
            raise StorageError(f"the lists of version {manifest.version} are not to be had")
        _log.info("fetching blocks", stream=stream, version=manifest.version, manifest=short(name))
        async with replica.quietly():
            if not replica.slots.slots():
                slot = await self._build(manifest, name, layout, digests)
                _log.info("committed", stream=stream, version=slot.version, manifest=short(name), how="blocks")
                replica.failure = None
                replica.committed(slot)

    async def _build(self, manifest: Manifest, name: bytes, layout: Layout, digests: bytes) -> Slot:
        building = await asyncio.to_thread(self._replica.slots.begin, layout, None)
        try:
            blocks = list(layout.blocks())
            for first in range(0, len(blocks), BATCH_BLOCKS):
                got = await self._fetch(manifest, name, range(first, min(first + BATCH_BLOCKS, len(blocks))), digests)
                await asyncio.to_thread(_write, building, blocks, got)
            self._replica.rebuilt(name)
            return await asyncio.to_thread(
                building.commit, manifest.epoch, manifest.version, name, manifest.label, proven=True
            )
        except BaseException:
            await asyncio.shield(asyncio.to_thread(building.abort))
            raise

    async def _fetch(self, manifest: Manifest, name: bytes, wanted: range, digests: bytes) -> dict[int, bytes]:
        got = await self._fleet.blocks.fetch(name, wanted, digests)
        if len(got) < len(wanted):
            raise StorageError(f"no peer gives blocks of version {manifest.version} any more")
        return got


def _write(building: Building, blocks: list[tuple[int, int, int]], got: dict[int, bytes]) -> None:
    for number, data in got.items():
        building.mapped.write(*blocks[number], data)
