"""One run of a gateway, in a process of its own or beside the daemon: from the configuration to answers."""

from __future__ import annotations

import asyncio
import gc
import signal
from pathlib import Path

import structlog

from ... import logs
from ...config import Gateway, Log
from ...errors import ConfigError, reason
from ...units import format_address
from .choice import Staleness
from .server import GatewayConfig, listen_address, serve_gateway

_log = structlog.get_logger(__name__)


def configured(section: Gateway, socket: Path | str) -> GatewayConfig:
    """What the [gateway] section says. Raises ConfigError."""
    if not section.listen:
        raise ConfigError("the gateway needs an address: give --listen, or gateway.listen in config.toml")
    grouped = bool(section.group) or section.engine == "none"
    try:
        token = section.group_token_file.read_text().strip() if grouped else ""
    except OSError as error:
        raise ConfigError(f"{section.group_token_file}: cannot read the group's token: {reason(error)}") from None
    return GatewayConfig(
        engine=section.engine,
        engine_url=section.engine_url,
        listen=listen_address(section.listen),
        socket=socket,
        stream=section.stream,
        adapters=dict(section.adapters),
        quiesce=section.commit_mode == "quiesce",
        staleness=Staleness(section.max_lag_versions, section.max_lag_s),
        patience_s=section.patience_s,
        drain_s=section.drain_s,
        load_timeout_s=section.load_timeout_s,
        read_timeout_s=section.read_timeout_s,
        body_limit_bytes=section.body_limit,
        reload_path=section.reload_path,
        group=section.group,
        token=token,
    )


async def keep_gateway(config: GatewayConfig) -> None:
    """Serve until cancelled."""
    async with serve_gateway(config) as running:
        _log.info("gateway ready", listen=format_address(*running.address), engine=config.engine)
        await asyncio.Event().wait()


def run(section: Gateway, socket: Path | str, log: Log, log_format: logs.LogFormat | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `log_format` goes before what `log` says."""
    import uvloop

    config = configured(section, socket)
    config.check()
    logs.configure(log.level, log_format or log.format)
    # What is loaded now stays for good: looking through it again and again would stop tokens for tens of milliseconds.
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_told(config))


async def _until_told(config: GatewayConfig) -> None:
    serving = asyncio.ensure_future(keep_gateway(config))
    told = False

    def stop() -> None:
        nonlocal told
        told = True
        serving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        await serving
    except asyncio.CancelledError:
        if not told:
            raise
