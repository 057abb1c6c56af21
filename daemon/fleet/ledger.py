"""Ledger: what the fleet has learned goes into the catalog, and what newer objects replace leaves it, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from ...protocol.messages import ObjectKind
from ...storage.catalog import Catalog
from ...storage.errors import StorageError

_log: Final = structlog.get_logger(__name__)


class Ledger:
    """Writes behind. `run` is its task; the rest is called on the event loop."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._new: list[tuple[ObjectKind, bytes, bytes]] = []
        self._old: list[bytes] = []
        self._due = asyncio.Event()

    def keep(self, kind: ObjectKind, digest: bytes, data: bytes) -> None:
        """An object should survive a restart."""
        self._new.append((kind, digest, data))
        self._due.set()

    def forget(self, digests: Iterable[bytes]) -> None:
        """Objects need not survive one any more."""
        self._old += digests
        self._due.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            new, self._new = self._new, []
            old, self._old = self._old, []
            try:
                if new:
                    await asyncio.to_thread(self._catalog.put_objects, new)
                if old:
                    await asyncio.to_thread(self._catalog.forget, old)
            except StorageError as error:
                # What is not kept is gossiped again after a restart; the node goes on with what it knows.
                _log.error("catalog not written", reason=str(error))
