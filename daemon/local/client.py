"""The typed client: what an engine, a trainer or a script asks its local daemon.

    client = Client()
    version = client.wait("qwen", at_least=7)
    with client.lease("qwen") as lease:
        load(lease.path)

Every request has its own connection, so one client may be used from many threads. The module is light: numpy
is imported with the first `tensors`, torch with the first tensor asked for as one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from .connection import DaemonAddress, decode, default_socket, read_json, stream_path
from .errors import ConnectionLostError, LocalError, NotReadyError, VersionNotReadyError
from .lease import Lease
from .model import (
    PeerList,
    PeerStatus,
    PublishLine,
    PublishProgress,
    PublishRequest,
    PublishResult,
    Readiness,
    SlotCheck,
    StreamList,
    StreamStatus,
    TensorList,
    VerifyReport,
    VerifyRequest,
    VersionInfo,
    VersionList,
)

if TYPE_CHECKING:
    from .tensors import Tensors

__all__ = ["Client", "Lease", "LocalError"]

LONG_POLL_S: Final = 60.0
"""Longest single wait; longer ones are asked again, so that a dead connection is noticed."""

T = TypeVar("T")


class Client:
    """One daemon, through its unix socket's path or "http://HOST:PORT" with the token.

    Without an address: $PATCHSWARM_SOCKET, $PATCHSWARM_HOME/patchswarm.sock or ~/.patchswarm/patchswarm.sock.
    Every method raises LocalError (see `errors`): NotRunningError when no daemon answers, UnknownStreamError for
    a stream it does not follow, and what the methods name.
    """

    def __init__(self, socket: Path | str | None = None, *, token: str = "", timeout_s: float = 30.0) -> None:
        self._address = DaemonAddress(default_socket() if socket is None else socket, token)
        self._timeout_s = timeout_s

    def streams(self) -> list[StreamStatus]:
        """The streams that the node follows."""
        return self._get("/v1/streams", StreamList).streams

    def status(self, stream: str) -> StreamStatus:
        """State, current version, head, lag and progress of a stream."""
        return self._get(stream_path(stream), StreamStatus)

    def version(self, stream: str) -> VersionInfo:
        """The current version. Raises VersionNotReadyError when there is none yet."""
        return self._get(stream_path(stream, "version"), VersionInfo)

    def versions(self, stream: str) -> list[VersionInfo]:
        """Committed versions that the node knows, newest first."""
        return self._get(stream_path(stream, "versions"), VersionList).versions

    def wait(
        self, stream: str, at_least: int = 0, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> VersionInfo | None:
        """The current version as soon as it is `at_least` that, or None after `timeout_s` (None: never give up).

        With an epoch, (epoch, version) is compared.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = LONG_POLL_S if deadline is None else max(0.0, min(LONG_POLL_S, deadline - time.monotonic()))
            query = {"min": at_least, "wait": left, "epoch": epoch}
            try:
                with self._address.exchange(
                    "GET", stream_path(stream, "version"), query=query, timeout_s=left + self._timeout_s
                ) as response:
                    return read_json(response, VersionInfo)
            except VersionNotReadyError:
                if deadline is not None and time.monotonic() >= deadline:
                    return None

    def find(self, stream: str, label: str, timeout_s: float = 0.0) -> VersionInfo | None:
        """The newest version with a label that was committed here, or None when there is none after `timeout_s`.

        Its `path` is None when its bytes have made way for a newer version's.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, min(LONG_POLL_S, deadline - time.monotonic()))
            query = {"label": label, "wait": left}
            try:
                with self._address.exchange(
                    "GET", stream_path(stream, "version"), query=query, timeout_s=left + self._timeout_s
                ) as response:
                    return read_json(response, VersionInfo)
            except VersionNotReadyError:
                if time.monotonic() >= deadline:
                    return None

    def tensor_list(self, stream: str, version: int | None = None) -> TensorList:
        """Names, dtypes, shapes and places of a version's tensors, of the current version without a number."""
        number = "current" if version is None else version
        return self._get(stream_path(stream, "versions", number, "tensors"), TensorList)

    def follow(self, stream: str) -> Iterator[VersionInfo]:
        """The current version, then each newer one as it is committed, without end; some may be skipped."""
        version = self.wait(stream)
        while version is not None:  # without a timeout it never is
            yield version
            version = self.wait(stream, version.version + 1, epoch=version.epoch)

    def lease(self, stream: str, version: int | None = None, ttl_s: float = 60.0) -> Lease:
        """A context manager that holds a version's directory, the current one without a number; see `Lease`.

        Entering raises UnknownVersionError when the node does not hold the version.
        """
        return Lease(self._address, stream, version, ttl_s, self._timeout_s)

    @contextlib.contextmanager
    def tensors(self, stream: str, version: int | None = None, ttl_s: float = 60.0) -> Iterator[Tensors]:
        """A version's tensors as a mapping from name to numpy array, zero-copy, under a lease; see `Tensors`."""
        from .tensors import Tensors  # brings numpy

        with self.lease(stream, version, ttl_s) as lease:
            path = stream_path(stream, "versions", lease.version, "tensors")
            listing = self._get(path, TensorList)
            if listing.version.manifest != lease.info.manifest:
                raise LocalError(f"version {lease.version} of {stream!r} changed while it was opened; try again")
            tensors = Tensors(lease.path, listing.version, listing.tensors)
            try:
                yield tensors
            finally:
                tensors.release()

    def pull(
        self,
        stream: str,
        out: Path | str,
        version: int | None = None,
        wait_s: float = 0.0,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> VersionInfo:
        """Copy a version's files into the directory `out`, waiting up to `wait_s` for it; returns what was pulled.

        `out` must not exist or be empty; it appears when every file is there. `progress(done, total)` gets bytes.
        Raises BadInputError for an `out` that cannot be, VersionNotReadyError or UnknownVersionError.
        """
        from .pull import check_free, pull_files

        check_free(Path(out))  # before any waiting
        if wait_s and self.wait(stream, version or 0, wait_s) is None:
            wanted = "any version" if version is None else f"version {version}"
            raise VersionNotReadyError(f"stream {stream!r} has not had {wanted} here within {wait_s:g} s")
        with self.lease(stream, version) as lease:
            return pull_files(self._address, lease.info, Path(out), timeout_s=self._timeout_s, progress=progress)

    def publish(
        self,
        directory: Path | str,
        *,
        stream: str,
        version: int | None = None,
        label: str = "",
        base: bool = False,
        progress: Callable[[PublishProgress], None] | None = None,
    ) -> PublishResult:
        """Publish a checkpoint directory as the next version, or as `version`; `base`: the hosts have these bytes.

        Being interrupted abandons the publish. Raises NotPublisherError, BadSourceError, VersionNotRisingError or
        PublishBusyError.
        """
        request = PublishRequest(directory=os.path.abspath(directory), version=version, label=label, base=base)  # noqa: PTH100
        path = stream_path(stream, "versions")
        with self._address.exchange("POST", path, body=request, timeout_s=None) as response:
            for text in response:
                line = decode(text, PublishLine)
                if line.problem is not None:
                    raise LocalError.of(line.problem)
                if line.result is not None:
                    return line.result
                if line.progress is not None and progress is not None:
                    progress(line.progress)
        raise ConnectionLostError(
            "the daemon went away during the publish; 'patchswarm versions' tells what became of it"
        )

    def verify(self, stream: str, *, repair: bool = False) -> list[SlotCheck]:
        """Have every slot of a stream held against its digest table, and wrong blocks mended with `repair`.

        Takes as long as reading the slots does.
        """
        path = stream_path(stream, "verify")
        with self._address.exchange("POST", path, body=VerifyRequest(repair=repair), timeout_s=None) as response:
            return read_json(response, VerifyReport).slots

    def peers(self) -> list[PeerStatus]:
        """The other nodes, as this one sees them."""
        return self._get("/v1/peers", PeerList).peers

    def ready(self) -> Readiness:
        """Whether the node serves current weights, and if not, why."""
        try:
            return self._get("/readyz", Readiness)
        except NotReadyError as error:
            return Readiness(ready=False, reasons=[str(reason) for reason in error.context.get("reasons", [])])

    def _get(self, path: str, kind: type[T]) -> T:
        with self._address.exchange("GET", path, timeout_s=self._timeout_s) as response:
            return read_json(response, kind)
