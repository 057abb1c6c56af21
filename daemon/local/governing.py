"""The node's standing in the cluster: its problems, and words of the CA that it is to spread. Endpoints and client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec

from .connection import DaemonAddress, read_json
from .endpoint import Call, Endpoint, Nothing
from .errors import ForbiddenError, InvalidRequestError
from .model import NodeStatus
from .rights import Right

_TIMEOUT_S = 30.0


class ObjectRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/objects: a signed object, base64."""

    kind: Literal["stream", "revocation"]
    data: Annotated[bytes, msgspec.Meta(min_length=65, max_length=4096)]


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/objects."""

    new: bool
    """False when the node knew it already."""


def spread(socket: Path, kind: Literal["stream", "revocation"], data: bytes) -> bool:
    """Have the daemon on this socket spread a word of the CA; whether it is new to it. Raises LocalError."""
    body = ObjectRequest(kind=kind, data=data)
    with DaemonAddress(socket, "").exchange("POST", "/v1/objects", body=body, timeout_s=_TIMEOUT_S) as response:
        return read_json(response, Accepted).new


class Governing(Protocol):
    """The node, as these endpoints see it."""

    def node(self) -> NodeStatus:
        """The node itself, and what is wrong with it."""
        ...

    async def accept(self, kind: str, data: bytes) -> bool:
        """Take a word of the CA, make it durable and spread it; whether it is new.

        Raises InvalidRequestError when it is not signed by whoever should have signed it.
        """
        ...


class GoverningEndpoints:
    """What an operator asks and tells."""

    def __init__(self, service: Governing) -> None:
        self._service = service

    def table(self) -> tuple[Endpoint[Any, Any], ...]:
        """The endpoints."""
        return (
            Endpoint("GET", "/v1/node", "This node and its problems", self.node, Nothing, Nothing, NodeStatus),
            Endpoint(
                "POST",
                "/v1/objects",
                "Spread a revocation or stream record that the CA has signed",
                self.accept,
                Nothing,
                ObjectRequest,
                Accepted,
                problems=(InvalidRequestError, ForbiddenError),
                right=Right.ADMIN,
            ),
        )

    async def node(self, _call: Call[Nothing, Nothing]) -> NodeStatus:
        """GET /v1/node."""
        return self._service.node()

    async def accept(self, call: Call[Nothing, ObjectRequest]) -> Accepted:
        """POST /v1/objects."""
        return Accepted(new=await self._service.accept(call.body.kind, call.body.data))
