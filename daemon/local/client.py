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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from http.client import HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import asks
from .asks import Ask
from .connection import DaemonAddress, default_socket, read_json
from .errors import LocalError, NotReadyError, VersionNotReadyError
from .lease import Lease
from .model import (
    NodeStatus,
    PeerStatus,
    PublishProgress,
    PublishResult,
    Readiness,
    SlotCheck,
    StreamStatus,
    TensorList,
    VersionInfo,
    VersionLife,
)

if TYPE_CHECKING:
    from .delta_file import Delta
    from .tensors import Tensors

__all__ = ["Client", "Lease", "LocalError"]

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
        return self._ask(asks.streams()).streams

    def status(self, stream: str) -> StreamStatus:
        """State, current version, head, lag and progress of a stream."""
        return self._ask(asks.status(stream))

    def version(self, stream: str) -> VersionInfo:
        """The current version. Raises VersionNotReadyError when there is none yet."""
        return self._ask(asks.version(stream))

    def versions(self, stream: str) -> list[VersionInfo]:
        """Committed versions that the node knows, newest first."""
        return self._ask(asks.versions(stream)).versions

    def lives(self, stream: str) -> list[VersionLife]:
        """What happened to each version on this node, and when; newest first."""
        return self._ask(asks.lives(stream)).lives

    def wait(
        self, stream: str, at_least: int = 0, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> VersionInfo | None:
        """The current version as soon as it is `at_least` that, or None after `timeout_s` (None: never give up).

        With an epoch, (epoch, version) is compared.
        """
        return self._wait(asks.Waiting(stream, at_least, timeout_s, epoch))

    def find(self, stream: str, label: str, timeout_s: float = 0.0) -> VersionInfo | None:
        """The newest version with a label that was committed here, or None when there is none after `timeout_s`.

        Its `path` is None when its bytes have made way for a newer version's.
        """
        return self._wait(asks.Waiting(stream, 0, timeout_s, label=label))

    def follow(self, stream: str) -> Iterator[VersionInfo]:
        """The current version, then each newer one as it is committed, without end; some may be skipped."""
        version = self.wait(stream)
        while version is not None:  # without a timeout it never is
            yield version
            version = self.wait(stream, version.version + 1, epoch=version.epoch)

    def lease(
        self, stream: str, version: int | None = None, ttl_s: float = 60.0, *, group: Sequence[str] = ()
    ) -> Lease:
        """A context manager that holds a version's directory, the current one without a number; see `Lease`.

        `group` names the other hosts of one engine by their node ids, or 8 or more first digits of them. Entering
        raises UnknownVersionError when the node does not hold the version, VersionNotReadyError when one of the group
        does not.
        """
        return Lease(self._address, stream, version, ttl_s, self._timeout_s, group)

    @contextlib.contextmanager
    def tensors(self, stream: str, version: int | None = None, ttl_s: float = 60.0) -> Iterator[Tensors]:
        """A version's tensors as a mapping from name to numpy array, zero-copy, under a lease; see `Tensors`."""
        from .tensors import Tensors  # brings numpy

        with self.lease(stream, version, ttl_s) as lease:
            listing = self._ask(asks.tensors(stream, lease.version))
            if listing.version.manifest != lease.info.manifest:
                raise LocalError(
                    f"version {lease.version} of {stream!r} changed while it was opened", remedy="try again"
                )
            tensors = Tensors(lease.path, listing.version, listing.tensors)
            try:
                yield tensors
            finally:
                tensors.release()

    def delta(self, stream: str, start: int, end: int | None = None) -> Delta:
        """What changes from version `start`, which must be held here, to `end`, the current one for None; see `Delta`.

        Lease `start` for as long as deltas from it are wanted. Making it takes as long as reading the version does;
        it is held in memory. Raises UnknownVersionError, or LoadInFullError when no delta leads there.
        """
        from .delta_file import buffer_for, whole  # brings numpy

        with self._exchange(asks.delta(stream, start, end)) as response:
            buffer = buffer_for(response.length)
            rest = buffer.data
            while rest and (size := response.readinto(rest)):
                rest = rest[size:]
        return whole(buffer, len(rest))

    def tensor_list(self, stream: str, version: int | None = None) -> TensorList:
        """Names, dtypes, shapes and places of a version's tensors, of the current one without a number."""
        return self._ask(asks.tensors(stream, version))

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
        streamed: bool = True,
        progress: Callable[[PublishProgress], None] | None = None,
    ) -> PublishResult:
        """Publish a checkpoint directory as the next version, or as `version`; `base`: the hosts have these bytes.

        Unless it is `streamed` nothing is sent before all of it is encoded, which is slower. Being interrupted abandons
        the publish. Raises NotPublisherError, BadSourceError, VersionNotRisingError or PublishBusyError.
        """
        publishing = asks.Publishing(directory, stream, version, label, progress, base=base, streamed=streamed)
        with self._exchange(publishing.ask) as response:
            for line in response:
                if publishing.read(line):
                    break
        return publishing.result

    def verify(self, stream: str, *, repair: bool = False) -> list[SlotCheck]:
        """Have every slot of a stream held against its digest table, and wrong blocks mended with `repair`.

        Takes as long as reading the slots does.
        """
        return self._ask(asks.verify(stream, repair=repair)).slots

    def peers(self) -> list[PeerStatus]:
        """The other nodes, as this one sees them."""
        return self._ask(asks.peers()).peers

    def node(self) -> NodeStatus:
        """The node itself, and what is wrong with it."""
        return self._ask(asks.node())

    def ready(self) -> Readiness:
        """Whether the node serves current weights, and if not, why."""
        try:
            return self._ask(asks.ready())
        except NotReadyError as error:
            return asks.unready(error)

    def _wait(self, waiting: asks.Waiting) -> VersionInfo | None:
        while True:
            try:
                return self._ask(waiting.turn())
            except VersionNotReadyError:
                if waiting.over:
                    return None

    def _ask(self, ask: Ask[T]) -> T:
        with self._exchange(ask) as response:
            return read_json(response, ask.answer)

    def _exchange(self, ask: Ask[Any]) -> AbstractContextManager[HTTPResponse]:
        timeout_s = ask.timeout_s(self._timeout_s)
        return self._address.exchange(ask.method, ask.path, query=ask.query, body=ask.body, timeout_s=timeout_s)
