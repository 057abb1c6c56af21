"""One gateway, assembled: followers, mover, gate and proxy before one engine; or a host of an engine's group."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from aiohttp import web

from ...errors import BadInputError, ConfigError, InUseError, reason
from ...units import parse_address
from ..aio_client import AsyncClient
from ..engines.base import Engine
from ..engines.openai import OpenAiEngine
from ..engines.sglang import SglangEngine
from ..engines.vllm import VllmEngine
from ..errors import LocalError
from .choice import Staleness
from .errors import (
    EngineUnavailableError,
    GatewayError,
    InvalidRequestError,
    UnauthorizedError,
    WeightVersionNotReadyError,
)
from .follower import Follower, Target
from .gate import Gate
from .hold import PATH, Group, Hold, HoldBook, Renewal
from .mover import WATCH_S, Mover
from .proxy import Proxy
from .status import Status

EngineKind = Literal["sglang", "vllm", "openai", "none"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T", bound=msgspec.Struct)

_SHUTDOWN_S: Final = 1.0
_BACKLOG: Final = 1024
_MIN_TOKEN: Final = 16


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """What one gateway does."""

    engine: EngineKind
    """"none": a host of an engine's group that has no engine of its own to talk to."""
    engine_url: str = ""
    listen: tuple[str, int]
    socket: Path | str | None = None
    """The daemon's socket."""
    stream: str = ""
    """The stream of the model's own weights; "" when only adapters are followed."""
    adapters: dict[str, str] = field(default_factory=dict)
    """LoRA adapters, name to stream."""
    quiesce: bool = False
    """Let every request end before the weights change, not only those that the change would break."""
    staleness: Staleness = field(default_factory=Staleness)
    patience_s: float = 30.0
    drain_s: float = 120.0
    load_timeout_s: float = 600.0
    read_timeout_s: float = 3600.0
    """Longest silence of the engine in an answer."""
    body_limit_bytes: int = 256 * 1024 * 1024
    reload_path: str = ""
    group: tuple[str, ...] = ()
    """HOST:PORT of the gateways on the other hosts of the engine."""
    token: str = ""
    """What the hosts of a group know each other by."""
    watch_s: float = WATCH_S

    def check(self) -> None:
        """Raise ConfigError for what cannot be."""
        if self.engine != "none" and not self.engine_url.startswith(("http://", "https://")):
            raise ConfigError(f"engine_url {self.engine_url!r}: give the engine's address, like http://127.0.0.1:30000")
        if self.engine != "none" and not (self.stream or self.adapters):
            raise ConfigError("the gateway needs a stream to follow: give stream, or adapters as NAME=STREAM")
        if (self.group or self.engine == "none") and len(self.token) < _MIN_TOKEN:
            raise ConfigError(
                f"a group needs a token file with at least {_MIN_TOKEN} characters, the same on each host: make one"
            )
        streams = [*self.adapters.values(), *([self.stream] if self.stream else [])]
        if len(set(streams)) != len(streams):
            raise ConfigError("give each stream once: it is either the model's weights or one adapter")
        if self.engine == "openai" and self.adapters:
            raise ConfigError("an engine of kind 'openai' cannot be given adapters: leave them out")


@dataclass(frozen=True)
class RunningGateway:
    """A gateway that answers."""

    address: tuple[str, int]
    """Host and port really taken."""
    status: Callable[[], Status]


@contextlib.asynccontextmanager
async def serve_gateway(config: GatewayConfig) -> AsyncIterator[RunningGateway]:
    """Serve as long as the context lasts. Raises ConfigError, or InUseError when the address is taken."""
    config.check()
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(*config.listen))
        client = await stack.enter_async_context(AsyncClient(config.socket))
        if config.engine == "none":
            book = HoldBook(client)
            stack.push_async_callback(book.close)
            app, status = _member(config, book)
        else:
            app, status = await _leader(config, client, stack)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listener, backlog=_BACKLOG).start()
        yield RunningGateway(listener.getsockname()[:2], status)


async def _leader(
    config: GatewayConfig, client: AsyncClient, stack: contextlib.AsyncExitStack
) -> tuple[web.Application, Callable[[], Status]]:
    engine = await stack.enter_async_context(_engine(config))
    group = await stack.enter_async_context(Group(client, config.group, config.token))
    tasks = await stack.enter_async_context(_tasks())
    gate = Gate()
    mover = Mover(engine, gate, group, quiesce=config.quiesce, drain_s=config.drain_s, watch_s=config.watch_s)
    targets = [Target(config.stream)] if config.stream else []
    targets += [Target(stream, name) for name, stream in sorted(config.adapters.items())]
    followers = {target.adapter: Follower(client, target, mover.wake) for target in targets}
    mover.followers = tuple(followers.values())
    proxy = await stack.enter_async_context(
        Proxy(
            config.engine_url,
            engine,
            gate,
            mover,
            followers,
            tasks.create_task,
            patience_s=config.patience_s,
            read_timeout_s=config.read_timeout_s,
        )
    )
    for follower in followers.values():
        tasks.create_task(follower.run())
    tasks.create_task(mover.run())

    def status() -> Status:
        return Status.of(config.engine, config.engine_url, config.quiesce, gate, mover, config.staleness)

    app = _app(config)
    _add_status(app, status)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    return app, status


