"""The typed client for event loops: the same questions as `client`, on aiohttp.

async with AsyncClient() as client:
    async for version in client.follow("qwen"):
        async with client.lease("qwen") as lease:
            await load(lease.path)
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from .aio_connection import AsyncConnection
from .aio_lease import AsyncLease
from .client import LONG_POLL_S
from .connection import decode, default_socket, stream_path
from .errors import ConnectionLostError, LocalError, NotReadyError, VersionNotReadyError
from .model import (
    PeerList,
    PeerStatus,
    PublishLine,
    PublishProgress,
    PublishRequest,
    PublishResult,
    Readiness,
    StreamList,
    StreamStatus,
    VersionInfo,
    VersionList,
)


class AsyncClient:
    """One daemon, as `Client` addresses it; an async context manager that keeps connections open."""

    def __init__(self, socket: Path | str | None = None, *, token: str = "", timeout_s: float = 30.0) -> None:
        self._connection = AsyncConnection(default_socket() if socket is None else socket, token, timeout_s)
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        await self._connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    async def streams(self) -> list[StreamStatus]:
        """The streams that the node follows."""
        return (await self._connection.call("GET", "/v1/streams", StreamList)).streams

    async def status(self, stream: str) -> StreamStatus:
        """State, current version, head, lag and progress of a stream."""
        return await self._connection.call("GET", stream_path(stream), StreamStatus)

    async def version(self, stream: str) -> VersionInfo:
        """The current version. Raises VersionNotReadyError when there is none yet."""
        return await self._connection.call("GET", stream_path(stream, "version"), VersionInfo)

    async def versions(self, stream: str) -> list[VersionInfo]:
        """Committed versions that the node knows, newest first."""
        return (await self._connection.call("GET", stream_path(stream, "versions"), VersionList)).versions

    async def wait(
        self, stream: str, at_least: int = 0, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> VersionInfo | None:
        """The current version as soon as it is `at_least` that, or None after `timeout_s` (None: never give up)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = LONG_POLL_S if deadline is None else max(0.0, min(LONG_POLL_S, deadline - time.monotonic()))
            query = {"min": at_least, "wait": left} | ({} if epoch is None else {"epoch": epoch})
            try:
                path = stream_path(stream, "version")
                return await self._connection.call(
                    "GET", path, VersionInfo, query=query, timeout_s=left + self._timeout_s
                )
            except VersionNotReadyError:
                if deadline is not None and time.monotonic() >= deadline:
                    return None

    async def find(self, stream: str, label: str, timeout_s: float = 0.0) -> VersionInfo | None:
        """The newest version with a label that was committed here, or None when there is none after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, min(LONG_POLL_S, deadline - time.monotonic()))
            query = {"label": label, "wait": left}
            try:
                path = stream_path(stream, "version")
                return await self._connection.call(
                    "GET", path, VersionInfo, query=query, timeout_s=left + self._timeout_s
                )
            except VersionNotReadyError:
                if time.monotonic() >= deadline:
                    return None

    async def follow(self, stream: str) -> AsyncIterator[VersionInfo]:
        """The current version, then each newer one as it is committed, without end; some may be skipped."""
        version = await self.wait(stream)
        while version is not None:  # without a timeout it never is
            yield version
            version = await self.wait(stream, version.version + 1, epoch=version.epoch)

    def lease(self, stream: str, version: int | None = None, ttl_s: float = 60.0) -> AsyncLease:
        """An async context manager that holds a version's directory, the current one without a number."""
        return AsyncLease(self._connection, stream, version, ttl_s)

    async def publish(
        self,
        directory: Path | str,
        *,
        stream: str,
        version: int | None = None,
        label: str = "",
        base: bool = False,
        progress: Callable[[PublishProgress], None] | None = None,
    ) -> PublishResult:
        """Publish a checkpoint directory; being cancelled abandons it. Raises what `Client.publish` raises."""
        folder = os.path.abspath(directory)  # noqa: PTH100, ASYNC240 -- touches no disk
        request = PublishRequest(directory=folder, version=version, label=label, base=base)
        async with self._connection.exchange(
            "POST", stream_path(stream, "versions"), body=request, timeout_s=None
        ) as response:
            async for text in response.content:
                line = decode(text, PublishLine)
                if line.problem is not None:
                    raise LocalError.of(line.problem)
                if line.result is not None:
                    return line.result
                if line.progress is not None and progress is not None:
                    progress(line.progress)
        raise ConnectionLostError(
            "the daemon went away during the publish; its list of versions tells what became of it"
        )

    async def peers(self) -> list[PeerStatus]:
        """The other nodes, as this one sees them."""
        return (await self._connection.call("GET", "/v1/peers", PeerList)).peers

    async def ready(self) -> Readiness:
        """Whether the node serves current weights, and if not, why."""
        try:
            return await self._connection.call("GET", "/readyz", Readiness)
        except NotReadyError as error:
            return Readiness(ready=False, reasons=[str(reason) for reason in error.context.get("reasons", [])])
