"""The gate: which requests are let through to the engine, and with what weights each of them began.

A move closes it: whoever comes waits, those whom the new version would break are drained, and the label moves
before it opens again. All of it happens on one event loop, and an open gate costs a request no wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from .choice import Applied, Order
from .constraint import Constraint
from .errors import EngineUnavailableError, GatewayError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Drain(Enum):
    """Whom a move waits for."""

    BROKEN = auto()
    """Requests that the new version would break."""
    STREAM = auto()
    """Every request that uses the weights which are replaced."""
    ALL = auto()


Patience = Callable[[Constraint, Applied | None], float]


@dataclass(eq=False, slots=True)
class Admission:
    """One request inside: the stream whose weights it asked for, what it accepts, what it began with."""

    stream: str
    constraint: Constraint
    start: Applied | None
    task: asyncio.Task[object]
    cut: GatewayError | None = field(default=None)
    """Why the gate cancelled the request's task, when it did."""


class Gate:
    """Who is in, what is applied, and whether anyone may enter. The mover alone changes what is applied."""

    def __init__(self) -> None:
        self._applied: dict[str, Applied] = {}
        self._inside: set[Admission] = set()
        self._waiting: list[tuple[str, Constraint]] = []
        self._closed = False
        self._blocked = ""
        self._changed = asyncio.Event()
        self.wanted = asyncio.Event()
        """Set when a request begins to wait for other weights than are applied."""

    def applied(self, stream: str) -> Applied | None:
        """The weights of a stream that the engine has confirmed."""
        return self._applied.get(stream)

    def all_applied(self) -> list[Applied]:
        """Every stream's weights in the engine, in a fixed order."""
        return [self._applied[stream] for stream in sorted(self._applied)]

    @property
    def active(self) -> int:
        """Requests inside."""
        return len(self._inside)

    @property
    def blocked(self) -> str:
        """Why nobody is let in, or ""."""
        return self._blocked

    def waiting(self, stream: str) -> list[Constraint]:
        """What requests wait for that the applied weights do not give."""
        return [constraint for name, constraint in self._waiting if name == stream]

    def changed(self) -> None:
        """Let those who wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    # -- entering -------------------------------------------------------------------------------------------

    async def enter(self, stream: str, constraint: Constraint, patience: Patience) -> Admission:
        """Enter as soon as the weights of `stream` satisfy the constraint, within the patience for it, in seconds.

        Raises TimeoutError when they do not in time, EngineUnavailableError when the weights are unknown.
        """
        arrived_s = time.monotonic()
        with self._queued(stream, constraint) as queue:
            while True:
                if self._blocked:
                    raise EngineUnavailableError(self._blocked)
                applied = self._applied.get(stream)
                satisfied = constraint.is_empty or (applied is not None and constraint.satisfied_by(applied.version))
                if satisfied and not self._closed:
                    return self._admit(stream, constraint, applied)
                left_s = None  # whoever takes any weights waits for the move to end, which has its own limits
                if not constraint.is_empty:
                    if not satisfied:
                        queue()
                    left_s = arrived_s + patience(constraint, applied) - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError
                await self._wait(left_s)

    def leave(self, admission: Admission) -> None:
        """The request has ended, here and in the engine."""
        self._inside.discard(admission)
        if self._closed:
            self.changed()

    def _admit(self, stream: str, constraint: Constraint, applied: Applied | None) -> Admission:
        task = asyncio.current_task()
        assert task is not None
        admission = Admission(stream, constraint, applied, task)
        self._inside.add(admission)
        return admission

    @contextmanager
    def _queued(self, stream: str, constraint: Constraint) -> Iterator[Callable[[], None]]:
        """Gives what enters the constraint among the waiting ones, once; it leaves with the context."""
        entry = (stream, constraint)
        queued = False

        def queue() -> None:
            nonlocal queued
            if not queued:
                queued = True
                self._waiting.append(entry)
                self.wanted.set()

        try:
            yield queue
        finally:
            if queued:
                self._waiting.remove(entry)

    async def _wait(self, timeout_s: float | None) -> None:
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            pass

    # -- moving ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def closed(
        self, stream: str, order: Order, drain: Drain, *, drain_s: float, cut: GatewayError
    ) -> AsyncIterator[None]:
        """Closed for a move of `stream` to `order`, with those gone whom `drain` names.

        Whoever has not ended after `drain_s` seconds is cut, and answers with `cut`.
        """
        assert not self._closed, "one move at a time"
        self._closed = True
        try:
            await self._drained(lambda each: _waits_for(each, drain, stream, order), drain_s, cut)
            yield
        finally:
            self._closed = False
            self.changed()

    async def _drained(self, stays: Callable[[Admission], bool], drain_s: float, cut: GatewayError) -> None:
        deadline_s = time.monotonic() + drain_s
        while inside := [each for each in self._inside if stays(each)]:
            left_s: float | None = deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                self._cut(inside, cut)
                left_s = None  # a cancelled request leaves by itself
            await self._wait(left_s)

    def cut_all(self, why: GatewayError) -> None:
        """End every request inside: its answer can not be vouched for any more."""
        self._cut(list(self._inside), why)

    def _cut(self, those: list[Admission], why: GatewayError) -> None:
        for each in those:
            if each.cut is None:
                each.cut = why
                each.task.cancel()

    def apply(self, stream: str, applied: Applied) -> None:
        """The engine has confirmed these weights."""
        self._applied[stream] = applied
        self.changed()

    def forget(self, *streams: str) -> None:
        """What the engine holds of these streams is not known any more."""
        for stream in streams:
            self._applied.pop(stream, None)
        self.changed()

    def block(self, why: str) -> None:
        """Let nobody in and say why, until this is called with ""."""
        self._blocked = why
        self.changed()


def _waits_for(inside: Admission, drain: Drain, stream: str, order: Order) -> bool:
    if drain is Drain.ALL:
        return True
    if inside.stream != stream:
        return False
    return drain is Drain.STREAM or not (inside.constraint.is_empty or inside.constraint.satisfied_by(order[1]))
