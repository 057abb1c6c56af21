"""What a running daemon owes its service manager: word that it is ready, signs of life, reloads when asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from . import logs
from .config import Config
from .errors import ConfigError
from .local.aio_connection import AsyncConnection
from .local.model import Health
from .manager import ServiceManager
from .reloading import reload

if TYPE_CHECKING:
    from .home import Home
    from .node import Node

_log: Final = structlog.get_logger(__name__)

PROBE_TIMEOUT_S: Final = 30.0


async def attend(node: Node, home: Home, manager: ServiceManager) -> None:
    """Until cancelled; begins when the node's sockets answer."""
    manager.ready()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(manager.keep_alive(lambda: _answers(node.config)))
        while True:
            await manager.reload_wanted.wait()
            manager.reload_wanted.clear()
            manager.reloading()
            _reload(node, home)
            manager.ready()


async def _answers(config: Config) -> None:
    """Ask the node for its health as any other program would. Raises LocalError when it does not answer."""
    connection = AsyncConnection(config.local.socket, "", PROBE_TIMEOUT_S)
    await connection.open()
    try:
        await connection.call("GET", "/healthz", Health)
    finally:
        await connection.close()


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
