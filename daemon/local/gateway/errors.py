"""What the gateway answers when it does not pass a request on, and what can go wrong with an engine.

The bodies follow the contract that rollout clients know: a flat object for WeightVersionNotReady, everything else
under "error", as OpenAI's clients read it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import DaemonError
from ...exits import Exit


class GatewayError(DaemonError):
    """A request that is answered by the gateway itself. The class's name without "Error" is its stable `type`."""

    exit = Exit.REFUSED
    status: ClassVar[int] = 500
    retry_after_s: ClassVar[int | None] = None

    @property
    def type(self) -> str:
        """The stable name of this kind of answer."""
        return type(self).__name__.removesuffix("Error")

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object that is answered."""
        return {
            "error": {
                "type": self.type,
                "message": str(self),
                "code": self.status,
                "retryable": self.retry_after_s is not None,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class InvalidConstraintError(GatewayError):
    """`weight_version` or one of its headers is malformed."""

    remedy = "write it as docs/gateway.md shows"
    status = 400
    exit = Exit.BAD_INPUT


class ContradictoryConstraintError(GatewayError):
    """No version whatever satisfies the request."""

    remedy = "leave out what contradicts the rest"
    status = 400
    exit = Exit.BAD_INPUT


class InvalidRequestError(GatewayError):
    """The request itself is malformed."""

    remedy = "send what the engine's API takes"
    status = 400
    exit = Exit.BAD_INPUT


class RouteBlockedError(GatewayError):
    """A route that would change the engine's weights behind the gateway's back."""

    remedy = "publish the weights: the gateway loads them"
    status = 403


class UnauthorizedError(GatewayError):
    """A host of the group must show the group's token."""

    status = 401


class WeightVersionNotReadyError(GatewayError):
    """The engine does not have acceptable weights, and did not get them in time."""

    remedy = "ask again in a moment, or accept other versions"
    status = 409
    retry_after_s = 1

    def __init__(
        self,
        message: str,
        *,
        target: int | None,
        applied: int | None,
        on_its_way: dict[str, Any] | None = None,
        passed: bool = False,
    ) -> None:
        super().__init__(message)
        self._fields = {"target_version": target, "applied": applied, "on_its_way": on_its_way}
        self._passed = passed

    @property
    def body(self) -> dict[str, Any]:
        """Flat, as version-aware rollout clients read it."""
        return {"type": self.type, **self._fields, "message": str(self), "retryable": not self._passed}

    @property
    def headers(self) -> dict[str, str]:
        """A version that has passed does not come back: no reason to try again."""
        return {} if self._passed else super().headers


class EngineUnavailableError(GatewayError):
    """The engine does not answer, or its weights are not known."""

    remedy = "see the engine's log, and ask again"
    status = 503
    retry_after_s = 1


class WeightVersionMovedError(GatewayError):
    """The request was cut: it held the engine back from a version that it does not accept for longer than allowed."""

    remedy = "ask again"
    status = 503
    retry_after_s = 1


class EngineGarbageError(GatewayError):
    """The engine answered something that it should not."""

    remedy = "see the engine's log"
    status = 502
    retry_after_s = 1


class WeightVersionMismatchError(EngineGarbageError):
    """The engine says that it answered with other weights than it was given."""


class GroupNotReadyError(DaemonError):
    """A host of the group does not hold the version, or cannot be asked."""

    remedy = "see the daemon and the gateway of that host"
    exit = Exit.NOT_RUNNING