def _engine(config: GatewayConfig) -> Engine:
    match config.engine:
        case "sglang":
            return SglangEngine(config.engine_url, load_timeout_s=config.load_timeout_s)
        case "vllm":
            return VllmEngine(config.engine_url, load_timeout_s=config.load_timeout_s)
        case _:
            return OpenAiEngine(config.engine_url, load_timeout_s=config.load_timeout_s, reload_path=config.reload_path)


class _Stop(Exception):  # noqa: N818 -- it ends tasks, nothing has failed
    """The context was left: its tasks end."""


@contextlib.asynccontextmanager
async def _tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group whose tasks end with the context."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
            raise _Stop  # noqa: TRY301 -- nothing else ends a group with its tasks
    except* _Stop:
        pass


# -- a host without an engine ---------------------------------------------------------------------------------


def _member(config: GatewayConfig, book: HoldBook) -> tuple[web.Application, Callable[[], Status]]:
    def status() -> Status:
        return Status.member(book.count)

    async def take(request: web.Request) -> web.StreamResponse:
        ask = await _read(request, Hold)
        try:
            return _json(await book.take(ask))
        except LocalError as error:
            raise WeightVersionNotReadyError(str(error), target=ask.version, applied=None) from None

    async def renew(request: web.Request) -> web.StreamResponse:
        renewal = await _read(request, Renewal)
        held = book.renew(request.match_info["hold"], renewal.ttl_s)
        return _json(held) if held else web.json_response({"error": {"message": "no such hold"}}, status=404)

    async def release(request: web.Request) -> web.StreamResponse:
        try:
            held = await book.release(request.match_info["hold"])
        except LocalError as error:
            raise EngineUnavailableError(f"the hold was lost: {error}") from None
        return _json(held) if held else web.json_response({"error": {"message": "no such hold"}}, status=404)

    app = _app(config)
    guard = _guard(config.token)
    app.router.add_post(PATH, guard(take))
    app.router.add_put(PATH + "/{hold}", guard(renew))
    app.router.add_delete(PATH + "/{hold}", guard(release))
    _add_status(app, status)
    return app, status


def _guard(token: str) -> Callable[[Handler], Handler]:
    """Let in only those who bring `token`."""
    expected = f"Bearer {token}".encode()

    def guard(handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, expected):
                raise UnauthorizedError("send the group's token as 'Authorization: Bearer …'")
            return await handler(request)

        return guarded

    return guard


async def _read(request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"body: {error}") from None


# -- answering ------------------------------------------------------------------------------------------------


def _app(config: GatewayConfig) -> web.Application:
    return web.Application(middlewares=[_answer_errors], client_max_size=config.body_limit_bytes)


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except GatewayError as error:
        body = msgspec.json.encode(error.body)
        return web.Response(status=error.status, body=body, content_type="application/json", headers=error.headers)
    except web.HTTPRequestEntityTooLarge as error:
        problem = InvalidRequestError(f"{error.text}", remedy="send less, or raise gateway.body_limit")
        return web.Response(status=413, body=msgspec.json.encode(problem.body), content_type="application/json")


def _add_status(app: web.Application, status: Callable[[], Status]) -> None:
    async def health(_request: web.Request) -> web.StreamResponse:
        now = status()
        return web.json_response({"ready": now.ready, "reasons": now.reasons}, status=200 if now.ready else 503)

    async def server_info(_request: web.Request) -> web.StreamResponse:
        return _json(status())

    app.router.add_get("/health", health)
    app.router.add_get("/server_info", server_info)


def _json(value: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket. Raises InUseError, or BadInputError for a host that is not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise BadInputError(f"{host}:{port}: cannot listen here: {reason(error)}") from None
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError as error:
            raise InUseError(f"{host}:{port}: cannot listen here: {error.strerror}; choose another --listen") from None
        yield listener


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of a listen address; port 0 takes any. Raises ValueError."""
    host, _, port = text.rpartition(":")
    return (host.strip("[]"), 0) if port == "0" and host else parse_address(text)
