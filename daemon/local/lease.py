"""A lease as its holder sees it: a directory that nobody writes to, renewed in the background while it is held."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .connection import DaemonAddress, read_json, stream_path
from .errors import LeaseGoneError, LocalError, UnknownLeaseError
from .model import LeaseInfo, LeaseRequest, RenewRequest

RENEWALS_PER_TTL: Final = 3
"""A lease is renewed so often within its life that two lost renewals do no harm."""


class Hold:
    """What is known of a lease: from the daemon's last word on it, until it is lost."""

    def __init__(self) -> None:
        self._info: LeaseInfo | None = None
        self._lost: LocalError | None = None

    @property
    def info(self) -> LeaseInfo:
        """What the daemon last said of the lease."""
        assert self._info is not None, "the lease is taken by entering its context"
        return self._info

    @property
    def path(self) -> Path:
        """The checkpoint's directory. Do not write to it, and keep no mapping of its files after leaving."""
        return Path(self.info.path)

    @property
    def version(self) -> int:
        """The version held."""
        return self.info.version

    @property
    def proven(self) -> bool:
        """Whether the whole digest table has confirmed the slot; may become true while the lease is held."""
        return self.info.proven

    def check(self) -> None:
        """Raise LeaseGoneError or UnknownLeaseError when the hold is known to be lost."""
        if self._lost is not None:
            raise self._lost


class Lease(Hold):
    """A hold on one version's directory, from entering the context to leaving it.

    Leaving raises LeaseGoneError (or UnknownLeaseError after a restart of the daemon) when the hold was lost on
    the way: the slot may have been withdrawn, so what was read from it must not be used. When the daemon cannot
    be asked, NotRunningError says that much. An exception that is already under way is not replaced.
    """

    def __init__(
        self, address: DaemonAddress, stream: str, version: int | None, ttl_s: float, timeout_s: float
    ) -> None:
        super().__init__()
        self._address = address
        self._stream = stream
        self._wanted = LeaseRequest(version=version, ttl_s=ttl_s)
        self._timeout_s = timeout_s
        self._leave = threading.Event()
        self._renewer = threading.Thread(target=self._renew_until_left, name="patchswarm-lease", daemon=True)

    def __enter__(self) -> Self:
        path = stream_path(self._stream, "leases")
        with self._address.exchange("POST", path, body=self._wanted, timeout_s=self._timeout_s) as response:
            self._info = read_json(response, LeaseInfo)
        self._renewer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.set()
        self._renewer.join()
        try:
            self.check()
            path = stream_path(self._stream, "leases", self.info.lease)
            with self._address.exchange("DELETE", path, timeout_s=self._timeout_s):
                pass
        except LocalError:
            if error is None:
                raise

    def _renew_until_left(self) -> None:
        ttl_s = self._wanted.ttl_s
        path = stream_path(self._stream, "leases", self.info.lease)
        good_until = time.monotonic() + ttl_s
        while not self._leave.wait(ttl_s / RENEWALS_PER_TTL):
            asked = time.monotonic()
            try:
                body = RenewRequest(ttl_s=ttl_s)
                with self._address.exchange("PUT", path, body=body, timeout_s=self._timeout_s) as response:
                    self._info = read_json(response, LeaseInfo)
                good_until = asked + ttl_s
            except (LeaseGoneError, UnknownLeaseError) as error:
                self._lost = error
                return
            except LocalError as error:  # the daemon may be back before the lease runs out
                if time.monotonic() >= good_until:
                    self._lost = error
                    return
