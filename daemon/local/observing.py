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
from .errors import UnknownStreamError
from .model import StreamStatus

STREAM: Final = "/v1/streams/{stream}"
LOOK_S: Final = 0.5
"""How often a stream's state is compared with what was last sent."""
HEARTBEAT_S: Final = 15.0
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class VersionLife(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a version on this node."""

    stream: str
    epoch: int
    version: int
    trace: str
    """The same on every node, and in its log lines."""
    moments: dict[str, float]
    """Unix seconds by name: announced, first_byte, complete, committed, verified."""


class LifeList(msgspec.Struct, frozen=True):
    """Answer of GET …/lives."""

    lives: list[VersionLife]


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
            ),
            Endpoint("GET", "/metrics", "Prometheus metrics", self.metrics, Nothing, Nothing),
        )

    async def lives(self, call: Call[Nothing, Nothing]) -> LifeList:
        """GET …/lives."""
        return LifeList(self._service.lives(call.stream))

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
