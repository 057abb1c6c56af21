"""Threads: blocking work that is seen to its end, even when the task that waits for it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..storage.diff import Diff, DiffResult

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Await work in a thread to its end even when cancelled, so that nothing is left half-built behind our back."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # the cancellation is what counts now
            await task
        raise


async def owned(work: Callable[[], T], give_back: Callable[[T], None]) -> T:
    """Do `work` in a thread to its end; what it made is given back when the caller was cancelled meanwhile."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # the cancellation is what counts now
            await asyncio.to_thread(give_back, await working)
        raise


def hand_over(loop: asyncio.AbstractEventLoop, take: Callable[[T], None], value: T) -> None:
    """Call `take(value)` on the event loop, from a thread; dropped once the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(take, value)


async def stoppable(diff: Diff) -> DiffResult:
    """Run the pass in a thread; a cancellation stops it and waits for its end."""
    running = asyncio.ensure_future(asyncio.to_thread(diff.run))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        diff.stop.set()
        with contextlib.suppress(Exception):  # the cancellation is what counts now
            await running
        raise
