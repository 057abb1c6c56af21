"""What a client asks its daemon: every question as a value, whether the client that asks it blocks or not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from .connection import decode, stream_path
from .errors import ConnectionLostError, LocalError, NotReadyError
from .model import (
    LeaseInfo,
    LeaseRequest,
    LifeList,
    NodeStatus,
    PeerList,
    PublishLine,
    PublishProgress,
    PublishRequest,
    PublishResult,
    Readiness,
    RenewRequest,
    StreamList,
    StreamStatus,
    TensorList,
    VerifyReport,
    VerifyRequest,
    VersionInfo,
    VersionList,
)

LONG_POLL_S: Final = 60.0
"""Longest single wait; longer ones are asked again, so that a dead connection is noticed."""

T = TypeVar("T")


@dataclass(frozen=True)
class Ask(Generic[T]):
    """One request, and what its answer is read as."""

    method: str
    path: str
    answer: type[T]
    query: Mapping[str, object] = field(default_factory=dict)
    body: msgspec.Struct | None = None
    wait_s: float | None = 0.0
    """How much longer than usual the daemon may take; None: as long as it wants."""

    def timeout_s(self, usual_s: float) -> float | None:
        """Longest wait for a byte of the answer."""
        return None if self.wait_s is None else self.wait_s + usual_s


def streams() -> Ask[StreamList]:
    """The streams that the node follows."""
    return Ask("GET", "/v1/streams", StreamList)


def status(stream: str) -> Ask[StreamStatus]:
    """One stream."""
    return Ask("GET", stream_path(stream), StreamStatus)


def version(stream: str) -> Ask[VersionInfo]:
    """The current version."""
    return Ask("GET", stream_path(stream, "version"), VersionInfo)


def versions(stream: str) -> Ask[VersionList]:
    """The versions that the node knows."""
    return Ask("GET", stream_path(stream, "versions"), VersionList)


def lives(stream: str) -> Ask[LifeList]:
    """What happened to the versions on this node."""
    return Ask("GET", stream_path(stream, "lives"), LifeList)


def tensors(stream: str, number: int | None) -> Ask[TensorList]:
    """Where the tensors of a version stand, of the current one without a number."""
    version = "current" if number is None else number
    return Ask("GET", stream_path(stream, "versions", version, "tensors"), TensorList)


def delta(stream: str, start: int, end: int | None) -> Ask[bytes]:
    """What changes from one version to another, the current one for None; making it takes a while."""
    return Ask("GET", stream_path(stream, "delta"), bytes, {"from": start, "to": end}, wait_s=None)


def lease(stream: str, number: int | None, ttl_s: float, group: Sequence[str]) -> Ask[LeaseInfo]:
    """A hold on a version that every node of the group has committed."""
    request = LeaseRequest(version=number, ttl_s=ttl_s, group=list(group))
    return Ask("POST", stream_path(stream, "leases"), LeaseInfo, body=request)


def renew(held: LeaseInfo, ttl_s: float) -> Ask[LeaseInfo]:
    """A longer hold."""
    return Ask("PUT", stream_path(held.stream, "leases", held.lease), LeaseInfo, body=RenewRequest(ttl_s=ttl_s))


def release(held: LeaseInfo) -> Ask[dict[str, Any]]:
    """The end of a hold."""
    return Ask("DELETE", stream_path(held.stream, "leases", held.lease), dict)


def verify(stream: str, *, repair: bool) -> Ask[VerifyReport]:
    """Every slot held against its digest table."""
    return Ask("POST", stream_path(stream, "verify"), VerifyReport, body=VerifyRequest(repair=repair), wait_s=None)


def peers() -> Ask[PeerList]:
    """The other nodes."""
    return Ask("GET", "/v1/peers", PeerList)


def node() -> Ask[NodeStatus]:
    """The node itself."""
    return Ask("GET", "/v1/node", NodeStatus)


def ready() -> Ask[Readiness]:
    """Whether the node serves current weights."""
    return Ask("GET", "/readyz", Readiness)


def unready(error: NotReadyError) -> Readiness:
    """What an answer means that says no to `ready`."""
    return Readiness(ready=False, reasons=[str(reason) for reason in error.context.get("reasons", [])])


class Waiting:
    """A wait for a version, in turns that are short enough to notice a daemon that is gone.

    With an epoch, (epoch, version) is compared; with a label, it is one that has it. Without `timeout_s` it never
    gives up.
    """

    def __init__(
        self, stream: str, at_least: int, timeout_s: float | None, epoch: int | None = None, label: str | None = None
    ) -> None:
        self._path = stream_path(stream, "version")
        self._query = {"min": at_least, "epoch": epoch, "label": label}
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s

    def turn(self) -> Ask[VersionInfo]:
        """The next turn."""
        left_s = LONG_POLL_S
        if self._deadline_s is not None:
            left_s = max(0.0, min(LONG_POLL_S, self._deadline_s - time.monotonic()))
        return Ask("GET", self._path, VersionInfo, {**self._query, "wait": left_s}, wait_s=left_s)

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self._deadline_s is not None and time.monotonic() >= self._deadline_s


class Publishing:
    """A publish: its request, and its answer line by line. `result` is there once the line that has it was read."""

    def __init__(
        self,
        directory: Path | str,
        stream: str,
        number: int | None,
        label: str,
        progress: Callable[[PublishProgress], None] | None,
        *,
        base: bool,
        streamed: bool,
    ) -> None:
        folder = os.path.abspath(directory)  # noqa: PTH100 -- touches no disk, keeps symlinks as given
        request = PublishRequest(directory=folder, version=number, label=label, base=base, streamed=streamed)
        self.ask = Ask("POST", stream_path(stream, "versions"), PublishLine, body=request, wait_s=None)
        self._progress = progress
        self._result: PublishResult | None = None

    def read(self, text: bytes) -> bool:
        """Take a line; whether it is the last. Raises LocalError for one that says what went wrong."""
        line = decode(text, PublishLine)
        if line.problem is not None:
            raise LocalError.of(line.problem)
        if line.progress is not None and self._progress is not None:
            self._progress(line.progress)
        self._result = line.result
        return line.result is not None

    @property
    def result(self) -> PublishResult:
        """What was published. Raises ConnectionLostError when the daemon never said."""
        if self._result is None:
            raise ConnectionLostError(
                "the daemon went away during the publish",
                remedy="its list of versions ('patchswarm versions') tells what became of it",
            )
        return self._result
