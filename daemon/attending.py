"""What a running daemon owes its service manager: word that it is ready, signs of life, reloads when asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import structlog

from . import logs
from .config import Config
from .errors import ConfigError
from .home import Home
from .manager import ServiceManager
from .reloading import reload

_log: Final = structlog.get_logger(__name__)


class Node(Protocol):
    """The running node, as far as it matters here."""

    config: Config

    def reconfigure(self, config: Config) -> None:
        """Go on with another configuration."""
        ...


async def attend(node: Node, home: Home, manager: ServiceManager) -> None:
    """Until cancelled; begins when the node's sockets answer."""
    manager.ready()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(manager.keep_alive(lambda: _answers(node.config.local.socket)))
        while True:
            await manager.reload_wanted.wait()
            manager.reload_wanted.clear()
            manager.reloading()
            _reload(node, home)
            manager.ready()


async def _answers(socket: Path) -> None:
    """Ask for the node's health as any other program would. Raises ClientError when it does not answer."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session,
        session.get("http://localhost/healthz") as answer,
    ):
        answer.raise_for_status()


def _reload(node: Node, home: Home) -> None:
    try:
        file = Config.load(home)
    except ConfigError as error:
        _log.error("not reloaded", reason=str(error))
        return
    found = reload(node.config, file)
    if found.config.log != node.config.log:
        logs.configure(found.config.log.level, found.config.log.format)
    node.reconfigure(found.config)
    _log.info("reloaded", applied=found.applied)
    if found.waiting:
        _log.warning("these keys take effect after a restart", keys=found.waiting)
