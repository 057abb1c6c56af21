"""The local API: HTTP/1.1 on a unix socket, and on loopback TCP with a bearer token for those who ask for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from ..errors import ConfigError
from .contents import ContentEndpoints
from .deltas import DeltaEndpoint
from .endpoint import Endpoint, make_app
from .governing import GoverningEndpoints
from .health import NodeEndpoints
from .listening import listen_tcp, listen_unix, remove_unix
from .observing import ObservingEndpoints
from .openapi import OpenApiEndpoint
from .page import PATH as PAGE
from .page import PageEndpoint
from .publishing import PublishEndpoint
from .rights import Right, token_guard, user_guard
from .sendfile import FileSender
from .service import LocalService
from .streams import StreamEndpoints

_SHUTDOWN_S: Final = 0.5
"""How long a stopping server lets answers finish, and then once more its connections; then they are cut."""
_MIN_TOKEN: Final = 16


@dataclass(frozen=True)
class LocalConfig:
    """Where the local API listens."""

    socket: Path
    mode: int = 0o660
    tcp: tuple[str, int] | None = None
    """Loopback address and port; needs `token`."""
    token: str = ""
    """Lets a caller read and lease over TCP."""
    publish_token: str = ""
    """Lets it publish too; empty: nobody does over TCP."""
    admin_token: str = ""
    """Gives every right; empty: nobody has it over TCP."""
    others: Right = Right.PUBLISHER
    """Rights on the unix socket of other users than the daemon's own and root."""
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
    tokens = _tokens(config) if config.tcp is not None else {}
    async with AsyncExitStack() as stack:
        sender = FileSender(read_timeout_s=config.read_timeout_s)
        stack.callback(sender.close)
        stack.callback(service.close)
        table = endpoints(service, sender)
        unix = listen_unix(config.socket, config.mode)
        stack.callback(remove_unix, config.socket, unix)
        runner = await stack.enter_async_context(_running(make_app(table, [user_guard(config.others)])))
        await web.SockSite(runner, unix).start()
        address: tuple[str, int] | None = None
        if config.tcp is not None:
            tcp = stack.enter_context(listen_tcp(*config.tcp))
            address = tcp.getsockname()[:2]
            guarded = make_app(table, [token_guard(tokens, PAGE)])
            runner = await stack.enter_async_context(_running(guarded))
            await web.SockSite(runner, tcp).start()
        yield LocalApi(config.socket, address)


def endpoints(service: LocalService, sender: FileSender) -> tuple[Endpoint[Any, Any], ...]:
    """Every endpoint of the API. The OpenAPI document is read from this table."""
    table = (
        *StreamEndpoints(service).table(),
        *PublishEndpoint(service).table(),
        *ContentEndpoints(service, sender).table(),
        *DeltaEndpoint(service, sender).table(),
        *NodeEndpoints(service).table(),
        *GoverningEndpoints(service).table(),
        *ObservingEndpoints(service).table(),
        *PageEndpoint().table(),
    )
    return (*table, *OpenApiEndpoint(table).table())


def _tokens(config: LocalConfig) -> dict[str, Right]:
    """What each token gives. Raises ConfigError for one that could be guessed, or that is there twice."""
    given = ((config.token, Right.READ), (config.publish_token, Right.PUBLISHER), (config.admin_token, Right.ALL))
    if not config.token or any(0 < len(token) < _MIN_TOKEN for token, _ in given):
        raise ConfigError(
            f"the local TCP socket needs a token of at least {_MIN_TOKEN} characters; delete its file to have one made"
        )
    tokens = {token: right for token, right in given if token}
    if len(tokens) < sum(bool(token) for token, _ in given):
        raise ConfigError("two of the local API's tokens are the same: delete one of the files to have it made anew")
    return tokens


@asynccontextmanager
async def _running(app: web.Application) -> AsyncIterator[web.AppRunner]:
    """A runner for `app`. Handlers are cancelled when their caller hangs up: nobody works for the dead."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    try:
        await runner.setup()
        yield runner
    finally:
        await runner.cleanup()
