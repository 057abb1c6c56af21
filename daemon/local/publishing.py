"""Endpoint that publishes a checkpoint directory and tells how far it is, line by line."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from aiohttp import web

from ...protocol.errors import MessageError
from ...protocol.ids import check_stream_name
from .endpoint import Call, Endpoint, Nothing
from .errors import (
    BadSourceError,
    InvalidRequestError,
    LocalError,
    NotPublisherError,
    PublishBusyError,
    StorageFailedError,
    UnknownStreamError,
    VersionNotRisingError,
)
from .model import PublishLine, PublishProgress, PublishRequest
from .problems import told_of
from .rights import Right
from .service import LocalService
from .streams import STREAM

NDJSON: Final = "application/x-ndjson"
_PROBLEMS: Final = (
    UnknownStreamError,
    InvalidRequestError,
    NotPublisherError,
    VersionNotRisingError,
    PublishBusyError,
    BadSourceError,
    StorageFailedError,
)


class PublishEndpoint:
    """POST …/versions."""

    def __init__(self, service: LocalService) -> None:
        self._service = service

    def table(self) -> tuple[Endpoint[Any, Any], ...]:
        """The endpoint."""
        return (
            Endpoint(
                "POST",
                STREAM + "/versions",
                "Publish a checkpoint directory; NDJSON: progress lines, then one result or problem",
                self.publish,
                Nothing,
                PublishRequest,
                PublishLine,
                problems=_PROBLEMS,
                right=Right.PUBLISH,
                media=NDJSON,
            ),
        )

    async def publish(self, call: Call[Nothing, PublishRequest]) -> web.StreamResponse:
        """Publish. What fails before there is any progress has its own status; later problems are the last line.

        A caller that hangs up cancels the publish.
        """
        if not call.body.directory.startswith("/"):
            raise InvalidRequestError(
                f"body: `directory` must be an absolute path, not {call.body.directory!r}", remedy="give the whole path"
            )
        try:
            check_stream_name(call.stream)
        except MessageError as error:
            raise InvalidRequestError(str(error)) from None
        feed = _Feed()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self._run(call, feed))
            first = await feed.next()
            if not isinstance(first, LocalError):
                try:
                    return await _stream(call.request, feed, first)
                except ConnectionError:
                    running.cancel()
        raise first if isinstance(first, LocalError) else ConnectionResetError("the caller hung up")

    async def _run(self, call: Call[Nothing, PublishRequest], feed: _Feed) -> None:
        """The publish itself; its end, good or bad, goes into the feed."""
        try:
            feed.end(PublishLine(result=await self._service.publish(call.stream, call.body, feed.progress)))
        except Exception as error:  # not swallowed: it is the last thing the caller hears, and a bug is logged whole
            folder = call.body.directory
            feed.end(told_of(error, f"publishing {folder}", "publish failed", stream=call.stream, directory=folder))


class _Feed:
    """What the caller has not been told yet: the newest progress only, then the end."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._progress: PublishProgress | None = None
        self._end: PublishLine | LocalError | None = None

    def progress(self, progress: PublishProgress) -> None:
        self._progress = progress
        self._news.set()

    def end(self, end: PublishLine | LocalError) -> None:
        self._end = end
        self._news.set()

    async def next(self) -> PublishLine | LocalError:
        """The next line. A LocalError, or a line with a result, is the last."""
        await self._news.wait()
        if self._progress is not None:
            line = PublishLine(progress=self._progress)
            self._progress = None
            if self._end is None:
                self._news.clear()
            return line
        assert self._end is not None
        return self._end


async def _stream(request: web.Request, feed: _Feed, line: PublishLine | LocalError) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-store"})
    await response.prepare(request)
    while True:
        ending = isinstance(line, LocalError) or line.result is not None
        if isinstance(line, LocalError):
            line = PublishLine(problem=line.problem)
        await response.write(msgspec.json.encode(line) + b"\n")
        if ending:
            await response.write_eof()
            return response
        line = await feed.next()
