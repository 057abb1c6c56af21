"""Logging: one event per line to standard error, for people on a terminal, JSON everywhere else.

Ids and digests are logged as their first hex digits. Values under a name that smells of a secret never leave,
whatever put them there.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import PurePath
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ..protocol.ids import short

_SECRET: Final = re.compile(r"(^|_)(secret|token|password|authorization|private|key)(_|$)", re.IGNORECASE)
_HIDDEN: Final = "(hidden)"


LogFormat = Literal["auto", "human", "json"]
"""`auto`: for people on a terminal, JSON elsewhere."""


def configure(level: str, style: LogFormat, stream: TextIO | None = None) -> None:
    """Send everything that is logged, by us and by libraries, to `stream` (standard error), from `level` up."""
    out = stream or sys.stderr
    human = style == "human" or (style == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        _clean,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if human else "iso", utc=not human),
    ]
    last: list[Processor]
    if human:
        last = [
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(),
                pad_event_to=28,
                exception_formatter=structlog.dev.plain_traceback,  # the default prints locals, secrets among them
            )
        ]
    else:
        last = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(serializer=_to_json),
        ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    logging.getLogger("asyncio").setLevel(max(number, logging.INFO))  # it logs each slow callback at debug


def _clean(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide what must not be read, shorten what nobody reads whole."""
    for name, value in event.items():
        if name.startswith("_") or name in {"event", "exc_info"}:
            continue  # structlog's own
        if _SECRET.search(name):
            event[name] = _HIDDEN
        elif isinstance(value, bytes):
            event[name] = short(value)
        elif isinstance(value, PurePath):
            event[name] = str(value)
    return event


def _to_json(event: EventDict, **_: Any) -> str:
    first = {name: event.pop(name) for name in ("timestamp", "level", "message") if name in event}
    return msgspec.json.encode({**first, **event}, enc_hook=repr).decode()
