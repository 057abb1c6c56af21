"""The service manager that started this daemon, if one did: told when it is ready and that it lives, asked to reload.

The protocol is sd_notify(3): one datagram of NAME=VALUE lines on the socket that NOTIFY_SOCKET names.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

_log: Final = structlog.get_logger(__name__)

_PROBES_PER_WATCHDOG: Final = 3
"""Signs of life within the time after which the manager takes the daemon for dead."""


class ServiceManager:
    """Who started this daemon. Without one every message goes nowhere, and `reload_wanted` is set by a signal alone."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self.reload_wanted = asyncio.Event()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ServiceManager:
        """The one that this process's environment speaks of. Takes its variables as systemd documents them."""
        address = environment.get("NOTIFY_SOCKET", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog = environment.get("WATCHDOG_USEC", "")
        return cls(address, int(watchdog) / 1e6 if ours and watchdog.isdecimal() else 0.0)

    def ready(self) -> None:
        """Start-up is finished."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The daemon ends."""
        self._send("STOPPING=1")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def status(self, text: str) -> None:
        """One line on what the daemon does."""
        self._send(f"STATUS={' '.join(text.split())}")

    async def keep_alive(self, probe: Callable[[], Awaitable[None]]) -> None:
        """Feed the watchdog for as long as `probe` returns; when it raises or hangs the manager restarts the daemon."""
        if not self._watchdog_s:
            return
        every_s = self._watchdog_s / _PROBES_PER_WATCHDOG
        while True:
            try:
                async with asyncio.timeout(every_s):
                    await probe()
            except Exception as error:  # whatever it is: the daemon does not answer
                _log.error("the daemon does not answer itself", reason=str(error) or type(error).__name__)
            else:
                self._send("WATCHDOG=1")
            await asyncio.sleep(every_s)

    def _send(self, lines: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of an abstract address.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.sendto(lines.encode(), address)
        except OSError as error:
            _log.warning("the service manager cannot be told", reason=error.strerror)
