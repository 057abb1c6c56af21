"""The OpenAPI 3.1 description of the local API, read from the table of its endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version as version_of
from typing import Any, Final

import msgspec
from aiohttp import web

from .endpoint import MAX_VERSION, Call, Endpoint, Nothing
from .errors import BodyTooLargeError, ForbiddenError, InvalidRequestError, LocalError, UnauthorizedError
from .model import Problem
from .problems import CONTENT_TYPE

PATH: Final = "/openapi.json"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_REF: Final = "#/components/schemas/{name}"
_PATH_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "version": {
        "description": "A version's number, or the current one",
        "oneOf": [{"type": "integer", "minimum": 0, "maximum": MAX_VERSION}, {"const": "current"}],
    },
    "stream": {"type": "string", "minLength": 1, "maxLength": 64},
    "lease": {"type": "string", "minLength": 1},
    "name": {"type": "string", "minLength": 1},
}


class OpenApiEndpoint:
    """GET /openapi.json, about `table` and itself."""

    def __init__(self, table: Sequence[Endpoint[Any, Any]]) -> None:
        self._body = msgspec.json.encode(document((*table, *self.table())))

    def table(self) -> tuple[Endpoint[Any, Any], ...]:
        """The endpoint."""
        return (Endpoint("GET", PATH, "This description", self.describe, Nothing, Nothing, media="application/json"),)

    async def describe(self, _call: Call[Nothing, Nothing]) -> web.Response:
        """GET /openapi.json."""
        return web.Response(body=self._body, content_type="application/json")


def document(table: Sequence[Endpoint[Any, Any]]) -> dict[str, Any]:
    """The description of `table`."""
    kinds = [kind for each in table for kind in (each.query, each.body, each.answer) if _is_given(kind)]
    unique = list(dict.fromkeys([*kinds, Problem]))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    named = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in table:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, named, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "patchswarm local API",
            "version": version_of("patchswarm"),
            "description": "Answers on a unix socket, and on loopback TCP with a bearer token. Problems are RFC 9457.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _is_given(kind: type[msgspec.Struct] | None) -> bool:
    return kind is not None and kind is not Nothing


def _operation(endpoint: Endpoint[Any, Any], named: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": endpoint.handler.__name__ + "_" + endpoint.method.lower(),
        "description": f"Takes the right {str(endpoint.right.name).lower()!r}.",
        "parameters": [*_path_parameters(endpoint.path), *_query_parameters(endpoint.query, named, components)],
        "responses": {str(endpoint.status): _success(endpoint, named), **_problems(endpoint, named)},
    }
    if _is_given(endpoint.body):
        operation["requestBody"] = {"content": {"application/json": {"schema": named[endpoint.body]}}}
    return operation


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for name in _PARAMETER.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}


def _query_parameters(
    query: type[msgspec.Struct], named: dict[Any, Any], components: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    if not _is_given(query):
        return
    schema = components[named[query]["$ref"].rpartition("/")[2]]
    for name, each in schema["properties"].items():
        required = name in schema.get("required", ())
        yield {"name": name, "in": "query", "required": required, "schema": _without_null(each)}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is left out rather than null."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return choices[0] if len(choices) == 1 else schema


def _success(endpoint: Endpoint[Any, Any], named: dict[Any, Any]) -> dict[str, Any]:
    if endpoint.status == web.HTTPNoContent.status_code:
        return {"description": "Done"}
    schema = named[endpoint.answer] if endpoint.answer is not None else {}
    return {"description": endpoint.summary, "content": {endpoint.media: {"schema": schema}}}


def _problems(endpoint: Endpoint[Any, Any], named: dict[Any, Any]) -> dict[str, Any]:
    """What may go wrong, by status: of the endpoint itself, and of any."""
    always: tuple[type[LocalError], ...] = (InvalidRequestError, UnauthorizedError, ForbiddenError, LocalError)
    found: dict[int, set[str]] = {}
    for problem in (*endpoint.problems, *always, *((BodyTooLargeError,) if _is_given(endpoint.body) else ())):
        found.setdefault(problem.status, set()).add(f"{problem.slug}: {problem.title}")
    return {
        str(status): {
            "description": "; ".join(sorted(texts)),
            "content": {CONTENT_TYPE: {"schema": named[Problem]}},
        }
        for status, texts in sorted(found.items())
    }
