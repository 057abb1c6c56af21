"""Endpoints about streams, versions and leases."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import msgspec

from .endpoint import MAX_VERSION, Call, Endpoint, Nothing
from .errors import (
    ForbiddenError,
    InvalidRequestError,
    LeaseGoneError,
    UnavailableError,
    UnknownLeaseError,
    UnknownStreamError,
    UnknownVersionError,
    VersionNotReadyError,
)
from .model import (
    MAX_WAIT_S,
    LeaseInfo,
    LeaseRequest,
    RenewRequest,
    StreamList,
    StreamStatus,
    VerifyReport,
    VerifyRequest,
    VersionInfo,
    VersionList,
)
from .rights import Right
from .service import LocalService

STREAM: Final = "/v1/streams/{stream}"


class VersionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query of GET …/version: wait up to `wait` seconds until the current version is at least `min`.

    With `epoch`, until (epoch, version) is at least (`epoch`, `min`). With `label` it is the newest version with that
    label that the current one is or has superseded, `min` and `epoch` bounding it from below.
    """

    min: Annotated[int, msgspec.Meta(ge=0, le=MAX_VERSION)] = 0
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 0.0
    epoch: Annotated[int, msgspec.Meta(ge=0, le=MAX_VERSION)] | None = None
    label: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None


class StreamEndpoints:
    """Streams, versions and leases of one node."""

    def __init__(self, service: LocalService) -> None:
        self._service = service

    def table(self) -> tuple[Endpoint[Any, Any], ...]:
        """The endpoints."""
        unknown = UnknownStreamError
        return (
            Endpoint("GET", "/v1/streams", "The streams this node follows", self.streams, Nothing, Nothing, StreamList),
            Endpoint(
                "GET", STREAM, "State of one stream", self.status, Nothing, Nothing, StreamStatus, problems=(unknown,)
            ),
            Endpoint(
                "GET",
                STREAM + "/version",
                "The current version; with min and wait, once it is at least that; with label, the newest with it",
                self.version,
                VersionQuery,
                Nothing,
                VersionInfo,
                problems=(unknown, InvalidRequestError, VersionNotReadyError),
            ),
            Endpoint(
                "GET",
                STREAM + "/versions",
                "Committed versions, newest first",
                self.versions,
                Nothing,
                Nothing,
                VersionList,
                problems=(unknown,),
            ),
            Endpoint(
                "POST",
                STREAM + "/leases",
                "Hold a version's directory",
                self.lease,
                Nothing,
                LeaseRequest,
                LeaseInfo,
                201,
                (unknown, UnknownVersionError, VersionNotReadyError, InvalidRequestError, UnavailableError),
            ),
            Endpoint(
                "PUT",
                STREAM + "/leases/{lease}",
                "Hold it longer",
                self.renew,
                Nothing,
                RenewRequest,
                LeaseInfo,
                problems=(unknown, UnknownLeaseError, LeaseGoneError, InvalidRequestError),
            ),
            Endpoint(
                "DELETE",
                STREAM + "/leases/{lease}",
                "Let go of it",
                self.release,
                Nothing,
                Nothing,
                status=204,
                problems=(unknown, UnknownLeaseError, LeaseGoneError),
            ),
            Endpoint(
                "POST",
                STREAM + "/verify",
                "Hold every slot against its digest table; with repair, mend what is wrong before answering",
                self.verify,
                Nothing,
                VerifyRequest,
                VerifyReport,
                problems=(unknown, InvalidRequestError, ForbiddenError),
                right=Right.ADMIN,
            ),
        )

    async def streams(self, _call: Call[Nothing, Nothing]) -> StreamList:
        """GET /v1/streams."""
        return StreamList(self._service.streams())

    async def status(self, call: Call[Nothing, Nothing]) -> StreamStatus:
        """GET /v1/streams/{stream}."""
        return self._service.status(call.stream)

    async def version(self, call: Call[VersionQuery, Nothing]) -> VersionInfo:
        """GET …/version. A wait in vain is a problem, so that `curl -f` and every other client notice it."""
        query = call.query
        if query.label is not None:
            return await find_label(self._service, call.stream, query)
        found = await self._service.wait(call.stream, query.min, query.wait, epoch=query.epoch)
        if found is not None:
            return found
        status = self._service.status(call.stream)
        here = f"version {status.current.version}" if status.current else "no version"
        wanted = f", not yet {query.min}" if query.min else " yet"
        raise VersionNotReadyError(
            f"stream {call.stream!r} has {here} here after {query.wait:g} s{wanted}",
            remedy="ask with a longer wait",
            current=status.current,
            head=status.head,
        )

    async def versions(self, call: Call[Nothing, Nothing]) -> VersionList:
        """GET …/versions."""
        return VersionList(await self._service.versions(call.stream))

    async def lease(self, call: Call[Nothing, LeaseRequest]) -> LeaseInfo:
        """POST …/leases."""
        return await self._service.lease(call.stream, call.body.version, call.body.ttl_s, call.body.group)

    async def renew(self, call: Call[Nothing, RenewRequest]) -> LeaseInfo:
        """PUT …/leases/{lease}."""
        return await self._service.renew(call.stream, call.lease, call.body.ttl_s)

    async def release(self, call: Call[Nothing, Nothing]) -> None:
        """DELETE …/leases/{lease}."""
        await self._service.release(call.stream, call.lease)

    async def verify(self, call: Call[Nothing, VerifyRequest]) -> VerifyReport:
        """POST …/verify."""
        return VerifyReport(await self._service.verify(call.stream, repair=call.body.repair))


async def find_label(service: LocalService, stream: str, query: VersionQuery) -> VersionInfo:
    """The newest version with a label, as soon as there is one here. Raises VersionNotReadyError after `query.wait`."""
    deadline = time.monotonic() + query.wait
    at_least, epoch = 0, None
    while True:
        current = await service.wait(stream, at_least, max(0.0, deadline - time.monotonic()), epoch=epoch)
        if current is None:
            raise VersionNotReadyError(
                f"stream {stream!r} has no version labelled {query.label!r} here after {query.wait:g} s",
                remedy="wait longer, or see with 'patchswarm versions' whether it is the label that was published",
                current=service.status(stream).current,
            )
        for version in await service.versions(stream):
            passed = (version.epoch, version.version) <= (current.epoch, current.version)
            if version.label == query.label and passed and _is_at_least(version, query):
                return version
        at_least, epoch = current.version + 1, current.epoch


def _is_at_least(version: VersionInfo, query: VersionQuery) -> bool:
    if query.epoch is None:
        return version.version >= query.min
    return (version.epoch, version.version) >= (query.epoch, query.min)
