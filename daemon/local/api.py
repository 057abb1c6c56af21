"""The local API: HTTP/1.1 on a unix socket, and on loopback TCP with a bearer token for those who ask for it."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from ..errors import ConfigError
from .contents import ContentEndpoints
from .deltas import DeltaEndpoint
from .endpoint import Endpoint, make_app
from .errors import UnauthorizedError
from .governing import GoverningEndpoints
from .health import NodeEndpoints
from .listening import listen_tcp, listen_unix, remove_unix
from .observing import ObservingEndpoints
from .page import PATH as PAGE
from .page import PageEndpoint
from .problems import problem_response
from .publishing import PublishEndpoint
from .sendfile import FileSender
from .service import LocalService
from .streams import StreamEndpoints

_SHUTDOWN_S: Final = 0.5
"""How long a stopping server lets answers finish, and then once more its connections; then they are cut."""
_MIN_TOKEN: Final = 16

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class LocalConfig:
    """Where the local API listens."""

    socket: Path
    mode: int = 0o660
    tcp: tuple[str, int] | None = None
    """Loopback address and port; needs `token`."""
    token: str = ""
    read_timeout_s: float = 60.0
    """A reader that takes nothing for so long is cut, and its hold on the slot ends."""


@dataclass(frozen=True)
class LocalApi:
    """A running local API."""

    socket: Path
    tcp: tuple[str, int] | None
    """Address and port really taken."""


@asynccontextmanager
async def serve_local(service: LocalService, config: LocalConfig) -> AsyncIterator[LocalApi]:
    """Answer for `service` as long as the context lasts.

    Raises InUseError when another daemon has the socket or port, ConfigError when it cannot be had at all.
    """
    if config.tcp is not None and len(config.token) < _MIN_TOKEN:
        raise ConfigError(f"the local TCP socket needs a token of at least {_MIN_TOKEN} characters")
    async with AsyncExitStack() as stack:
        sender = FileSender(read_timeout_s=config.read_timeout_s)
        stack.callback(sender.close)
        stack.callback(service.close)
        table = endpoints(service, sender)
        unix = listen_unix(config.socket, config.mode)
        stack.callback(remove_unix, config.socket, unix)
        runner = await stack.enter_async_context(_running(make_app(table)))
        await web.SockSite(runner, unix).start()
        address: tuple[str, int] | None = None
        if config.tcp is not None:
            tcp = stack.enter_context(listen_tcp(*config.tcp))
            address = tcp.getsockname()[:2]
            guarded = make_app(table, [bearer_guard(config.token)])
            runner = await stack.enter_async_context(_running(guarded))
            await web.SockSite(runner, tcp).start()
        yield LocalApi(config.socket, address)


def endpoints(service: LocalService, sender: FileSender) -> tuple[Endpoint[Any, Any], ...]:
    """Every endpoint of the API. The OpenAPI document is read from this table."""
    return (
        *StreamEndpoints(service).table(),
        *PublishEndpoint(service).table(),
        *ContentEndpoints(service, sender).table(),
        *DeltaEndpoint(service, sender).table(),
        *NodeEndpoints(service).table(),
        *GoverningEndpoints(service).table(),
        *ObservingEndpoints(service).table(),
        *PageEndpoint().table(),
    )


def bearer_guard(token: str) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    """A middleware that lets in only those who bring `token`, save to the empty status page.

    The comparison takes the same time for any guess.
    """
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if hmac.compare_digest(given, expected) or request.path == PAGE:
            return await handler(request)
        problem = UnauthorizedError(
            "send the header 'Authorization: Bearer …' with the token from the home's file 'token'"
        )
        return problem_response(problem, {"WWW-Authenticate": "Bearer"})

    return guard


@asynccontextmanager
async def _running(app: web.Application) -> AsyncIterator[web.AppRunner]:
    """A runner for `app`. Handlers are cancelled when their caller hangs up: nobody works for the dead."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    try:
        await runner.setup()
        yield runner
    finally:
        await runner.cleanup()
