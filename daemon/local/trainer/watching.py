"""Watches a trainer's output directory and publishes each finished checkpoint folder, oldest first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ...errors import BadInputError
from ..aio_client import AsyncClient
from ..client import Client
from ..errors import (
    BadSourceError,
    ConnectionLostError,
    NotRunningError,
    PublishBusyError,
    StorageFailedError,
    UnavailableError,
    UnknownStreamError,
)
from ..model import PublishResult, VersionInfo
from ..slime.source import applied
from . import staging
from .errors import StagingError
from .finding import Finished, Patience, Sight, look, missing, step_of
from .record import Done, Intent, Record
from .selecting import DEFAULT_EXCLUDES, selected

PASSING: Final = (
    NotRunningError,
    ConnectionLostError,
    PublishBusyError,
    UnavailableError,
    StorageFailedError,
    StagingError,
)
"""What may be over at the next look; anything else the folder, or this watcher, will not get over."""

What = Literal["watching", "waiting", "retrying", "skipped", "published", "refused"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a watcher says: `text` for people, the rest for programs."""

    event: What
    text: str
    folder: str | None = None
    version: int | None = None
    patch_bytes: int | None = None
    full_bytes: int | None = None


Say = Callable[[Event], None]


@dataclass(frozen=True)
class Options:
    """What is watched for, and how."""

    directory: Path
    stream: str
    match: str = "*"
    marker: str = "STABLE"
    finished: Finished = "auto"
    settle_s: float = 10.0
    newest_only: bool = False
    label: str = "{name}"
    exclude: Sequence[str] = DEFAULT_EXCLUDES
    poll_s: float = 2.0
    staging: Path | None = None
    """Where files are made for the daemon to read; see `staging.root_of`."""

    def label_of(self, name: str) -> str:
        """The label of a folder's version. Raises BadInputError for a template that cannot be filled."""
        step = step_of(name)
        try:
            return self.label.format(name=name, step="" if step is None else step)
        except (KeyError, IndexError, ValueError, AttributeError):
            raise BadInputError(f"--label {self.label!r}: use only {{name}} and {{step}}") from None


