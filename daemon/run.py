"""One run of the daemon: from the command line to the event loop and back."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from . import logs
from .config import Config
from .errors import InUseError
from .fleet.identity import Identity
from .home import Home
from .logs import LogFormat
from .manager import ServiceManager

if TYPE_CHECKING:
    from collections.abc import Coroutine

SWITCH_S: Final = 0.0005
"""Longest that a thread keeps the interpreter while another wants it: at Python's own 5 ms, an engine that asks for a
lease while a version is encoded waits for several such turns."""


def run(home: Home, log_format: LogFormat | None = None) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reads config.toml again. `log_format` goes before what that says.

    Raises DaemonError for what keeps it from starting, or from going on.
    """
    home.check()
    config = Config.load(home)
    identity = Identity.load(home)
    identity.check_valid(dt.datetime.now(dt.UTC))
    with home.lock():
        logs.configure(config.log.level, log_format or config.log.format)
        import uvloop

        from .node import serve

        sys.setswitchinterval(SWITCH_S)
        manager = ServiceManager.of(os.environ)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(_until_told(serve(home.root, config, identity, manager), manager))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise InUseError(f"{error.strerror}; stop who has it, or change node.listen in {home.config}") from None


async def _until_told(serving: Coroutine[object, object, None], manager: ServiceManager) -> None:
    """Run `serving` until it ends or a signal cancels it, which is how it is told to stop. SIGHUP asks it to reload."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(serving)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        manager.stopping()
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, manager.reload_wanted.set)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
