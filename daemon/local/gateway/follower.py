"""A follower: what the local daemon holds of one stream, and what it knows to be on its way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ..aio_client import AsyncClient
from ..errors import LocalError
from ..model import StreamStatus, VersionInfo
from .choice import Applied, Order

LOOK_S: Final = 1.0
"""How often head and lag are looked at. A commit is told at once, by the daemon's long poll."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stream and what it is loaded as."""

    stream: str
    adapter: str = ""
    """The LoRA adapter's name; "" for the model's own weights."""


class Follower:
    """Follows one stream. `status` is the daemon's last word on it, `held` the versions that it can lease out."""

    def __init__(self, client: AsyncClient, target: Target, changed: Callable[[], None]) -> None:
        self.target = target
        self.status: StreamStatus | None = None
        self.held: list[VersionInfo] = []
        self.failure = "the daemon has not been asked yet"
        """Why the daemon's word is missing or old, or ""."""
        self._client = client
        self._changed = changed
        self._since_s = 0.0

    @property
    def head(self) -> Order | None:
        """The newest version that the fleet has announced."""
        head = self.status.head if self.status else None
        return None if head is None else (head.epoch, head.version)

    @property
    def current(self) -> Order | None:
        """The newest version that is committed on this host."""
        current = self.status.current if self.status else None
        return None if current is None else (current.epoch, current.version)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
                after = self.current
                await self._client.wait(
                    self.target.stream,
                    after[1] + 1 if after else 0,
                    LOOK_S,
                    epoch=after[0] if after else None,
                )
            except LocalError as error:
                self.failure = str(error)
                self._changed()
                await asyncio.sleep(LOOK_S)  # there is nobody to wait on

    async def look(self) -> None:
        """Ask the daemon now. Raises LocalError."""
        status = await self._client.status(self.target.stream)
        news = self.status is None or self.failure or _seen(status) != _seen(self.status)
        if news:
            self.held = [each for each in await self._client.versions(self.target.stream) if each.path]
        before, self.status, self.failure = self.current, status, ""
        if self.current != before:
            self._since_s = time.monotonic()
        if news:
            self._changed()

    def waiting_s(self, applied: Applied | None) -> float:
        """Seconds for which this host has had something newer than is applied."""
        behind = self.current is not None and (applied is None or self.current > applied.order)
        return time.monotonic() - self._since_s if behind else 0.0

    def find(self, order: Order) -> VersionInfo | None:
        """The held version of that order."""
        return next((each for each in self.held if (each.epoch, each.version) == order), None)

    def on_its_way(self) -> dict[str, Any] | None:
        """The version in the making, for those who are told to wait."""
        status = self.status
        if status is None or status.head is None or self.head == self.current:
            return None
        progress = None if status.progress is None else msgspec.to_builtins(status.progress)
        return {"version": status.head.version, "state": str(status.state), "progress": progress}

    def withdrew(self, applied: Applied) -> bool:
        """Whether the daemon took back what the engine has loaded: committed versions go backwards in no other way."""
        return not self.failure and self.status is not None and (self.current is None or self.current < applied.order)


def _seen(status: StreamStatus) -> tuple[object, ...]:
    current, head = status.current, status.head
    return (
        status.state,
        None if current is None else (current.epoch, current.version, current.manifest, current.path, current.proven),
        None if head is None else (head.epoch, head.version, head.manifest),
    )
