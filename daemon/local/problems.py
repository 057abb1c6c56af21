"""From an exception to the problem document (RFC 9457) that answers for it."""

from __future__ import annotations

from typing import Final

import msgspec
import structlog
from aiohttp import web

from ...storage import errors as storage
from ..errors import DaemonError
from ..exits import Exit
from .errors import (
    BadSourceError,
    BodyTooLargeError,
    InvalidRequestError,
    LeaseGoneError,
    LoadInFullError,
    LocalError,
    MethodNotAllowedError,
    NotPublisherError,
    StorageFailedError,
    UnavailableError,
    UnknownLeaseError,
    UnknownRouteError,
    UnknownVersionError,
    VersionNotRisingError,
)

CONTENT_TYPE: Final = "application/problem+json"

_log: Final = structlog.get_logger(__name__)

_SAID: Final = ""
"""These errors say themselves what to do."""

_STORAGE: Final[tuple[tuple[type[storage.StorageError], type[LocalError], str | None], ...]] = (
    (storage.NotACheckpointError, BadSourceError, None),
    (storage.SourceChangedError, BadSourceError, _SAID),
    (storage.BaseDiffersError, BadSourceError, "give the directory that the hosts have, or publish without --base"),
    (storage.NotNewerError, VersionNotRisingError, _SAID),
    (storage.SlotGoneError, UnknownVersionError, None),
    (storage.SlotsBusyError, UnavailableError, _SAID),
    (storage.UnknownLeaseError, UnknownLeaseError, _SAID),
    (storage.LeaseGoneError, LeaseGoneError, _SAID),
    (storage.LoadInFullError, LoadInFullError, _SAID),
    (storage.NoSpaceError, StorageFailedError, _SAID),
    (storage.StorageError, StorageFailedError, None),
)
"""What a storage error is to a caller, and what to do about it; None: what the problem's class says."""

_EXITS: Final[dict[Exit, type[LocalError]]] = {
    Exit.BAD_INPUT: InvalidRequestError,
    Exit.NOT_RUNNING: UnavailableError,
    Exit.IN_USE: UnavailableError,
    Exit.REFUSED: NotPublisherError,
}
_HTTP: Final[dict[int, type[LocalError]]] = {
    404: UnknownRouteError,
    405: MethodNotAllowedError,
    413: BodyTooLargeError,
}


def as_local(error: Exception) -> LocalError | None:
    """The problem that `error` stands for, or None for one that nobody foresaw: a bug, to be logged as such."""
    if isinstance(error, LocalError):
        return error
    if isinstance(error, storage.StorageError):
        problem, remedy = next((problem, remedy) for kind, problem, remedy in _STORAGE if isinstance(error, kind))
        return problem(str(error), remedy=remedy)
    if isinstance(error, DaemonError):
        return _EXITS.get(error.exit, LocalError)(str(error), remedy=_SAID)
    if isinstance(error, web.HTTPException):
        return _HTTP.get(error.status, InvalidRequestError)(error.text or error.reason)
    return None


def told_of(error: Exception, doing: str, event: str, **where: object) -> LocalError:
    """The problem to tell the caller: the known one, or for a bug one line, with all of it in the log as `event`.

    For handlers of whatever may be raised, inside them: nothing is swallowed, since the caller always hears of it, and
    the daemon serves others on.
    """
    known = as_local(error)
    if known is None:
        _log.exception(event, **where)
        known = LocalError(f"{doing} failed ({type(error).__name__})")
    return known


def problem_response(error: LocalError, headers: dict[str, str] | None = None) -> web.Response:
    """The response that says what went wrong."""
    problem = error.problem
    return web.Response(
        status=problem.status, body=msgspec.json.encode(problem) + b"\n", content_type=CONTENT_TYPE, headers=headers
    )
