"""The typed client for event loops: the same questions as `client`, on aiohttp.

async with AsyncClient() as client:
    async for version in client.follow("qwen"):
        async with client.lease("qwen") as lease:
            await load(lease.path)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import asks
from .aio_connection import AsyncConnection
from .aio_lease import AsyncLease
from .connection import default_socket
from .errors import NotReadyError, VersionNotReadyError
from .model import (
    NodeStatus,
    PeerStatus,
    PublishProgress,
    PublishResult,
    Readiness,
    SlotCheck,
    StreamStatus,
    VersionInfo,
    VersionLife,
)

if TYPE_CHECKING:
    from .delta_file import Delta


class AsyncClient:
    """One daemon, as `Client` addresses it; an async context manager that keeps connections open."""

    def __init__(self, socket: Path | str | None = None, *, token: str = "", timeout_s: float = 30.0) -> None:
        self._connection = AsyncConnection(default_socket() if socket is None else socket, token, timeout_s)

    async def __aenter__(self) -> Self:
        await self._connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    async def streams(self) -> list[StreamStatus]:
        """The streams that the node follows."""
        return (await self._connection.ask(asks.streams())).streams

    async def status(self, stream: str) -> StreamStatus:
        """State, current version, head, lag and progress of a stream."""
        return await self._connection.ask(asks.status(stream))

    async def version(self, stream: str) -> VersionInfo:
        """The current version. Raises VersionNotReadyError when there is none yet."""
        return await self._connection.ask(asks.version(stream))

    async def versions(self, stream: str) -> list[VersionInfo]:
        """Committed versions that the node knows, newest first."""
        return (await self._connection.ask(asks.versions(stream))).versions

    async def lives(self, stream: str) -> list[VersionLife]:
        """What happened to each version on this node, and when; newest first."""
        return (await self._connection.ask(asks.lives(stream))).lives

    async def wait(
        self, stream: str, at_least: int = 0, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> VersionInfo | None:
        """The current version as soon as it is `at_least` that, or None after `timeout_s` (None: never give up)."""
        return await self._wait(asks.Waiting(stream, at_least, timeout_s, epoch))

    async def find(self, stream: str, label: str, timeout_s: float = 0.0) -> VersionInfo | None:
        """The newest version with a label that was committed here, or None when there is none after `timeout_s`."""
        return await self._wait(asks.Waiting(stream, 0, timeout_s, label=label))

    async def follow(self, stream: str) -> AsyncIterator[VersionInfo]:
        """The current version, then each newer one as it is committed, without end; some may be skipped."""
        version = await self.wait(stream)
        while version is not None:  # without a timeout it never is
            yield version
            version = await self.wait(stream, version.version + 1, epoch=version.epoch)

    def lease(
        self, stream: str, version: int | None = None, ttl_s: float = 60.0, *, group: Sequence[str] = ()
    ) -> AsyncLease:
        """An async context manager that holds a version's directory, as `Client.lease`."""
        return AsyncLease(self._connection, stream, version, ttl_s, group)

    async def publish(
        self,
        directory: Path | str,
        *,
        stream: str,
        version: int | None = None,
        label: str = "",
        base: bool = False,
        streamed: bool = True,
        progress: Callable[[PublishProgress], None] | None = None,
    ) -> PublishResult:
        """Publish a checkpoint directory; being cancelled abandons it. Raises what `Client.publish` raises."""
        publishing = asks.Publishing(directory, stream, version, label, progress, base=base, streamed=streamed)
        async with self._connection.exchange(publishing.ask) as response:
            async for line in response.content:
                if publishing.read(line):
                    break
        return publishing.result

    async def delta(self, stream: str, start: int, end: int | None = None) -> Delta:
        """What changes from one version to another, as `Client.delta`."""
        from .delta_file import buffer_for, whole  # brings numpy

        async with self._connection.exchange(asks.delta(stream, start, end)) as response:
            buffer = buffer_for(response.content_length)
            rest = buffer.data
            async for chunk in response.content.iter_any():
                rest[: len(chunk)] = chunk
                rest = rest[len(chunk) :]
        return whole(buffer, len(rest))

    async def verify(self, stream: str, *, repair: bool = False) -> list[SlotCheck]:
        """Have every slot of a stream held against its digest table, and wrong blocks mended with `repair`."""
        return (await self._connection.ask(asks.verify(stream, repair=repair))).slots

    async def peers(self) -> list[PeerStatus]:
        """The other nodes, as this one sees them."""
        return (await self._connection.ask(asks.peers())).peers

    async def node(self) -> NodeStatus:
        """The node itself, and what is wrong with it."""
        return await self._connection.ask(asks.node())

    async def ready(self) -> Readiness:
        """Whether the node serves current weights, and if not, why."""
        try:
            return await self._connection.ask(asks.ready())
        except NotReadyError as error:
            return asks.unready(error)

    async def _wait(self, waiting: asks.Waiting) -> VersionInfo | None:
        while True:
            try:
                return await self._connection.ask(waiting.turn())
            except VersionNotReadyError:
                if waiting.over:
                    return None
