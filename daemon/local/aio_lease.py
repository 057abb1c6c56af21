"""A lease as its holder in an event loop sees it: entered and left with `async with`, renewed by a task in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from . import asks
from .aio_connection import AsyncConnection
from .errors import LocalError
from .lease import RENEWALS_PER_TTL, Hold


class AsyncLease(Hold):
    """A hold on one version's directory, from entering the context to leaving it; leaving raises as `Lease` does."""

    def __init__(
        self, connection: AsyncConnection, stream: str, version: int | None, ttl_s: float, group: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._connection = connection
        self._wanted = asks.lease(stream, version, ttl_s, group)
        self._ttl_s = ttl_s
        self._renewer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        asked_s = time.monotonic()
        self._took(await self._connection.ask(self._wanted), asked_s, self._ttl_s)
        # Owned by this context: __aexit__ cancels and awaits it. A TaskGroup would wrap the body's exceptions.
        self._renewer = asyncio.create_task(self._renew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._renewer is not None
        self._renewer.cancel()
        await asyncio.wait([self._renewer])
        try:
            self.check()
            await self._connection.ask(asks.release(self.info))
        except LocalError:
            if error is None:
                raise

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / RENEWALS_PER_TTL)
            asked_s = time.monotonic()
            try:
                self._took(await self._connection.ask(asks.renew(self.info, self._ttl_s)), asked_s, self._ttl_s)
            except LocalError as error:
                if self._is_lost(error):
                    return
