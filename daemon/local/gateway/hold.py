"""Holding a version on every host of a group: an engine that is spread over several loads one path on all of them.

The gateway beside the engine leads. Each other host runs a gateway without an engine, which leases the version from
its own daemon when the leader asks:

    POST   /patchswarm/holds           Hold -> Held     as soon as its daemon has committed the version
    PUT    /patchswarm/holds/{hold}    Renewal -> Held
    DELETE /patchswarm/holds/{hold}

with `Authorization: Bearer TOKEN`, the content of the group's token file. A hold that is not renewed ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Annotated, Any, Final, Self

import aiohttp
import msgspec

from ..aio_client import AsyncClient
from ..aio_lease import AsyncLease
from ..errors import LocalError
from ..model import VersionInfo
from .errors import GroupNotReadyError

PATH: Final = "/patchswarm/holds"
TTL_S: Final = 60.0
HOLD_WAIT_S: Final = 20.0
"""How long a host may take to commit a version that the leader has."""
ANSWER_S: Final = 10.0

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Hold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST: the version to hold, and for how long to wait until it is committed there."""

    stream: Name
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    version: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    manifest: Name
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = HOLD_WAIT_S
    ttl_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = TTL_S


class Renewal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of PUT."""

    ttl_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = TTL_S


class Held(msgspec.Struct, frozen=True):
    """A version that is held on a host, and where it lies there."""

    hold: str
    path: str
    manifest: str


class Group:
    """The other hosts of the engine, from the leader's side. Without any, a version is held by a lease here alone."""

    def __init__(self, client: AsyncClient, members: Sequence[str] = (), token: str = "") -> None:
        self._client = client
        self._members = tuple(members)
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {self._token}"})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    @contextlib.asynccontextmanager
    async def holding(self, version: VersionInfo) -> AsyncIterator[AsyncLease]:
        """The version, held on this host and on every other, at one path, for as long as the context lasts.

        Raises GroupNotReadyError naming the host that does not hold it, and LocalError for this one; leaving raises
        either when a hold was lost on the way. An error that is already under way is not replaced.
        """
        async with contextlib.AsyncExitStack() as stack:
            lease = await stack.enter_async_context(self._client.lease(version.stream, version.version, TTL_S))
            if lease.info.manifest != version.manifest:
                raise GroupNotReadyError(f"version {version.version} of {version.stream} became another one here")
            remotes = [RemoteHold(self._open_session, member, version, str(lease.path)) for member in self._members]
            # Entered one after the other, asked all at once: what one of them refuses, none of them keeps.
            for remote in remotes:
                await stack.enter_async_context(remote)
            await _all(remote.take() for remote in remotes)
            yield lease

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "enter the group's context first"
        return self._session


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await coroutines together; the first failure ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


class RemoteHold:
    """A hold on one other host: taken with `take`, renewed until its context is left, then released."""

    def __init__(self, session: aiohttp.ClientSession, member: str, version: VersionInfo, path: str) -> None:
        self._session = session
        self._member = member
        self._version = version
        self._path = path
        self._held: Held | None = None
        self._lost: GroupNotReadyError | None = None
        self._renewer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def take(self) -> None:
        """Ask for the hold. Raises GroupNotReadyError."""
        version = self._version
        ask = Hold(stream=version.stream, epoch=version.epoch, version=version.version, manifest=version.manifest)
        self._held = await self._call("POST", PATH, ask, HOLD_WAIT_S + ANSWER_S)
        if self._held.path != self._path or self._held.manifest != version.manifest:
            raise GroupNotReadyError(
                f"{self._member} holds version {version.version} at {self._held.path}, this host at {self._path}; "
                "give all hosts of a group the same storage.slot_dir"
            )
        # Owned by this context: __aexit__ cancels and awaits it.
        self._renewer = asyncio.create_task(self._renew())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.wait([self._renewer])
        try:
            if self._held is not None:
                await self._call("DELETE", f"{PATH}/{self._held.hold}", None, ANSWER_S)
            if self._lost is not None:
                raise self._lost
        except GroupNotReadyError:
            if error is None:
                raise

    async def _renew(self) -> None:
        assert self._held is not None
        while True:
            await asyncio.sleep(TTL_S / 3)
            try:
                await self._call("PUT", f"{PATH}/{self._held.hold}", Renewal(), ANSWER_S)
            except GroupNotReadyError as error:  # releasing tells whether it was lost for good
                self._lost = error
            else:
                self._lost = None

    async def _call(self, method: str, path: str, body: msgspec.Struct | None, timeout_s: float) -> Held:
        what = f"{self._member}, a host of the group"
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(method, f"http://{self._member}{path}", data=data) as response,
            ):
                answer = await response.content.read(65536)
                if response.status >= 300:
                    said = " ".join(answer.decode(errors="replace").split())[:300]
                    raise GroupNotReadyError(f"{what}, does not hold the version: {said or response.status}")
                return msgspec.json.decode(answer, type=Held)
        except TimeoutError:
            raise GroupNotReadyError(f"{what}, did not answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise GroupNotReadyError(f"{what}, cannot be asked ({error})") from None
        except msgspec.DecodeError as error:
            raise GroupNotReadyError(f"{what}, answered something unexpected ({error})") from None


class HoldBook:
    """The holds that this host keeps for the leader of its group. A hold that is not renewed in time ends."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._holds: dict[str, contextlib.AsyncExitStack] = {}
        self._held: dict[str, Held] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, ask: Hold) -> Held:
        """Hold a version as soon as it is committed here. Raises LocalError."""
        await self._client.wait(ask.stream, ask.version, ask.wait_s, epoch=ask.epoch)
        async with contextlib.AsyncExitStack() as stack:
            lease = await stack.enter_async_context(self._client.lease(ask.stream, ask.version, TTL_S))
            if lease.info.manifest != ask.manifest:
                raise LocalError(
                    f"version {ask.version} of {ask.stream!r} is {lease.info.manifest} on this host",
                    remedy="wait until the hosts of the group follow the same head again",
                )
            held = Held(lease.info.lease, str(lease.path), lease.info.manifest)
            self._holds[held.hold], self._held[held.hold] = stack.pop_all(), held
        self._until(held.hold, ask.ttl_s)
        return held

    def renew(self, hold: str, ttl_s: float) -> Held | None:
        """Keep a hold longer; None when there is none (any more)."""
        if hold in self._held:
            self._until(hold, ttl_s)
        return self._held.get(hold)

    async def release(self, hold: str) -> Held | None:
        """End a hold; None when there is none (any more). Raises LocalError when it was lost on the way."""
        held, stack = self._held.pop(hold, None), self._holds.pop(hold, None)
        if (timer := self._timers.pop(hold, None)) is not None:
            timer.cancel()
        if stack is not None:
            await stack.aclose()
        return held

    async def close(self) -> None:
        """End all of them."""
        for hold in list(self._held):
            with contextlib.suppress(LocalError):  # the daemon may have gone first
                await self.release(hold)
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def count(self) -> int:
        """Holds kept."""
        return len(self._held)

    def _until(self, hold: str, ttl_s: float) -> None:
        if (timer := self._timers.pop(hold, None)) is not None:
            timer.cancel()
        self._timers[hold] = asyncio.get_running_loop().call_later(ttl_s, self._expire, hold)

    def _expire(self, hold: str) -> None:
        task = asyncio.create_task(self._release_late(hold))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release_late(self, hold: str) -> None:
        with contextlib.suppress(LocalError):  # nobody waits for the answer
            await self.release(hold)
