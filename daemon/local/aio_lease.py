"""A lease as its holder in an event loop sees it: entered and left with `async with`, renewed by a task in between."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from .aio_connection import AsyncConnection
from .connection import stream_path
from .errors import LeaseGoneError, LocalError, UnknownLeaseError
from .lease import RENEWALS_PER_TTL, Hold
from .model import LeaseInfo, LeaseRequest, RenewRequest


class AsyncLease(Hold):
    """A hold on one version's directory, from entering the context to leaving it; leaving raises as `Lease` does."""

    def __init__(self, connection: AsyncConnection, stream: str, version: int | None, ttl_s: float) -> None:
        super().__init__()
        self._connection = connection
        self._stream = stream
        self._wanted = LeaseRequest(version=version, ttl_s=ttl_s)
        self._renewer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        path = stream_path(self._stream, "leases")
        self._info = await self._connection.call("POST", path, LeaseInfo, body=self._wanted)
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
            await self._connection.call("DELETE", stream_path(self._stream, "leases", self.info.lease), dict)
        except LocalError:
            if error is None:
                raise

    async def _renew(self) -> None:
        ttl_s = self._wanted.ttl_s
        path = stream_path(self._stream, "leases", self.info.lease)
        good_until = time.monotonic() + ttl_s
        while True:
            await asyncio.sleep(ttl_s / RENEWALS_PER_TTL)
            asked = time.monotonic()
            try:
                self._info = await self._connection.call("PUT", path, LeaseInfo, body=RenewRequest(ttl_s=ttl_s))
                good_until = asked + ttl_s
            except (LeaseGoneError, UnknownLeaseError) as error:
                self._lost = error
                return
            except LocalError as error:  # the daemon may be back before the lease runs out
                if time.monotonic() >= good_until:
                    self._lost = error
                    return
