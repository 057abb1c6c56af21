"""Local base: weights that the host has already, held against every version until one is the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from ..protocol.manifest import Transition
from ..storage.base import BaseSource, verify_base
from ..storage.chunks import ChunkStore
from ..storage.errors import ChunkCorruptError, ChunkMissingError, StorageError
from .fleet.view import View
from .transition import read_digests, read_layout

_log: Final = structlog.get_logger(__name__)


class LocalBase:
    """The configured base directory of one stream, None without one. Its methods are called on the event loop."""

    def __init__(self, stream: str, path: Path | None, view: View, store: ChunkStore, threads: int) -> None:
        self._stream = stream
        self._path = path
        self._view = view
        self._store = store
        self._threads = threads
        self._tried: set[bytes] = set()
        self.source: BaseSource | None = None
        """The base, once a version was found to be the same."""

    @property
    def is_open(self) -> bool:
        """Whether it is yet to be found out which version the base is."""
        return self._path is not None and self.source is None

    async def compare(self) -> bool:
        """Hold the base against every version whose lists are here. Whether the question is settled by that.

        Raises ChunkMissingError or ChunkCorruptError when the store lost a list: it is fetched again.
        """
        path = self._path
        if path is None or self.source is not None:
            return True
        for transition in self._view.listed(self._stream):
            if transition.attempt not in self._tried and await self._is_same(path, transition):
                return True
        if self._view.lists_pending(self._stream):
            return False
        self._path = None  # every version was compared: fetch from nothing
        return True

    async def _is_same(self, path: Path, transition: Transition) -> bool:
        self._tried.add(transition.attempt)
        try:
            self.source = await asyncio.to_thread(self._verify, path, transition)
        except (ChunkMissingError, ChunkCorruptError):
            self._tried.discard(transition.attempt)  # it says nothing about the base
            raise
        except StorageError as error:
            _log.info("base does not serve", stream=self._stream, version=transition.version, reason=str(error))
            return False
        _log.info("base serves", stream=self._stream, version=transition.version, base=str(path))
        return True

    def _verify(self, path: Path, transition: Transition) -> BaseSource:
        layout, digests = read_layout(self._store, transition), read_digests(self._store, transition)
        return verify_base(path, layout, digests, transition.target, threads=self._threads)
