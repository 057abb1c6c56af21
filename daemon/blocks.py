"""Blocks of this host's slots, for peers: read from a clean slot, and verified before they leave."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..protocol.ids import digest
from ..storage.errors import SlotGoneError, StorageError
from ..storage.slots import Slot
from ..storage.verify import DIGEST_BYTES, Block
from .replica import Replica

IDLE_S: Final = 5.0
"""A slot that peers read is kept for so long after their last request, so that they can read it to its end."""

LONGEST_S: Final = 300.0
"""However long peers take: after this the slot goes on to newer versions."""


@dataclass(slots=True)
class _Reading:
    """One slot that peers are reading. Times are monotonic."""

    replica: Replica
    slot: Slot
    digests: bytes
    blocks: list[Block]
    began_s: float
    last_s: float
    pinned: bool = True


class BlockReader:
    """Reads blocks for peers. Its methods are called on the event loop."""

    def __init__(self, replicas: Mapping[str, Replica]) -> None:
        self._replicas = replicas
        self._reading: dict[bytes, _Reading] = {}

    async def read(self, manifest: bytes, block: int) -> bytes | None:
        """A block of a version, verified; None when no clean slot here holds it."""
        reading = self._reading.get(manifest) or await self._begin(manifest)
        if reading is None or block >= len(reading.blocks):
            return None
        reading.last_s = time.monotonic()
        try:
            return await asyncio.to_thread(_read, reading, block)
        except (StorageError, OSError):
            self._end(manifest)
            return None

    async def _begin(self, manifest: bytes) -> _Reading | None:
        for replica in self._replicas.values():
            slot = replica.slots.find(manifest)
            if slot is None:
                continue
            digests = await replica.digests_of(manifest)
            if digests is None or manifest in self._reading:
                return self._reading.get(manifest)
            try:
                replica.slots.pin(slot)
            except SlotGoneError:
                return None
            now_s = time.monotonic()
            reading = _Reading(replica, slot, digests, list(slot.layout.blocks()), now_s, now_s)
            self._reading[manifest] = reading
            asyncio.get_running_loop().call_later(IDLE_S, self._look, manifest, reading)
            return reading
        return None

    def _look(self, manifest: bytes, reading: _Reading) -> None:
        """Let go of a slot that nobody reads any more, or that was read for too long."""
        if self._reading.get(manifest) is not reading:
            return
        now_s = time.monotonic()
        if now_s - reading.last_s >= IDLE_S:
            self._end(manifest)
            return
        if reading.pinned and now_s - reading.began_s >= LONGEST_S:
            self._unpin(reading)
        asyncio.get_running_loop().call_later(IDLE_S, self._look, manifest, reading)

    def _end(self, manifest: bytes) -> None:
        reading = self._reading.pop(manifest, None)
        if reading is not None and reading.pinned:
            self._unpin(reading)

    @staticmethod
    def _unpin(reading: _Reading) -> None:
        reading.pinned = False
        with contextlib.suppress(SlotGoneError):
            reading.replica.slots.unpin(reading.slot)
        reading.replica.slot_freed()


def _read(reading: _Reading, block: int) -> bytes | None:
    with reading.replica.slots.hold(reading.slot) as mapped:
        data = mapped.view(*reading.blocks[block]).tobytes()
    return data if digest(data) == reading.digests[DIGEST_BYTES * block :][:DIGEST_BYTES] else None
