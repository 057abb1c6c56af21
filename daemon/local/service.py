"""What the local API needs from the node: one Protocol, so that the HTTP side stands alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ...protocol.layout import Layout
from .governing import Governing
from .model import (
    LeaseInfo,
    PeerStatus,
    PublishProgress,
    PublishRequest,
    PublishResult,
    Readiness,
    SlotCheck,
    StreamStatus,
    VersionInfo,
)
from .observing import Observed


@dataclass(frozen=True)
class OpenVersion:
    """A version held open for one reader: its slot is not written to as long as this is held."""

    path: Path
    layout: Layout
    info: VersionInfo
    voided: threading.Event = field(default_factory=threading.Event)
    """Set when the hold is lost because the version was withdrawn: a transfer is then cut, not finished."""


@dataclass(frozen=True, kw_only=True)
class OpenDelta:
    """A delta held open for one reader: the whole safetensors file, from its first byte."""

    descriptor: int
    size_bytes: int
    start: int
    start_manifest: str
    epoch: int
    version: int
    """Where it leads."""
    manifest: str
    proven: bool
    """Whether the digest tables have confirmed both versions here."""
    voided: threading.Event = field(default_factory=threading.Event)
    """As of an OpenVersion."""


class LocalService(Governing, Observed, Protocol):
    """The node, as the local API sees it. Methods run on the event loop and return soon unless they are async.

    All raise UnknownStreamError for a stream that the node does not follow. Storage errors may pass through:
    the API maps them too.
    """

    def streams(self) -> list[StreamStatus]:
        """Every stream this node follows, sorted by name."""
        ...

    def status(self, stream: str) -> StreamStatus:
        """One stream."""
        ...

    async def versions(self, stream: str) -> list[VersionInfo]:
        """Committed versions that this node knows, newest first."""
        ...

    async def wait(
        self, stream: str, at_least: int, timeout_s: float, *, epoch: int | None = None
    ) -> VersionInfo | None:
        """The current version as soon as its number is `at_least`, or None after `timeout_s`; 0 only looks.

        With an epoch, (epoch, version) is compared instead: so a follower waits for whatever comes after the one
        it has, across a key rotation that starts numbers anew. A stream that is not announced yet may be waited
        for too; VersionNotReadyError when it was not in time.
        """
        ...

    async def publish(
        self, stream: str, request: PublishRequest, progress: Callable[[PublishProgress], None]
    ) -> PublishResult:
        """Publish a checkpoint directory, calling `progress` on the event loop now and then.

        Cancelled before the manifest is signed it leaves no version; afterwards it finishes all the same.
        Raises NotPublisherError, VersionNotRisingError, PublishBusyError or BadSourceError.
        """
        ...

    async def lease(self, stream: str, version: int | None, ttl_s: float, group: Sequence[str] = ()) -> LeaseInfo:
        """Hold a version's slot, the current one for None. Raises UnknownVersionError.

        With a `group` of node ids, or first digits of them, VersionNotReadyError unless each has committed it as well,
        and InvalidRequestError for what names no node, or several.
        """
        ...

    async def renew(self, stream: str, lease: str, ttl_s: float) -> LeaseInfo:
        """Hold it `ttl_s` from now. Raises UnknownLeaseError or LeaseGoneError."""
        ...

    async def release(self, stream: str, lease: str) -> None:
        """Let go. Raises UnknownLeaseError, or LeaseGoneError when it had run out or was voided."""
        ...

    async def verify(self, stream: str, *, repair: bool) -> list[SlotCheck]:
        """Hold every slot of a stream against its digest table, mending wrong blocks before it ends with `repair`."""
        ...

    def open_version(self, stream: str, version: int | None) -> AbstractAsyncContextManager[OpenVersion]:
        """Hold a version open, the current one for None, as long as the context lasts. Raises UnknownVersionError."""
        ...

    def open_delta(self, stream: str, start: int, end: int | None) -> AbstractAsyncContextManager[OpenDelta]:
        """What changes from one version to another, the current one for None, as long as the context lasts.

        Raises UnknownVersionError when `start` is not held here or `end` is not to be had from it, and storage's
        LoadInFullError.
        """
        ...

    def peers(self) -> list[PeerStatus]:
        """The other nodes this one knows."""
        ...

    def ready(self) -> Readiness:
        """Whether this node serves current weights."""
        ...

    def close(self) -> None:
        """Let go of what is kept for readers: there are none any more."""
        ...
