"""Ledger: what the fleet has learned goes into the catalog, and what newer objects replace leaves it, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from ...protocol.messages import ObjectKind
from ...storage.catalog import Catalog
from ...storage.errors import StorageError
from ..threads import finish

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
        """Write until cancelled; what is known by then is written, too."""
        try:
            while True:
                await self._due.wait()
                await finish(asyncio.to_thread(self._write, *self._take()))
        finally:
            self._write(*self._take())

    def _take(self) -> tuple[list[tuple[ObjectKind, bytes, bytes]], list[bytes]]:
        """What is to be written, and what is to be forgotten, since the last call."""
        self._due.clear()
        taken = self._new, self._old
        self._new, self._old = [], []
        return taken

    def _write(self, new: list[tuple[ObjectKind, bytes, bytes]], old: list[bytes]) -> None:
        try:
            if new:
                self._catalog.put_objects(new)
            if old:
                self._catalog.forget(old)
        except StorageError as error:
            # What is not kept is gossiped again after a restart; the node goes on with what it knows.
            _log.error("catalog not written", reason=str(error))
