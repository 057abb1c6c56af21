"""What the local API answers when it cannot do as asked: the service raises these, the client raises them again.

Each class is one problem: a stable `slug` (the last word of the problem document's `type`), an HTTP status
and the exit code of the command that met it.
"""

from __future__ import annotations

from typing import Any, Final

from ..errors import DaemonError
from ..exits import Exit
from .model import PROBLEM_PREFIX, Problem


class LocalError(DaemonError):
    """A request that could not be met: what went wrong, and what to do about it.

    `remedy` is what to do about this one, without which the class says it; "" where the detail does already.
    `context` holds JSON values that say more, for programs.
    """

    slug: str = "internal-error"
    title: str = "The daemon met an error of its own"
    status: int = 500
    remedy: str = "see the daemon's log, and report what it says there"

    def __init__(self, detail: str, *, remedy: str | None = None, **context: Any) -> None:
        super().__init__(detail, remedy=remedy)
        self.detail = detail
        self.context = context

    @property
    def problem(self) -> Problem:
        """The document that says this to the other end."""
        return Problem(
            type=PROBLEM_PREFIX + self.slug,
            title=self.title,
            status=self.status,
            detail=self.detail,
            remedy=self.remedy,
            context=self.context,
        )

    @staticmethod
    def of(problem: Problem) -> LocalError:
        """The error that `problem` came from; a LocalError with its slug and status when this version knows none."""
        error = PROBLEMS.get(problem.slug, LocalError)(problem.detail, remedy=problem.remedy)
        error.slug, error.title, error.status = problem.slug, problem.title, problem.status
        error.context = problem.context
        return error


class NotRunningError(LocalError):
    """No daemon answers on the socket. Raised by the client only."""

    slug = "not-running"
    title = "No daemon answers"
    status = 503
    remedy = "start it with 'patchswarm daemon' and wait until it says ready, or name its socket"
    exit = Exit.NOT_RUNNING


class ConnectionLostError(LocalError):
    """The daemon went away, or was too slow, in the middle of an answer. Raised by the client only."""

    slug = "connection-lost"
    title = "The connection to the daemon broke"
    status = 502
    remedy = "ask again; if it goes on, see the daemon's log"
    exit = Exit.NOT_RUNNING


class InvalidRequestError(LocalError):
    """A parameter or field that does not exist, is missing or has a value that is not allowed."""

    slug = "invalid-request"
    title = "The request is malformed"
    status = 400
    remedy = "correct the request; GET /openapi.json says what is allowed"
    exit = Exit.BAD_INPUT


class UnauthorizedError(LocalError):
    """The TCP socket asks for its bearer token."""

    slug = "unauthorized"
    title = "The bearer token is missing or wrong"
    status = 401
    remedy = "send 'Authorization: Bearer TOKEN' with what is in the home's file token"
    exit = Exit.REFUSED


class ForbiddenError(LocalError):
    """The caller lacks a right: to publish, or to speak for the cluster."""

    slug = "forbidden"
    title = "The caller has not the right"
    status = 403
    remedy = "use the home's token-publish or token-admin, or give this user the right with local.socket_rights"
    exit = Exit.REFUSED


class UnknownRouteError(LocalError):
    """No such path in this API."""

    slug = "unknown-route"
    title = "No such path"
    status = 404
    remedy = "GET /openapi.json lists the paths"
    exit = Exit.USAGE


class MethodNotAllowedError(LocalError):
    """The path exists, but not for this method."""

    slug = "method-not-allowed"
    title = "The path does not take this method"
    status = 405
    remedy = "GET /openapi.json lists the methods of each path"
    exit = Exit.USAGE


class BodyTooLargeError(LocalError):
    """A request body over the limit."""

    slug = "body-too-large"
    title = "The request body is too large"
    status = 413
    remedy = "send a smaller body"
    exit = Exit.BAD_INPUT


class UnsatisfiableRangeError(LocalError):
    """A Range that starts at or after the end."""

    slug = "range-not-satisfiable"
    title = "The range lies outside the content"
    status = 416
    remedy = "ask for the content's length first, with HEAD"
    exit = Exit.BAD_INPUT


class PreconditionFailedError(LocalError):
    """If-Match names other content."""

    slug = "precondition-failed"
    title = "The content is not the one asked for"
    status = 412
    remedy = "read it anew, without If-Match"
    exit = Exit.CONFLICT


