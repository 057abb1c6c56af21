"""An engine that makes tokens on a clock: every stream gets one per step, with the time it was made, and nothing else.

It speaks as much of SGLang's control routes as a gateway needs to move it. Written on bare protocols, so that what a
benchmark measures is what stands before it.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Final, cast

HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


class TokenEngine:
    """Serve it with `asyncio.Server`s made from `connection`; `run` is its clock."""

    def __init__(self, rate: float, *, together: bool) -> None:
        self.step_s = 1.0 / rate
        self.together = together
        """Whether all streams get their token in one step, as engines decode, or spread over it."""
        self.streams: dict[asyncio.Transport, int] = {}
        self.label = "default"
        self.path = ""

    def connection(self) -> Connection:
        """A protocol for one connection."""
        return Connection(self)

    async def run(self) -> None:
        """Make tokens until cancelled."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s = max(next_s + self.step_s, loop.time())
            streams = list(self.streams)
            for number, stream in enumerate(streams):
                if self.together:
                    self.token(stream)
                else:
                    loop.call_at(next_s + self.step_s * number / len(streams), self.token, stream)
            await asyncio.sleep(next_s - loop.time())

    def token(self, stream: asyncio.Transport) -> None:
        """Send a stream its next token, or its end."""
        left = self.streams.get(stream)
        if left is None or stream.is_closing():
            self.streams.pop(stream, None)
            return
        reason = "null" if left > 1 else '"length"'
        data = (
            f'data: {{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{{"index":0,'
            f'"text":" token","logprobs":null,"finish_reason":{reason},"matched_stop":null}}],"usage":null,'
            f'"made_ns":{time.monotonic_ns()}}}\n\n'
        ).encode()
        if left > 1:
            self.streams[stream] = left - 1
            stream.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            del self.streams[stream]
            data += b"data: [DONE]\n\n"
            stream.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request after the other."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own, which is none by name

    def connection_lost(self, exc: Exception | None) -> None:
        """Make no tokens for those who have gone."""
        del exc
        if self._transport is not None:
            self._engine.streams.pop(self._transport, None)

    def data_received(self, data: bytes) -> None:
        """Answer every whole request."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].decode("latin-1")
            lengths = [line for line in head.split("\r\n") if line.lower().startswith("content-length:")]
            size = int(lengths[0].partition(":")[2]) if lengths else 0
            if len(self._buffer) < end + 4 + size:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + size], self._buffer[end + 4 + size :]
            self._answer(head.split(" ", 2)[1].partition("?")[0], body)

    def _answer(self, path: str, body: bytes) -> None:
        assert self._transport is not None
        asked = json.loads(body or b"{}")
        if path == "/v1/completions":
            self._transport.write(HEAD)
            self._engine.streams[self._transport] = asked["max_tokens"]
            return
        if path == "/update_weights_from_disk":
            self._engine.label, self._engine.path = asked["weight_version"], asked["model_path"]
        answer = json.dumps(
            {
                "success": True,
                "message": "",
                "status": "ok",
                "weight_version": self._engine.label,
                "model_path": self._engine.path,
            }
        ).encode()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer)
        )
