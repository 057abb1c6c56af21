"""`patchswarm write-deltas`: writes a stream's versions as slime's folders."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from ... import console, options
from ...home import Home

if TYPE_CHECKING:
    from .following import Folder
    from .format import ChecksumName, Encoding

_WAIT_S: Final = 60.0
_AGAIN_S: Final = 2.0


class _EndedError(BaseException):
    """The process was asked to end: unwinds from wherever it is."""


class _Ending:
    """Whether the process was asked to end. What takes long is broken off for it, the rest is done first."""

    def __init__(self) -> None:
        self._asked = False
        self._at_once = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """What runs in here is broken off by _EndedError, or not begun, when the process is asked to end."""
        self._at_once = True
        try:
            if self._asked:
                raise _EndedError
            yield
        finally:
            self._at_once = False

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        if self._at_once:
            self._at_once = False  # once: what is undone now is not to be broken off in its turn
            raise _EndedError


@click.command("write-deltas")
@click.argument("out", metavar="DIR", type=click.Path(path_type=Path))
@options.stream
@click.option("--encoding", type=click.Choice(["xor", "overwrite"]), default="xor", help="How changes are written.")
@click.option(
    "--checksum", type=click.Choice(["xxh3-128", "blake3", "adler32"]), default="xxh3-128", help="Of each new tensor."
)
@click.option(
    "--full-every",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="A full folder after N deltas, removing what lies before the one before; 0: never, and nothing is removed.",
)
@click.option("--once", is_flag=True, help="Write what is there now, and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line instead of text.")
@options.home
@options.socket
def write_deltas(
    *,
    out: Path,
    stream: str,
    encoding: Encoding,
    checksum: ChecksumName,
    full_every: int,
    once: bool,
    as_json: bool,
    home: Home,
    socket: Path | None,
) -> None:
    """Write each new version into DIR as a folder that engines with /pull_weights read, as slime's trainer does.

    Ends with 0 on SIGTERM or Ctrl-C; the next start goes on where this one ended.
    """
    from ..client import Client
    from ..errors import ConnectionLostError, LeaseGoneError, NotRunningError, UnknownLeaseError
    from .following import Follower, Options

    if socket is None:
        from ...config import Config

        home.check()
        socket = Config.load(home).local.socket
    settings = Options(encoding=encoding, checksum=checksum, full_every=full_every)
    ending = _Ending()
    try:
        with Follower(Client(socket), stream, out.absolute(), settings) as follower:
            while True:
                try:
                    with ending.at_once():
                        made = follower.make(0.0 if once else _WAIT_S)
                    written = follower.show() if made else None
                except (NotRunningError, ConnectionLostError, LeaseGoneError, UnknownLeaseError) as error:
                    if once:
                        raise
                    click.echo(f"{error}; trying again", err=True)
                    with ending.at_once():
                        time.sleep(_AGAIN_S)
                    continue
                if written is not None and as_json:
                    console.print_json(written)
                elif written is not None:
                    click.echo(_said(written))
                elif once:
                    return
    except _EndedError:
        return


def _said(folder: Folder) -> str:
    from .format import folder_name

    if folder.number == 0:
        return f"version {folder.version} is what the engines were started with: deltas are written from it"
    kind = "whole" if folder.full else "as a delta"
    return f"wrote {folder_name(folder.number)} {kind}: version {folder.version}"