class Watcher:
    """Publishes what it finds. `client` and `leases` lead to the same daemon; `say` gets one line for each event."""

    def __init__(
        self,
        options: Options,
        client: AsyncClient,
        leases: Client,
        record: Record,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        options.label_of("step_1")  # a template that cannot be filled is said at once
        self._options = options
        self._client = client
        self._leases = leases
        self._record = record
        self._say = say
        self._clock = clock
        self._patience = Patience(options.finished, options.settle_s)
        self._said: dict[str, str] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until `stop` is set, or the task is cancelled: what is being published is abandoned then."""
        while not stop.is_set():
            if await self.step():
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.poll_s):
                    await stop.wait()

    async def step(self) -> bool:
        """Look once, and publish or skip one folder at most; whether it did, so that another look is due at once.

        Raises what no waiting will mend: no right to publish, another stream's owner, an unusable label.
        """
        try:
            seen = await asyncio.to_thread(look, self._options.directory, self._options.match, self._options.marker)
        except OSError as error:
            self._say_once("", "retrying", f"{self._options.directory} cannot be read: {error.strerror}; looking again")
            return False
        self._forget_vanished(seen)
        try:
            ready = [sight for sight in seen if await self._is_ready(sight)]
            if not ready:
                return False
            if self._options.newest_only and self._skip_older(ready):
                return True
            await self._publish(ready[0])
        except PASSING as error:
            self._say_once("", "retrying", f"{error}; trying again")
            return False
        self._said.pop("", None)
        return True

    # -- which -----------------------------------------------------------------------------------------------

    async def _is_ready(self, sight: Sight) -> bool:
        """Whether a folder is finished and nothing has been done with it yet."""
        if self._record.done(sight.name, sight.stamp) is not None:
            return False
        if not self._patience.is_finished(sight, self._clock()):
            return False
        lack = await asyncio.to_thread(missing, sight.path)
        if lack is not None:
            self._say_once(sight.name, "waiting", f"waiting for {sight.name}: {lack}")
        return lack is None

    def _skip_older(self, ready: list[Sight]) -> bool:
        """Skip what comes before the newest checkpoint. Deltas after it build on it and are all needed."""
        whole = [number for number, sight in enumerate(ready) if not sight.delta]
        if not whole or whole[-1] == 0:
            return False
        newest = ready[whole[-1]]
        for sight in ready[: whole[-1]]:
            why = f"a newer one, {newest.name}, is ready"
            self._record.finish(sight.name, Done(stamp=sight.stamp, outcome="skipped", why=why))
            self._say(Event("skipped", f"skipped {sight.name}: {why}", sight.name))
        return True

    def _forget_vanished(self, seen: list[Sight]) -> None:
        names = {sight.name for sight in seen}
        self._record.keep(names)
        self._patience.forget(names)

    # -- publishing ------------------------------------------------------------------------------------------

    async def _publish(self, sight: Sight) -> None:
        label = self._options.label_of(sight.name)
        versions = await self._versions()
        begun = self._record.intent
        if begun is not None and (begun.name, begun.stamp) == (sight.name, sight.stamp):
            for version in versions:  # its end was not seen: this process's predecessor died, or the daemon went away
                if version.label == begun.label and (version.epoch, version.version) > begun.after:
                    done = Done(stamp=sight.stamp, outcome="published", version=version.version)
                    self._record.finish(sight.name, done)
                    text = f"{sight.name} was published before, as version {version.version}"
                    self._say(Event("published", text, sight.name, version.version))
                    return
        else:
            after = (versions[0].epoch, versions[0].version) if versions else (0, 0)
            self._record.begin(Intent(name=sight.name, stamp=sight.stamp, label=label, after=after))
        try:
            async with self._as_checkpoint(sight) as folder:
                result = await self._client.publish(folder, stream=self._options.stream, label=label)
        except (BadSourceError, BadInputError) as error:
            self._record.finish(sight.name, Done(stamp=sight.stamp, outcome="refused", why=str(error)))
            self._say(Event("refused", f"refused {sight.name}: {error}", sight.name))
            return
        self._note_published(sight.name, sight.stamp, result)

    @contextlib.asynccontextmanager
    async def _as_checkpoint(self, sight: Sight) -> AsyncIterator[Path]:
        """The folder to publish: itself, a selection of its files, or what its changes make of the newest version."""
        options = self._options
        root = await asyncio.to_thread(staging.root_of, self._leases, options.staging)
        if sight.delta:
            making = applied(sight.path, self._leases, options.stream, root)
        else:
            making = selected(sight.path, options.exclude, root, options.stream)
        entering = asyncio.ensure_future(asyncio.to_thread(making.__enter__))
        try:
            folder = await asyncio.shield(entering)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):  # the cancellation is what counts now
                await entering
                await asyncio.to_thread(making.__exit__, None, None, None)
            raise
        try:
            yield folder
        finally:
            await asyncio.to_thread(making.__exit__, None, None, None)

    async def _versions(self) -> list[VersionInfo]:
        try:
            return await self._client.versions(self._options.stream)
        except UnknownStreamError:
            return []

    def _note_published(self, name: str, stamp: str, result: PublishResult) -> None:
        self._record.finish(name, Done(stamp=stamp, outcome="published", version=result.version))
        patch, full = result.patch_bytes, result.full_bytes
        text = f"published {name} as version {result.version}: {patch / 1e6:.3f} MB of {full / 1e6:.3f} MB"
        self._say(Event("published", text, name, result.version, patch, full))

    def _say_once(self, about: str, event: What, text: str) -> None:
        """Say what holds on only when it changes."""
        if self._said.get(about) != text:
            self._said[about] = text
            self._say(Event(event, text, about or None))
