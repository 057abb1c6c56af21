"""Endpoints for those who watch: the lives of versions, events as they happen, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web

from .endpoint import Call, Endpoint, Nothing
from .errors import InvalidRequestError, UnknownStreamError, UnknownVersionError
from .model import LifeList, StreamStatus, VersionLife

STREAM: Final = "/v1/streams/{stream}"
LOOK_S: Final = 0.5
"""How often a stream's state is compared with what was last sent."""
HEARTBEAT_S: Final = 15.0
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class PatchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One transition that leads to a version."""

    epoch: int
    version: int
    kind: str
    """step, skip, full or base."""
    chunks: int
    size_bytes: int
    """Of the sealed chunks."""
    full_bytes: int
    """Of the whole checkpoint; 0 when its manifest is not known here."""
    here: bool
    """Whether every chunk of it is on this node."""


class PatchList(msgspec.Struct, frozen=True):
    """Answer of GET …/patches."""

    patches: list[PatchInfo]


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a group of tensors a patch changes. A group has the names that differ in numbers only."""

    group: str
    elements: int
    changed: int


class PatchContents(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET …/patches/{version}: what the newest patch to a version changes.

    Small tensors share records, whose changes are then spread over them by size.
    """

    patch: PatchInfo
    groups: list[GroupChange]


class ChunkMap(msgspec.Struct, frozen=True, kw_only=True):
    """What is on its way of one transition: ranges [first, last] of chunk numbers."""

    version: int
    chunks: int
    here: list[tuple[int, int]]
    asked: list[tuple[int, int]]


class ChunkMaps(msgspec.Struct, frozen=True):
    """Answer of GET …/fetching: of each transition on the way to the newest version that is not complete."""

    fetching: list[ChunkMap]


class Observed(Protocol):
    """The node, as those see it who watch. All raise UnknownStreamError for a stream that is not followed."""

    def status(self, stream: str) -> StreamStatus:
        """One stream."""
        ...

    def lives(self, stream: str) -> list[VersionLife]:
        """What happened to the newest versions, newest first."""
        ...

    def listening(self, stream: str) -> AbstractContextManager[asyncio.Queue[VersionLife]]:
        """A queue that gets a version's life each time something happens to it."""
        ...

    def patches(self, stream: str) -> list[PatchInfo]:
        """The transitions that are known, newest version first."""
        ...

    async def patch(self, stream: str, version: int) -> PatchContents:
        """What a patch changes. Raises UnknownVersionError when no patch to the version is complete here."""
        ...

    def fetching(self, stream: str) -> list[ChunkMap]:
        """What is on its way."""
        ...

    def metrics(self) -> bytes:
        """Everything that is counted, in Prometheus's text format."""
        ...


class ObservingEndpoints:
    """One node, watched."""

    def __init__(self, service: Observed) -> None:
        self._service = service

    def table(self) -> tuple[Endpoint[Any, Any], ...]:
        """The endpoints."""
        unknown = (UnknownStreamError,)
        return (
            Endpoint(
                "GET",
                STREAM + "/lives",
                "What happened to the newest versions on this node, newest first",
                self.lives,
                Nothing,
                Nothing,
                LifeList,
                problems=unknown,
            ),
            Endpoint(
                "GET",
                STREAM + "/events",
                "Server-sent events: 'status' when the stream's state changes, 'version' when something happens to one",
                self.events,
                Nothing,
                Nothing,
                problems=unknown,
                media="text/event-stream",
            ),
            Endpoint(
                "GET",
                STREAM + "/patches",
                "The transitions that are known, newest version first",
                self.patches,
                Nothing,
                Nothing,
                PatchList,
                problems=unknown,
            ),
            Endpoint(
                "GET",
                STREAM + "/patches/{version}",
                "What a patch changes, by group of tensors",
                self.patch,
                Nothing,
                Nothing,
                PatchContents,
                problems=(*unknown, UnknownVersionError, InvalidRequestError),
            ),
            Endpoint(
                "GET",
                STREAM + "/fetching",
                "Which chunks are here, and which are asked for",
                self.fetching,
                Nothing,
                Nothing,
                ChunkMaps,
                problems=unknown,
            ),
            Endpoint("GET", "/metrics", "Prometheus metrics", self.metrics, Nothing, Nothing, media="text/plain"),
        )

    async def lives(self, call: Call[Nothing, Nothing]) -> LifeList:
        """GET …/lives."""
        return LifeList(self._service.lives(call.stream))

    async def patches(self, call: Call[Nothing, Nothing]) -> PatchList:
        """GET …/patches."""
        return PatchList(self._service.patches(call.stream))

    async def patch(self, call: Call[Nothing, Nothing]) -> PatchContents:
        """GET …/patches/{version}."""
        version = call.version
        if version is None:
            raise InvalidRequestError(
                "the path has no number of a version", remedy="name the patch by its version's number"
            )
        return await self._service.patch(call.stream, version)

    async def fetching(self, call: Call[Nothing, Nothing]) -> ChunkMaps:
        """GET …/fetching."""
        return ChunkMaps(self._service.fetching(call.stream))

    async def metrics(self, _call: Call[Nothing, Nothing]) -> web.Response:
        """GET /metrics."""
        return web.Response(body=self._service.metrics(), headers={"Content-Type": METRICS_TYPE})

    async def events(self, call: Call[Nothing, Nothing]) -> web.StreamResponse:
        """GET …/events. The first event is the present state."""
        self._service.status(call.stream)  # an unknown stream is a problem document, not an empty stream of events
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(call.request)
        async for event in self._events(call.stream):
            await response.write(event)
        return response

    async def _events(self, stream: str) -> AsyncIterator[bytes]:
        said: StreamStatus | None = None
        spoke_s = time.monotonic()
        with self._service.listening(stream) as lives:
            while True:
                status = self._service.status(stream)
                if status != said:
                    said = status
                    spoke_s = time.monotonic()
                    yield _event("status", status)
                elif time.monotonic() - spoke_s > HEARTBEAT_S:
                    spoke_s = time.monotonic()
                    yield b": still here\n\n"
                try:
                    async with asyncio.timeout(LOOK_S):
                        life = await lives.get()
                except TimeoutError:
                    continue
                yield _event("version", life)


def _event(name: str, value: msgspec.Struct) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