class UnknownStreamError(LocalError):
    """The node does not follow such a stream."""

    slug = "unknown-stream"
    title = "No such stream on this node"
    status = 404
    remedy = "check its name, and streams.follow in config.toml; 'patchswarm status' shows what is followed"
    exit = Exit.NOT_FOUND


class UnknownVersionError(LocalError):
    """No such version, or its bytes are not held on this node (any more)."""

    slug = "unknown-version"
    title = "No such version on this node"
    status = 404
    remedy = "'patchswarm versions' shows what is here"
    exit = Exit.NOT_FOUND


class VersionNotReadyError(LocalError):
    """The version waited for was not committed here in time."""

    slug = "version-not-ready"
    title = "The version is not here yet"
    status = 404
    remedy = "wait longer; 'patchswarm status' shows how far it is"
    exit = Exit.TIMEOUT


class LoadInFullError(LocalError):
    """No delta leads from one version to the other: tensors came, went or changed, or a delta would not be smaller."""

    slug = "load-in-full"
    title = "There is no delta between these versions"
    status = 409
    remedy = "load the version in full"
    exit = Exit.CONFLICT


class UnknownFileError(LocalError):
    """The version has no such file."""

    slug = "unknown-file"
    title = "No such file in this version"
    status = 404
    remedy = "GET …/files lists the version's files"
    exit = Exit.NOT_FOUND


class UnknownTensorError(LocalError):
    """The version has no such tensor."""

    slug = "unknown-tensor"
    title = "No such tensor in this version"
    status = 404
    remedy = "GET …/tensors lists the version's tensors"
    exit = Exit.NOT_FOUND


class AmbiguousTensorError(LocalError):
    """Several files of the version have a tensor of this name."""

    slug = "ambiguous-tensor"
    title = "Several files have a tensor of this name"
    status = 409
    remedy = "name the file too"
    exit = Exit.BAD_INPUT


class UnknownLeaseError(LocalError):
    """There never was such a lease here, or the daemon has been restarted since."""

    slug = "unknown-lease"
    title = "No such lease"
    status = 404
    remedy = "take a new one and load again"
    exit = Exit.NOT_FOUND


class LeaseGoneError(LocalError):
    """The lease ran out or was voided: what was read under it may not be this version's bytes any more."""

    slug = "lease-gone"
    title = "The lease is gone"
    status = 410
    remedy = "take a new one and load again"
    exit = Exit.CONFLICT


class NotPublisherError(LocalError):
    """The node may not publish in this stream."""

    slug = "not-publisher"
    title = "This node may not publish here"
    status = 403
    remedy = "publish on the stream's head"
    exit = Exit.REFUSED


class VersionNotRisingError(LocalError):
    """A version number that is not above the newest one."""

    slug = "version-not-rising"
    title = "Version numbers must rise"
    status = 409
    remedy = "name a higher number, or none to take the next"
    exit = Exit.CONFLICT


class PublishBusyError(LocalError):
    """Another publish in this stream is under way."""

    slug = "publish-busy"
    title = "Another publish is under way"
    status = 409
    remedy = "wait until it has ended, and publish again"
    exit = Exit.CONFLICT


class BadSourceError(LocalError):
    """The directory to publish is missing, empty, malformed, or changed while it was read."""

    slug = "bad-source"
    title = "The directory cannot be published"
    status = 422
    remedy = "give the directory of a finished checkpoint, with whole safetensors files"
    exit = Exit.BAD_INPUT


class UnavailableError(LocalError):
    """The daemon cannot do this now: it is starting, stopping or has no slot free."""

    slug = "unavailable"
    title = "The daemon cannot do this now"
    status = 503
    remedy = "try again in a moment"
    exit = Exit.NOT_RUNNING


class NotReadyError(LocalError):
    """The node does not serve current weights; `context["reasons"]` says why."""

    slug = "not-ready"
    title = "The node is not ready"
    status = 503
    remedy = "wait; 'patchswarm status' shows what it is doing"
    exit = Exit.NOT_RUNNING


class StorageFailedError(LocalError):
    """The disk or the memory file system is full or broken."""

    slug = "storage-failed"
    title = "The node's storage failed"
    status = 507
    remedy = "see the daemon's log, and whether the disk is full or failing"
    exit = Exit.UNEXPECTED


_CLASSES: Final[tuple[type[LocalError], ...]] = (LocalError, *LocalError.__subclasses__())

PROBLEMS: Final = {error.slug: error for error in _CLASSES}
"""Every problem by its slug. Slugs are part of the API: they are added, never renamed."""
