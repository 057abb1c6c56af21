"""One request on its way through the gateway, and how it ends when the engine does not end it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from .choice import Applied
from .errors import GatewayError
from .gate import Admission
from .stamp import Members

HOP_HEADERS: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that belong to one connection, not to the request or the answer."""
_NOT_SENT: Final = HOP_HEADERS | {"host", "content-length", "expect"}


class Exchange:
    """One request on its way through: what came in, what is sent, what is answered."""

    def __init__(self, request: web.Request, body: Any, *, versioned: bool = False) -> None:
        self.request = request
        self.body = body
        self.versioned = versioned
        self.sent: Members | None = None
        """The JSON object that the engine gets, on versioned routes."""
        self.admission: Admission | None = None
        self.response: web.StreamResponse | None = None
        """The answer, once its head has gone out."""
        self.broken = False
        """Whether it ended otherwise than by the engine's last word."""
        self.heard_s = time.monotonic()
        """When the engine was last heard of."""

    @property
    def start(self) -> Applied | None:
        """The weights that the request began with."""
        return self.admission.start if self.admission else None

    @property
    def stream(self) -> str:
        """The stream that its weights are of."""
        return self.admission.stream if self.admission else ""

    def request_headers(self) -> CIMultiDict[str]:
        """The caller's headers, without those that belong to its connection."""
        # A compressed answer could not be written into.
        dropped = _NOT_SENT | {"accept-encoding"} if self.versioned else _NOT_SENT
        headers = CIMultiDict(
            (name, value) for name, value in self.request.headers.items() if name.lower() not in dropped
        )
        if not isinstance(self.body, bytes) and (length := self.request.headers.get("Content-Length")) is not None:
            headers["Content-Length"] = length
        return headers

    @contextlib.contextmanager
    def listening(self, silence_s: float) -> Iterator[None]:
        """Raises TimeoutError in the body when nothing is heard for so long.

        One timer for a request, which looks when it rings: aiohttp's own is set anew with every token.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        silent = False
        timer: asyncio.TimerHandle
        self.heard_s = time.monotonic()

        def look() -> None:
            nonlocal timer, silent
            left_s = self.heard_s + silence_s - time.monotonic()
            if left_s > 0:
                timer = loop.call_later(left_s, look)
            else:
                silent = True
                task.cancel()

        timer = loop.call_later(silence_s, look)
        try:
            yield
        except asyncio.CancelledError:
            if not silent or task.uncancel():
                raise
            raise TimeoutError(f"nothing for {silence_s:g} s") from None
        finally:
            timer.cancel()

    @property
    def client_has_gone(self) -> bool:
        """Whether there is nobody to answer."""
        transport = self.request.transport
        return transport is None or transport.is_closing()

    async def refuse(self, error: GatewayError) -> web.StreamResponse:
        """Answer with `error`: raise it when nothing has been answered yet.

        Else the answer ends with an event that says why, or breaks off where events mean nothing.
        """
        self.broken = True
        response = self.response
        if response is None:
            raise error
        if response.content_type == "text/event-stream":
            await response.write(b"data: " + msgspec.json.encode(error.body) + b"\n\n")
            await response.write_eof()
        elif self.request.transport is not None:
            self.request.transport.abort()
        return response
