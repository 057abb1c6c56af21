"""Rights of those who call the local API: what a token gives, and what a process on this host has by its user.

Reading (and leases) is one right, publishing another, and what concerns the cluster a third. The owner of the daemon
and root have all of them on the unix socket; whoever else its mode lets in has what the configuration says.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from enum import Flag
from typing import Final

from aiohttp import web

from .errors import ForbiddenError, UnauthorizedError
from .problems import problem_response

_PEER: Final = struct.Struct("3i")
"""pid, uid and gid of the process that connected: struct ucred of unix(7)."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Guard = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


class Right(Flag):
    """What a caller may do."""

    NONE = 0
    READ = 1
    PUBLISH = 2
    ADMIN = 4
    PUBLISHER = READ | PUBLISH
    ALL = READ | PUBLISH | ADMIN

    @classmethod
    def of(cls, names: Iterable[str]) -> Right:
        """The rights with these names, in small letters."""
        rights = cls.NONE
        for name in names:
            rights |= cls[name.upper()]
        return rights


_granted: Final[ContextVar[Right]] = ContextVar("granted")
"""Of the request that this task answers. A contextvar because aiohttp's own keys differ between its versions."""


def check_right(request: web.Request, right: Right) -> None:
    """Raise ForbiddenError unless the caller was granted this right; without a guard nobody was granted any."""
    granted: Right = _granted.get(Right.NONE)
    if right not in granted:
        name = str(right.name).lower()
        raise ForbiddenError(
            f"{request.method} {request.path[:200]} takes the right {name!r}, which this caller has not"
        )


def token_guard(tokens: Mapping[str, Right], open_path: str) -> Guard:
    """A middleware that grants what the bearer token gives, and lets in nobody without one, save to `open_path`.

    The comparison takes the same time for any guess.
    """
    expected = [(f"Bearer {token}".encode(), right) for token, right in tokens.items()]

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        granted = Right.NONE
        for header, right in expected:
            if hmac.compare_digest(given, header):
                granted |= right
        if request.path == open_path:
            granted |= Right.READ
        if granted is Right.NONE:
            problem = UnauthorizedError(
                "the request has no token, or a wrong one",
                remedy="send the header 'Authorization: Bearer …' with the token from the home's file 'token', or from "
                "'token-publish' or 'token-admin' for what takes more",
            )
            return problem_response(problem, {"WWW-Authenticate": "Bearer"})
        _granted.set(granted)
        return await handler(request)

    return guard


def user_guard(others: Right) -> Guard:
    """A middleware for the unix socket: all rights for this process's user and for root, `others` for the rest."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        _granted.set(Right.ALL if _user(request) in (0, os.geteuid()) else others)
        return await handler(request)

    return guard


def _user(request: web.Request) -> int:
    """The user of the process that connected, -1 when it is gone."""
    connection = request.get_extra_info("socket")
    if connection is None:
        return -1
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(peer)[1])
