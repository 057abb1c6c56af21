"""A watcher's life in its own process: from its record on disk to SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from ..aio_client import AsyncClient
from ..client import Client
from .record import open_record
from .watching import Event, Options, Say, Watcher


def run(settings: Options, socket: Path, state: Path, say: Say) -> None:
    """Watch until SIGTERM or SIGINT, remembering in the folder `state`; `say` gets each event."""
    asyncio.run(_watch(settings, socket, state, say))


async def _watch(settings: Options, socket: Path, state: Path, say: Say) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    watching: asyncio.Task[None] | None = None

    def end() -> None:
        stop.set()
        if watching is not None:
            watching.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    with open_record(state, settings.stream, settings.directory) as record:
        async with AsyncClient(socket) as client:
            watcher = Watcher(settings, client, Client(socket), record, say)
            say(Event("watching", f"watching {settings.directory} for stream {settings.stream}"))
            watching = asyncio.ensure_future(watcher.run(stop))
            try:
                await watching
            except asyncio.CancelledError:
                if not stop.is_set():
                    raise
