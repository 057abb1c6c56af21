"""Options that several commands share, and how what people write in them is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from . import completing
from .errors import BadInputError
from .home import Home
from .units import parse_address, parse_duration_s

ENVIRONMENT_PREFIX: Final = "PATCHSWARM"


def addresses(_ctx: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """Check HOST:PORT options, one or many, before anything is made with them."""
    for address in value if isinstance(value, tuple) else (value,) if value else ():
        try:
            parse_address(address)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


def seconds(_ctx: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Read a duration option."""
    try:
        return parse_duration_s(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def size(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> int:
    """Read a size option; 0 without one."""
    from .units import Size

    try:
        return Size.parse(value) if value is not None else 0
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _home_argument(_ctx: click.Context, _parameter: click.Parameter, value: str) -> Home:
    return Home.at(value)


def stream_argument(_ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """Check a stream's name."""
    from ..protocol.errors import MessageError
    from ..protocol.ids import check_stream_name

    try:
        return check_stream_name(value)
    except MessageError as error:
        raise BadInputError(f"{parameter.opts[0]}: {error}") from None


home = click.option(
    "--home",
    envvar=f"{ENVIRONMENT_PREFIX}_HOME",
    default="~/.patchswarm",
    show_default=True,
    show_envvar=True,
    metavar="DIR",
    callback=_home_argument,
    help="Folder with this node's keys, configuration and state.",
)
socket = click.option(
    "--socket",
    envvar=f"{ENVIRONMENT_PREFIX}_SOCKET",
    show_envvar=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The daemon's socket, when it is not the home's.",
)
slot_dir = click.option(
    "--slot-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of the checkpoints, in RAM (/dev/shm/…) for large models.  [default: 'slots' in the home]",
)
model_size = click.option(
    "--model-size",
    "model_bytes",
    metavar="SIZE",
    callback=size,
    help="Size of the checkpoints to come, for example 500GB: says what will not fit on this host.",
)
staging = click.option(
    "--staging",
    envvar=f"{ENVIRONMENT_PREFIX}_STAGING",
    show_envvar=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where files are made that the daemon then reads.  [default: beside the slots]",
)
json = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
stream = click.option(
    "--stream",
    required=True,
    metavar="NAME",
    callback=stream_argument,
    shell_complete=completing.streams,
    help="The stream.",
)
