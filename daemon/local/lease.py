"""A lease as its holder sees it: a directory that nobody writes to, renewed in the background while it is held."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from . import asks
from .asks import Ask
from .connection import DaemonAddress, decode
from .errors import LeaseGoneError, LocalError, UnknownLeaseError
from .model import LeaseInfo

RENEWALS_PER_TTL: Final = 3
"""A lease is renewed so often within its life that two lost renewals do no harm."""

T = TypeVar("T")


class Hold:
    """What is known of a lease: from the daemon's last word on it, until it is lost."""

    def __init__(self) -> None:
        self._info: LeaseInfo | None = None
        self._lost: LocalError | None = None
        self._good_until_s = 0.0

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

    def _took(self, info: LeaseInfo, asked_s: float, ttl_s: float) -> None:
        """The daemon granted or renewed it, asked at `asked_s` (monotonic)."""
        self._info = info
        self._good_until_s = asked_s + ttl_s

    def _is_lost(self, error: LocalError) -> bool:
        """Whether a renewal that failed was the last: the daemon may be back before the lease runs out."""
        if isinstance(error, LeaseGoneError | UnknownLeaseError) or time.monotonic() >= self._good_until_s:
            self._lost = error
        return self._lost is not None

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
        self,
        address: DaemonAddress,
        stream: str,
        version: int | None,
        ttl_s: float,
        timeout_s: float,
        group: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._address = address
        self._wanted = asks.lease(stream, version, ttl_s, group)
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._leave = threading.Event()
        self._renewer = threading.Thread(target=self._renew_until_left, name="patchswarm-lease", daemon=True)

    def __enter__(self) -> Self:
        asked_s = time.monotonic()
        self._took(self._ask(self._wanted), asked_s, self._ttl_s)
        self._renewer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.set()
        self._renewer.join()
        try:
            self.check()
            self._ask(asks.release(self.info))
        except LocalError:
            if error is None:
                raise

    def _renew_until_left(self) -> None:
        while not self._leave.wait(self._ttl_s / RENEWALS_PER_TTL):
            asked_s = time.monotonic()
            try:
                self._took(self._ask(asks.renew(self.info, self._ttl_s)), asked_s, self._ttl_s)
            except LocalError as error:
                if self._is_lost(error):
                    return

    def _ask(self, ask: Ask[T]) -> T:
        with self._address.exchange(
            ask.method, ask.path, query=ask.query, body=ask.body, timeout_s=ask.timeout_s(self._timeout_s)
        ) as response:
            return decode(response.read() or b"{}", ask.answer)
