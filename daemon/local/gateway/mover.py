"""The mover: brings the engine to the newest weights, one move at a time, and keeps watch over what it holds.

A move: every host of the group holds the version; the gate closes and drains; the engine is paused, given the weights,
asked what it has; only when it confirms does the label move; it is resumed, and the gate opens. A load that fails is
tried again, then once in full; then the engine's weights are unknown, nobody is let in, and the move is tried again
later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from ...errors import DaemonError
from ..aio_lease import AsyncLease
from ..engines.base import Engine, EngineAnswerError, EngineError, EngineGoneError, Load, Running
from ..errors import LocalError
from ..model import VersionInfo
from .choice import Applied, Order, next_version
from .errors import EngineUnavailableError, GroupNotReadyError, WeightVersionMovedError
from .follower import Follower, Target
from .gate import Drain, Gate
from .hold import Group
from .states import MOVING, Event, Machine, State

_log: Final = structlog.get_logger(__name__)

LOADS: Final = (False, False, True)
"""Is the attempt a full one: a failed load is retried as it was, then done in full."""
RESUMES: Final = 3
WATCH_S: Final = 1.0
"""How often an engine is asked what it holds. One that was started anew takes longer than that to answer."""
RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class MoveReport:
    """One move, seconds in each part of it. `paused_s` is what requests see: from closed gate to open gate."""

    stream: str
    version: int
    loads: int
    held_s: float
    drained_s: float
    paused_s: float


class Mover:
    """Drives one engine. `run` is its task; followers call `wake` when there is news."""

    def __init__(
        self, engine: Engine, gate: Gate, group: Group, *, quiesce: bool, drain_s: float, watch_s: float = WATCH_S
    ) -> None:
        self.machine = Machine()
        self.target: VersionInfo | None = None
        """The version that is moved to, or tried."""
        self.failure = ""
        """Why the last move failed, until one succeeds."""
        self.engine_failure = "the engine has not been asked yet"
        """Why the engine does not answer, or ""."""
        self.moves: list[MoveReport] = []
        """The last ones, newest last."""
        self.followers: Sequence[Follower] = ()
        self._engine = engine
        self._gate = gate
        self._group = group
        self._quiesce = quiesce
        self._drain_s = drain_s
        self._watch_s = watch_s
        self._news = asyncio.Event()
        self._suspicion = asyncio.Event()
        self._busy = asyncio.Lock()
        """Held while the engine is moved, or asked what it holds: the two must not see each other half done."""
        self._lost = ""
        self._paths: dict[str, str] = {}
        self._unproven: set[str] = set()
        self._retry_at_s = 0.0
        self._retry_s = RETRY_S
        gate.block(self.engine_failure)

    def wake(self) -> None:
        """There is news of versions."""
        self._news.set()
        self._gate.changed()  # heads decide how long requests wait

    # -- the loop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch and move until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._drive())

    async def _watch(self) -> None:
        while True:
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._watch_s):
                    await self._suspicion.wait()
            self._suspicion.clear()

    async def _drive(self) -> None:
        while True:
            if not self._gate.all_applied():
                await self.look()  # it may have the weights already
            self._check_proofs()
            await self._step()
            await self._rest()

    async def _rest(self) -> None:
        """Until there is news, somebody wants other weights, or it is time to try again."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._news, self._gate.wanted)]
        try:
            await asyncio.wait(waits, timeout=self._watch_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._news.clear()
        self._gate.wanted.clear()

    async def _step(self) -> None:
        """Move every stream that has something to move to, when it is time."""
        plans = [(follower, version) for follower in self.followers if (version := self._next(follower)) is not None]
        ready = not self.engine_failure and time.monotonic() >= self._retry_at_s
        if not plans or not ready:
            ahead = plans or any(self._is_behind(follower) for follower in self.followers)
            self.machine.take(Event.ANNOUNCED if ahead else Event.GONE)
            return
        for follower, version in plans:
            self.machine.take(Event.COMMITTED)
            await self._try(follower, version)

    def _next(self, follower: Follower) -> VersionInfo | None:
        """What a stream moves to next, of what this host holds."""
        if not self._engine.loads:
            return None
        stream = follower.target.stream
        applied = self._gate.applied(stream)
        held: list[Order] = [(each.epoch, each.version) for each in follower.held]
        order = next_version(None if applied is None else applied.order, held, self._gate.waiting(stream))
        return None if order is None else follower.find(order)

    def _is_behind(self, follower: Follower) -> bool:
        applied = self._gate.applied(follower.target.stream)
        return follower.head is not None and (applied is None or follower.head > applied.order)

    # -- watching -------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Ask the engine what it holds, and forget what it does not hold any more."""
        async with self._busy:
            before = self.engine_failure
            try:
                running = await self._engine.running()
                self.engine_failure = ""
                for follower in self.followers:
                    if not follower.target.adapter and self._engine.loads:
                        await self._compare(follower, running)
            except EngineError as error:
                self.engine_failure = str(error)
            self._settle()
            if before != self.engine_failure:
                self._news.set()

    async def _compare(self, follower: Follower, running: Running) -> None:
        stream = follower.target.stream
        applied = self._gate.applied(stream)
        if applied is None:
            await self._adopt(follower, running)
            return
        path = self._paths[stream]
        if running.label != str(applied.version) or running.path not in {None, path}:
            # It was started anew, or somebody else moved it. Its adapters are gone with the weights.
            self._lose(f"the engine says that it has version {running.label!r}, not {applied.version}")

    async def _adopt(self, follower: Follower, running: Running) -> None:
        """Take over an engine that a gateway before this one had moved, when label and path both say so."""
        if running.path is None or self._lost or self.machine.state is State.ERROR:
            return
        for held in follower.held:
            if held.path == running.path and str(held.version) == running.label:
                await self._engine.resume()  # that gateway may have ended before it could
                self._applied(held, held.path, proven=held.proven)
                return

    def _check_proofs(self) -> None:
        """Forget a version that the daemon took back before it was proven: a block of it was wrong."""
        for follower in self.followers:
            stream = follower.target.stream
            applied = self._gate.applied(stream)
            if applied is None or stream not in self._unproven:
                continue
            current = follower.status.current if follower.status else None
            if current is not None and current.manifest == applied.manifest and current.proven:
                self._unproven.discard(stream)
            elif follower.withdrew(applied):
                self._forget(follower.target, f"version {applied.version} of {stream} was withdrawn")

    def mistrust(self, why: str) -> None:
        """Let nobody in until the engine has been asked again: an answer named other weights, or a connection broke."""
        if self.machine.state not in MOVING:
            self.engine_failure = why
            self._settle()
            self._suspicion.set()

    def _applied(self, version: VersionInfo, path: str, *, proven: bool) -> None:
        """The engine has these weights: the label moves."""
        self._paths[version.stream] = path
        (self._unproven.discard if proven else self._unproven.add)(version.stream)
        self._gate.apply(version.stream, _identity(version))

    def _forget(self, target: Target, why: str) -> None:
        """What the engine holds of one stream is not known. Without the model's own weights it serves nothing."""
        if target.adapter:
            _log.warning("adapter unknown", adapter=target.adapter, reason=why)
            self._gate.forget(target.stream)
        else:
            self._lose(why)

    def _lose(self, why: str) -> None:
        """Nobody knows what the engine holds: nothing that it says may go out under a label."""
        _log.warning("weights unknown", engine=self._engine.name, reason=why)
        self._lost = f"{why}; the weights are loaded again before anything is served"
        self._settle()
        self._gate.forget(*(follower.target.stream for follower in self.followers))
        self._gate.cut_all(EngineUnavailableError(why))

    def _settle(self) -> None:
        """Let requests in, or say why not."""
        why = self._lost or (self.engine_failure and f"the engine is not available: {self.engine_failure}")
        if why != self._gate.blocked:
            _log.info("not serving" if why else "serving", **({"reason": why} if why else {}))
            self._gate.block(why)

    # -- moving ---------------------------------------------------------------------------------------------

    async def _try(self, follower: Follower, version: VersionInfo) -> None:
        """One move, with its failure kept."""
        self.target = version
        try:
            await self._move(follower.target, version)
        except (EngineError, GroupNotReadyError, LocalError) as error:
            self.failure = str(error)
            self._retry_at_s = time.monotonic() + self._retry_s
            if self.machine.state is State.ERROR:
                self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
                _log.warning("move failed", stream=version.stream, version=version.version, reason=self.failure)
        else:
            self.failure, self._retry_s = "", RETRY_S
            self.target = None

    async def _move(self, target: Target, version: VersionInfo) -> None:
        if target.adapter:
            drain = Drain.STREAM  # it is taken out before it is put in again: nothing may run on it
        else:
            drain = Drain.ALL if self._quiesce or not self._engine.pauses else Drain.BROKEN
        began_s = time.monotonic()
        async with contextlib.AsyncExitStack() as holds:
            lease = await holds.enter_async_context(self._group.holding(version))
            async with self._busy:
                held_s = time.monotonic()
                self.machine.take(Event.HELD)
                cut = WeightVersionMovedError(f"the engine moves to version {version.version}; ask again")
                order = (version.epoch, version.version)
                async with self._gate.closed(version.stream, order, drain, drain_s=self._drain_s, cut=cut):
                    drained_s = time.monotonic()
                    loads = await self._swap(target, version, lease, holds, idle=drain is Drain.ALL)
        done_s = time.monotonic()
        report = MoveReport(
            version.stream, version.version, loads, held_s - began_s, drained_s - held_s, done_s - drained_s
        )
        self.moves = [*self.moves[-15:], report]
        _log.info("moved", stream=version.stream, version=version.version, paused_s=round(report.paused_s, 3))

    async def _swap(
        self, target: Target, version: VersionInfo, lease: AsyncLease, holds: contextlib.AsyncExitStack, *, idle: bool
    ) -> int:
        """Behind the closed gate: other weights for the engine, and their label; attempts that the load took."""
        before = self._gate.applied(version.stream)
        load = Load(
            version.stream,
            str(lease.path),
            _identity(version),
            before,
            target.adapter,
            idle=self._gate.active == 0,
        )
        await self._pause(idle=idle)
        loads = await self._load(target, load, lease, holds)
        self._lost = self._lost if target.adapter else ""
        self._applied(version, load.path, proven=lease.proven)
        await self._resume(version)
        self._settle()
        return loads

    async def _pause(self, *, idle: bool) -> None:
        """Pause, or leave the engine as it was: it still has the weights that it had."""
        try:
            await self._engine.pause(idle=idle)
        except EngineError:
            self.machine.take(Event.FAILED)
            with contextlib.suppress(EngineError):  # the first error is the one to tell
                await self._engine.resume()
            raise
        self.machine.take(Event.PAUSED)

    async def _load(self, target: Target, load: Load, lease: AsyncLease, holds: contextlib.AsyncExitStack) -> int:
        """Load until the engine confirms, and give the holds back; attempts that it took.

        Only when a hold is given back is it known that it lasted, and that what was loaded was the version.
        """
        failure: DaemonError = EngineAnswerError("never tried")
        for attempt, full in enumerate(LOADS, start=1):
            if attempt > 1:
                self.machine.take(Event.RETRY)
                _log.warning("load failed", version=load.applied.version, attempt=attempt - 1, reason=str(failure))
            if full:  # it ends what is in the engine, and no half an answer goes out as a whole one
                self._gate.cut_all(WeightVersionMovedError(f"loading version {load.applied.version} failed; ask again"))
            try:
                lease.check()
                await self._engine.load(load, full=full)
                await self._engine.confirm(load)
            except EngineGoneError as error:
                failure = error
                break  # there is nobody to load anything into
            except (EngineError, LocalError) as error:
                failure = error
            else:
                try:
                    await holds.aclose()
                except (LocalError, GroupNotReadyError) as error:
                    failure = error
                    break  # the bytes may have changed while they were read
                self.machine.take(Event.CONFIRMED)
                return attempt
        await self._give_up(target, load, failure)
        raise failure

    async def _give_up(self, target: Target, load: Load, failure: DaemonError) -> None:
        self.machine.take(Event.FAILED)
        self._forget(target, f"loading version {load.applied.version} failed: {failure}")
        with contextlib.suppress(EngineError):  # so that it can end what was in it
            await self._engine.resume()

    async def _resume(self, version: VersionInfo) -> None:
        for left in reversed(range(RESUMES)):
            try:
                await self._engine.resume()
            except EngineError:
                if not left:
                    self.machine.take(Event.FAILED)
                    self._lose(f"the engine did not resume with version {version.version}")
                    raise
            else:
                self.machine.take(Event.RESUMED)
                return


def _identity(version: VersionInfo) -> Applied:
    return Applied(version.epoch, version.version, version.manifest, version.label)
