"""Endpoint for what changes from one version to another: changed positions and new values, as one safetensors file."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web

from .conditions import strong_etag
from .endpoint import MAX_VERSION, Call, Endpoint, Nothing
from .errors import (
    InvalidRequestError,
    LoadInFullError,
    PreconditionFailedError,
    StorageFailedError,
    UnavailableError,
    UnknownStreamError,
    UnknownVersionError,
    UnsatisfiableRangeError,
)
from .ranged import serve_span
from .sendfile import FileSender, Span
from .service import LocalService
from .streams import STREAM

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_VERSION)]


class DeltaQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query of GET …/delta: from which version to which; without `to`, to the current one."""

    start: _Number = msgspec.field(name="from")
    to: _Number | None = None


class DeltaEndpoint:
    """GET …/delta."""

    def __init__(self, service: LocalService, sender: FileSender) -> None:
        self._service = service
        self._sender = sender

    def table(self) -> tuple[Endpoint[Any, Any], ...]:
        """The endpoint."""
        return (
            Endpoint(
                "GET",
                STREAM + "/delta",
                "What changes from one version to another: NAME.indices and NAME.values, as safetensors",
                self.delta,
                DeltaQuery,
                Nothing,
                media="application/octet-stream",
                problems=(
                    UnknownStreamError,
                    UnknownVersionError,
                    InvalidRequestError,
                    LoadInFullError,
                    UnavailableError,
                    StorageFailedError,
                    UnsatisfiableRangeError,
                    PreconditionFailedError,
                ),
            ),
        )

    async def delta(self, call: Call[DeltaQuery, Nothing]) -> web.StreamResponse:
        """GET …/delta. The answer begins when the delta is made, which takes as long as reading the version does."""
        async with self._service.open_delta(call.stream, call.query.start, call.query.to) as opened:
            headers = {
                "Patchswarm-From": str(opened.start),
                "Patchswarm-Epoch": str(opened.epoch),
                "Patchswarm-Version": str(opened.version),
                "Patchswarm-Proven": "true" if opened.proven else "false",
            }
            etag = strong_etag(opened.start_manifest, "delta", opened.manifest)
            span = Span(opened.descriptor, 0, opened.size_bytes)
            return await serve_span(call.request, self._sender, span, etag, headers, opened.voided)
