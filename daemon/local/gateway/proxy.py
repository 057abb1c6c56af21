"""The proxy: passes requests to the engine and answers back as they come, and says which weights made them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self

import aiohttp
import msgspec
import structlog
import yarl
from aiohttp import web
from multidict import CIMultiDict

from ..engines.base import Engine, EngineError
from ..errors import LocalError
from .choice import Applied, has_passed, patience_s
from .constraint import Constraint, parse
from .errors import (
    EngineUnavailableError,
    GatewayError,
    InvalidRequestError,
    RouteBlockedError,
    WeightVersionMismatchError,
    WeightVersionNotReadyError,
)
from .exchange import HOP_HEADERS, Exchange
from .follower import Follower
from .gate import Admission, Gate
from .mover import Mover
from .stamp import Mark, Members, StreamStamper, assemble, members, stamp

_log: Final = structlog.get_logger(__name__)

VERSIONED_ROUTES: Final = frozenset({"/generate", "/v1/completions", "/v1/chat/completions"})
"""Routes whose bodies name the weights they accept, and whose answers name the weights that made them. On any other
route headers do both."""

_KEEP_ALIVE_S: Final = 4.0
"""Less than the 5 s after which uvicorn, under both engines, closes an idle connection: a request that meets the
closing is one that failed for no reason."""
_CONNECT_S: Final = 5.0
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Proxy:
    """Everything that is not the gateway's own goes through `handle`. Enter its context first."""

    def __init__(
        self,
        url: str,
        engine: Engine,
        gate: Gate,
        mover: Mover,
        followers: dict[str, Follower],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        *,
        patience_s: float,
        read_timeout_s: float,
    ) -> None:
        self._url = url.rstrip("/")
        self._engine = engine
        self._gate = gate
        self._mover = mover
        self._followers = followers
        self._spawn = spawn
        self._patience_s = patience_s
        self._read_timeout_s = read_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request. Raises GatewayError for what is answered here."""
        if request.path.rstrip("/") in self._engine.blocked_routes:
            raise RouteBlockedError(f"{request.path[:200]} changes the engine's weights: the gateway does that itself")
        if request.method in _SAFE:
            return await self._forward(Exchange(request, request.content if request.body_exists else None))
        body: Members | None = None
        if request.path in VERSIONED_ROUTES:
            data = await request.read()
            body = _object(data)
            exchange = Exchange(request, data, versioned=body is not None)
        else:
            exchange = Exchange(request, request.content if request.body_exists else None)
        constraint = parse((body or {}).get("weight_version"), request.headers)
        follower = self._follower(body)
        stream = follower.target.stream if follower else ""
        try:
            exchange.admission = await self._gate.enter(
                stream, constraint, lambda asked, applied: self._patience(asked, applied, follower)
            )
        except TimeoutError:
            raise await self._refusal(constraint, follower) from None
        try:
            if body is not None:
                exchange.sent = self._engine.prepare(
                    {name: value for name, value in body.items() if name != "weight_version"},
                    self._gate.all_applied() if follower else [],
                )
                exchange.body = assemble(exchange.sent)
            return await self._forward(exchange)
        except asyncio.CancelledError:
            exchange.broken = True
            cut = exchange.admission.cut
            if cut is None:
                raise  # the client has gone, or the gateway stops
            exchange.admission.task.uncancel()
            return await exchange.refuse(cut)
        except (GatewayError, ConnectionError):
            exchange.broken = True
            raise
        finally:
            if not exchange.broken or exchange.sent is None:
                self._gate.leave(exchange.admission)
            else:
                # It may run on in the engine: it is out only when it has been ended there.
                self._spawn(self._abort(exchange.sent, exchange.admission))

    def _follower(self, body: Members | None) -> Follower | None:
        """The stream that a request's weights are of: its adapter's when it names one, else the model's."""
        if body is not None:
            for field in ("model", "lora_path"):
                name = _text(body.get(field))
                if name is not None and name in self._followers:
                    return self._followers[name]
        return self._followers.get("")

    async def _abort(self, sent: Members, admission: Admission) -> None:
        try:
            await self._engine.abort(sent)
        except EngineError as error:
            _log.warning("request not aborted", reason=str(error))
        finally:
            self._gate.leave(admission)

    # -- waiting and refusing -------------------------------------------------------------------------------

    def _patience(self, constraint: Constraint, applied: Applied | None, follower: Follower | None) -> float:
        if follower is None or not self._engine.loads:
            return 0.0
        order = None if applied is None else applied.order
        return patience_s(constraint, order, follower.head, self._patience_s)

    async def _refusal(self, constraint: Constraint, follower: Follower | None) -> GatewayError:
        if follower is not None:
            with contextlib.suppress(LocalError):  # what it said last is told then
                await follower.look()
        applied = self._gate.applied(follower.target.stream) if follower else None
        have = "no confirmed weights" if applied is None else f"version {applied.version}"
        passed = has_passed(constraint, None if applied is None else applied.order, follower.head if follower else None)
        on_its_way = None if follower is None or passed else follower.on_its_way()
        if passed:
            why = "that has passed, and versions do not come back"
        elif follower is None:
            why = "this gateway follows no stream for it"
        elif not self._engine.loads:
            why = "this engine cannot be moved; name its reload path"
        elif self._mover.failure:
            why = f"the last move failed: {self._mover.failure}"
        elif on_its_way is not None:
            why = f"version {on_its_way['version']} is on its way"
        else:
            why = "nothing newer has been announced"
        start = 0 if applied is None or passed else applied.version + 1
        return WeightVersionNotReadyError(
            f"the engine has {have}, the request asks for {constraint}: {why}",
            target=constraint.first_from(start),
            applied=None if applied is None else applied.version,
            on_its_way=on_its_way,
            passed=passed,
        )

    # -- passing on -----------------------------------------------------------------------------------------

    async def _forward(self, exchange: Exchange) -> web.StreamResponse:
        assert self._session is not None, "enter the proxy's context first"
        request = exchange.request
        try:
            with exchange.listening(self._read_timeout_s):
                async with self._session.request(
                    request.method,
                    yarl.URL(self._url + request.raw_path, encoded=True),
                    headers=exchange.request_headers(),
                    data=exchange.body,
                    allow_redirects=False,
                ) as upstream:
                    return await self._answer(exchange, upstream)
        except (aiohttp.ClientError, TimeoutError) as error:
            if exchange.client_has_gone:
                raise ConnectionResetError("the client has gone") from None
            self._mover.mistrust(f"a connection to it failed ({type(error).__name__})")
            return await exchange.refuse(
                EngineUnavailableError(f"the engine does not answer ({str(error) or type(error).__name__})")
            )

    async def _answer(self, exchange: Exchange, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        kind = upstream.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        stamped = (
            exchange.versioned
            and upstream.status == 200
            and exchange.start is not None
            and "Content-Encoding" not in upstream.headers
        )
        if stamped and kind == "application/json":
            body = stamp(await upstream.read(), lambda label: self._judge(exchange, label))
            return web.Response(status=200, body=body, headers=self._response_headers(exchange, upstream, ended=True))
        response = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=self._response_headers(exchange, upstream)
        )
        if not stamped and (length := upstream.headers.get("Content-Length")) is not None:
            response.headers["Content-Length"] = length
        await response.prepare(exchange.request)
        if exchange.request.method == "HEAD":
            return response
        exchange.response = response
        if stamped and kind == "text/event-stream":
            return await self._stream(exchange, upstream, response)
        async for chunk in upstream.content.iter_any():
            exchange.heard_s = time.monotonic()
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _stream(
        self, exchange: Exchange, upstream: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> web.StreamResponse:
        stamper = StreamStamper(lambda label: self._judge(exchange, label))
        try:
            async for chunk in upstream.content.iter_any():
                exchange.heard_s = time.monotonic()
                events = stamper.feed(chunk)
                if events:
                    await response.write(events)
            if rest := stamper.rest():
                await response.write(rest)
        except GatewayError as error:
            return await exchange.refuse(error)
        await response.write_eof()
        return response

    def _judge(self, exchange: Exchange, label: str | None) -> Mark:
        """The mark for an answer that ends now. Raises WeightVersionMismatchError when the engine says otherwise."""
        start = exchange.start
        assert start is not None
        now = self._gate.applied(exchange.stream) or start
        follower = self._followers.get("")
        if label is None or follower is None or follower.target.stream != exchange.stream:
            return Mark(start.version, now.version)  # the engine's label is that of the model's own weights
        if label == str(start.version):
            return Mark(start.version, start.version)
        if label.isdecimal() and min(start.version, now.version) <= int(label) <= max(start.version, now.version):
            return Mark(start.version, int(label))
        why = f"the engine says that version {label[:40]!r} made this answer, but it was given version {now.version}"
        self._mover.mistrust(why)
        raise WeightVersionMismatchError(why)

    def _response_headers(
        self, exchange: Exchange, upstream: aiohttp.ClientResponse, *, ended: bool = False
    ) -> CIMultiDict[str]:
        dropped = HOP_HEADERS | {"content-length"}
        headers = CIMultiDict((name, value) for name, value in upstream.headers.items() if name.lower() not in dropped)
        if exchange.start is not None:
            start = str(exchange.start.version)
            headers["X-Weight-Version"] = headers["X-Weight-Version-Start"] = start
            if ended:
                now = self._gate.applied(exchange.stream) or exchange.start
                headers["X-Weight-Version-End"] = str(now.version)
        return headers


def _object(data: bytes) -> Members | None:
    """The request's JSON object; None for any other JSON, which the engine will refuse better than we can."""
    try:
        return members(data)
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"the body is not JSON ({error})") from None


def _text(value: msgspec.Raw | None) -> str | None:
    text = None if value is None else msgspec.json.decode(value)
    return text if isinstance(text, str) else None
