"""Endpoints about the node itself: peers, liveness, readiness."""

from __future__ import annotations

from typing import Any

from .endpoint import Call, Endpoint, Nothing
from .errors import NotReadyError
from .model import Health, PeerList, Readiness
from .service import LocalService


class NodeEndpoints:
    """The node as a whole."""

    def __init__(self, service: LocalService) -> None:
        self._service = service

    def table(self) -> tuple[Endpoint[Any, Any], ...]:
        """The endpoints."""
        return (
            Endpoint(
                "GET", "/v1/peers", "The other nodes, as this one sees them", self.peers, Nothing, Nothing, PeerList
            ),
            Endpoint("GET", "/healthz", "Whether the daemon lives", self.healthz, Nothing, Nothing, Health),
            Endpoint(
                "GET",
                "/readyz",
                "Whether this node serves current weights",
                self.readyz,
                Nothing,
                Nothing,
                Readiness,
                problems=(NotReadyError,),
            ),
        )

    async def peers(self, _call: Call[Nothing, Nothing]) -> PeerList:
        """GET /v1/peers."""
        return PeerList(self._service.peers())

    async def healthz(self, _call: Call[Nothing, Nothing]) -> Health:
        """GET /healthz. That it answers is the whole of it."""
        return Health(ok=True)

    async def readyz(self, _call: Call[Nothing, Nothing]) -> Readiness:
        """GET /readyz. 503 with the reasons when not."""
        readiness = self._service.ready()
        if not readiness.ready:
            raise NotReadyError("not ready: " + "; ".join(readiness.reasons), reasons=readiness.reasons)
        return readiness
