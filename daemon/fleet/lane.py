"""One lane: a TCP connection on which both sides send chunks, straight into and out of chunk-sized buffers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, cast

import structlog

from ...protocol.errors import FrameError
from ...protocol.lane import HEADER_BYTES, LaneCodec
from .congestion import Congestion, Reading, read

_log: Final = structlog.get_logger(__name__)

WRITE_HIGH_BYTES: Final = 256 * 1024
"""Bytes handed to the kernel's queue ahead of what it has taken; beyond it `send` waits."""

QUEUED_S: Final = 1.0
"""How long a queue that was seen on a path counts."""

WATCH_S: Final = 10.0
"""So long after a chunk was sent some of it may still be on its way through the kernel."""


class Lane(asyncio.BufferedProtocol):
    """Receives headers and bodies without copying; `send` waits while the peer does not read.

    `congestion` is what is known of the path. `expected(name)` gives the size of a chunk that was asked for, or None;
    `received(lane, name, body)` takes each whole body, not verified yet; `closed(lane)` is called once, whatever ended
    the lane.
    """

    def __init__(
        self,
        codec: LaneCodec,
        congestion: Congestion,
        expected: Callable[[bytes], int | None],
        received: Callable[[Lane, bytes, bytearray], None],
        closed: Callable[[Lane], None],
    ) -> None:
        self._codec = codec
        self._congestion = congestion
        self._expected = expected
        self._received = received
        self._closed = closed
        self._header = bytearray(HEADER_BYTES)
        self._target = self._header
        self._name = b""
        self._filled = 0
        self._transport: asyncio.Transport | None = None
        self._reading: Reading | None = None
        self._sent_at_s = 0.0
        self._queued_at_s = -math.inf  # when a queue was seen last on the path
        self._bears_loss = False
        self._writable = asyncio.Event()
        self.came_bytes = 0
        """Bytes that have come so far, headers and parts of chunks included."""
        self.gone = asyncio.Event()
        """Set when the lane has ended."""

    # -- asyncio.BufferedProtocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not subclasses
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the next bytes go: the rest of the header, or of the body."""
        return memoryview(self._target)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self.came_bytes += nbytes
        self._filled += nbytes
        if self._filled < len(self._target):
            return
        if self._target is self._header:
            self._begin_body()
        else:
            name, body = self._name, self._target
            self._target, self._filled = self._header, 0
            self._received(self, name, body)

    def pause_writing(self) -> None:
        """The peer reads more slowly than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The kernel took what was queued."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The lane is gone; what was in flight is asked for again elsewhere."""
        self._transport = None
        self._writable.set()
        self.gone.set()
        self._closed(self)

    # -- ours -----------------------------------------------------------------------------------------------

    def _begin_body(self) -> None:
        try:
            name, size = self._codec.open_header(bytes(self._header))
        except FrameError as error:
            _log.warning("lane closed", reason=str(error))
            self.close()
            return
        if self._expected(name) != size:
            _log.warning("lane closed", reason=f"a chunk of {size} bytes came that was not asked for")
            self.close()
            return
        self._name, self._target, self._filled = name, bytearray(size), 0

    @property
    def is_full(self) -> bool:
        """Whether the peer, or the path, takes less than is offered to it."""
        return not self._writable.is_set()

    @property
    def path_is_full(self) -> bool:
        """Whether there was a queue on the path of late: another lane would only take from those that are there.

        Where packets get lost without one, more lanes carry more all the same.
        """
        return not self._congestion.uplink.is_lossy and time.monotonic() - self._queued_at_s < QUEUED_S

    async def ready(self) -> None:
        """Wait until the peer has taken most of what was sent, or the lane has gone."""
        await self._writable.wait()

    async def send(self, name: bytes, sealed: bytes | bytearray) -> bool:
        """Send a chunk once the peer has room. Returns False when the lane has gone: answer in another way."""
        await self.ready()
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.write(self._codec.header(name, len(sealed)))
        self._transport.write(sealed)
        self._sent_at_s = time.monotonic()
        return True

    def watch(self) -> bool:
        """See how what was sent fares on the path, and change the congestion control where that is called for.

        Returns whether there is more to see: not when nothing was sent for a while.
        """
        if self._transport is None or (time.monotonic() - self._sent_at_s > WATCH_S and not self.is_full):
            return False
        connection = self._transport.get_extra_info("socket")
        before, self._reading = self._reading, read(connection)
        if before is not None and self._reading is not None:
            self._congestion.look(before, self._reading)
            if not (self._reading.queue_is_short or self._reading.is_near):
                self._queued_at_s = time.monotonic()
        if self._congestion.uplink.is_lossy != self._bears_loss:
            self._bears_loss = self._congestion.choose(connection)
        return True

    async def finish(self) -> None:
        """Let what was written leave, and wait until the peer has taken it and closed the lane."""
        if self._transport is not None:
            self._transport.write_eof()
        await self.gone.wait()

    def pause_reading(self) -> None:
        """Stop reading: the store's queue is full."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close at once: nothing that is still queued would help anyone."""
        if self._transport is not None:
            self._transport.abort()
