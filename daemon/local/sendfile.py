"""From a file to a socket without passing through Python: sendfile(2), beside the event loop's transport.

uvloop has no sendfile, and a plain loop's would block on a cold disk. So a thread moves the bytes while the
socket takes them; when it does not, the thread goes back to the pool and the event loop waits for the reader.
A thread is thus never held by a reader that stalls, and a reader that stalls too long is cut.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from socket import AF_UNIX, SO_SNDBUF, SOL_SOCKET
from typing import Final

from aiohttp import web

_TURN_BYTES: Final = 64 * 1024 * 1024
"""Most that a thread moves for one reader before the next reader's turn."""
_CALL_BYTES: Final = 4 * 1024 * 1024
"""Most per system call, so that a thread looks up often enough to be stopped."""
_BUFFER_BYTES: Final = 1024 * 1024
"""What a unix socket holds for its reader, as far as the system allows: a thread that waits for room is only woken
when three quarters are free, and with the usual 208 KiB the reader then has next to nothing left to read."""
_PATIENCE_MS: Final = 20
"""How long a thread itself waits for the reader: cheaper than a hop to the event loop while the reader keeps up."""


@dataclass(frozen=True)
class Span:
    """`size` bytes from `offset` of an open file."""

    descriptor: int
    offset: int
    size: int


class FileSender:
    """Sends spans of files as bodies of responses. Close it when no response is in flight any more."""

    def __init__(self, *, threads: int = 4, read_timeout_s: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="local-send")
        self._read_timeout_s = read_timeout_s

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True)

    async def send(
        self, request: web.Request, response: web.StreamResponse, span: Span, voided: threading.Event
    ) -> web.StreamResponse:
        """Send `response` with `span` as its body.

        Raises ConnectionError, the connection aborted, when the reader is gone or takes nothing for
        `read_timeout_s`, when the file ends early, or when `voided` is set on the way.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the reader is gone")
        response.content_length = span.size
        transport.set_write_buffer_limits(high=0)  # so that drain() below means: the header has left
        try:
            writer = await response.prepare(request)
            if writer is None or request.method == "HEAD":
                return response
            async with asyncio.timeout(self._read_timeout_s):
                await writer.drain()
            await self._pump(transport, span, voided)
            await response.write_eof()
        except BaseException as error:
            transport.abort()  # the length was promised: a cut connection is the one honest end
            if isinstance(error, TimeoutError):
                raise ConnectionResetError(f"the reader took nothing for {self._read_timeout_s:g} s") from None
            raise
        finally:
            if not transport.is_closing():
                transport.set_write_buffer_limits()
        return response

    async def _pump(self, transport: asyncio.WriteTransport, span: Span, voided: threading.Event) -> None:
        """Move the span's bytes. The socket is duplicated, so that it stays ours when the transport closes."""
        connection = transport.get_extra_info("socket")
        if connection.family == AF_UNIX:  # TCP sizes its own
            connection.setsockopt(SOL_SOCKET, SO_SNDBUF, _BUFFER_BYTES)
        socket = os.dup(connection.fileno())
        offset, left = span.offset, span.size
        try:
            while left:
                if transport.is_closing() or transport.get_write_buffer_size():
                    raise ConnectionResetError("the connection is not ours to write to any more")
                if voided.is_set():
                    raise ConnectionResetError("the version was withdrawn")
                moved = await self._in_thread(_Move(socket, span.descriptor, offset, min(left, _TURN_BYTES), voided))
                offset += moved
                left -= moved
                if left and not _takes_more(socket, 0):
                    await self._wait_writable(socket)
        finally:
            os.close(socket)

    async def _in_thread(self, move: _Move) -> int:
        """Run `move` in a thread. Even when cancelled this returns only once the thread let go of the descriptors."""
        job = asyncio.wrap_future(self._pool.submit(move.run))
        cancelled: asyncio.CancelledError | None = None
        while not job.done():
            try:
                await asyncio.shield(asyncio.wait([job]))
            except asyncio.CancelledError as error:
                move.stop.set()
                cancelled = error
        if cancelled is not None:
            job.exception()  # nobody else will look at it
            raise cancelled
        return job.result()

    async def _wait_writable(self, socket: int) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(socket, ready.set)
        try:
            async with asyncio.timeout(self._read_timeout_s):
                await ready.wait()
        finally:
            loop.remove_writer(socket)


@dataclass(frozen=True)
class _Move:
    """One turn of a thread."""

    socket: int
    file: int
    offset: int
    count: int
    voided: threading.Event
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> int:
        """Move up to `count` bytes, fewer when the reader falls behind or an event is set. Raises ConnectionError."""
        moved = 0
        while moved < self.count and not self.stop.is_set() and not self.voided.is_set():
            try:
                sent = os.sendfile(self.socket, self.file, self.offset + moved, min(self.count - moved, _CALL_BYTES))
            except BlockingIOError:
                if not _takes_more(self.socket, _PATIENCE_MS):
                    break
                continue
            if sent == 0:
                raise ConnectionAbortedError("the file is shorter than its version's layout says")
            moved += sent
        return moved


def _takes_more(socket: int, patience_ms: int) -> bool:
    poll = select.poll()
    poll.register(socket, select.POLLOUT)
    return bool(poll.poll(patience_ms))
