"""What one endpoint is: a row of a table that the server mounts, and that the OpenAPI document is read from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog
from aiohttp import web

from .errors import InvalidRequestError, LocalError, MethodNotAllowedError, UnknownRouteError
from .problems import problem_response, told_of
from .rights import Right, check_right

MAX_BODY_BYTES: Final = 64 * 1024
MAX_VERSION: Final = 2**63 - 1

_log = structlog.get_logger(__name__)


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No query parameters, or no body."""


Q = TypeVar("Q", bound=msgspec.Struct)
B = TypeVar("B", bound=msgspec.Struct)


@dataclass(frozen=True)
class Call(Generic[Q, B]):
    """One request, checked: the query and the body are what the endpoint declares."""

    request: web.Request
    query: Q
    body: B

    @property
    def stream(self) -> str:
        """The {stream} of the path."""
        return self.request.match_info["stream"]

    @property
    def lease(self) -> str:
        """The {lease} of the path."""
        return self.request.match_info["lease"]

    @property
    def name(self) -> str:
        """The {name} of the path: of a file or a tensor, slashes and all."""
        return self.request.match_info["name"]

    @property
    def version(self) -> int | None:
        """The {version} of the path, None for "current". Raises InvalidRequestError."""
        text = self.request.match_info["version"]
        if text == "current":
            return None
        if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_VERSION:
            return int(text)
        raise InvalidRequestError(f"version {text[:40]!r} in the path", remedy="give a number or 'current'")


Answer = msgspec.Struct | web.StreamResponse | None


@dataclass(frozen=True)
class Endpoint(Generic[Q, B]):
    """One method on one path. `answer` is None where the handler answers with bytes of its own, or with nothing."""

    method: str
    path: str
    summary: str
    handler: Callable[[Call[Q, B]], Awaitable[Answer]]
    query: type[Q]
    body: type[B]
    answer: type[msgspec.Struct] | None = None
    status: int = 200
    problems: tuple[type[LocalError], ...] = ()
    right: Right = Right.READ
    media: str = "application/json"
    """Content type of the answer."""

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Answer `request`. Raises LocalError, or whatever the service raised."""
        check_right(request, self.right)
        call = Call(request, _query(request, self.query), await _body(request, self.body))
        answer = await self.handler(call)
        if answer is None:
            return web.Response(status=204)
        if isinstance(answer, msgspec.Struct):
            return json_response(answer, self.status)
        return answer


def json_response(value: msgspec.Struct, status: int = 200) -> web.Response:
    """`value` as JSON, one line."""
    return web.Response(status=status, body=msgspec.json.encode(value) + b"\n", content_type="application/json")


def make_app(
    endpoints: Iterable[Endpoint[Any, Any]], middlewares: Iterable[Callable[..., Awaitable[web.StreamResponse]]] = ()
) -> web.Application:
    """An application that answers `endpoints`, and everything else with a problem document."""
    app = web.Application(middlewares=[answer_problems, *middlewares], client_max_size=MAX_BODY_BYTES)
    for endpoint in endpoints:
        if endpoint.method == "GET":
            app.router.add_get(endpoint.path, endpoint.respond, allow_head=True)
        else:
            app.router.add_route(endpoint.method, endpoint.path, endpoint.respond)
    return app


@web.middleware
async def answer_problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn whatever a handler raises into a problem document; log what nobody foresaw."""
    try:
        return await handler(request)
    except ConnectionError as error:
        _log.info("local reader gone", method=request.method, path=request.path, reason=str(error))
        raise  # there is nobody to tell
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        problem = MethodNotAllowedError(f"{request.path} takes {allowed}, not {request.method[:20]}")
        return problem_response(problem, {"Allow": allowed})
    except web.HTTPNotFound:
        return problem_response(UnknownRouteError(f"no such path: {request.path[:200]}"))
    except Exception as error:  # not swallowed: the caller is told, a bug is logged whole, others are served on
        doing = f"{request.method} {request.path[:200]}"
        return problem_response(told_of(error, doing, "local request failed", method=request.method, path=request.path))


def _query(request: web.Request, kind: type[Q]) -> Q:
    """The query parameters as `kind`. Raises InvalidRequestError naming the one that is unknown, doubled or wrong."""
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name in given:
            raise InvalidRequestError(f"query parameter {name!r} is given more than once", remedy="give it once")
        given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"query: {_said(error)}") from None


async def _body(request: web.Request, kind: type[B]) -> B:
    """The JSON body as `kind`; no body counts as {}. Raises InvalidRequestError naming the field."""
    if kind is Nothing:
        return kind()
    data = await request.read()
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"body: {_said(error)}") from None
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"body: not JSON ({error})", remedy="send a JSON object") from None


def _said(error: msgspec.ValidationError) -> str:
    """The message of `error` without msgspec's path notation."""
    return str(error).replace("- at `$.", "in `").replace("Object contains unknown", "unknown")
