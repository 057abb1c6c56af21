"""Screen: `status --watch`, the streams and the fleet on a terminal, drawn again every second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from . import console
from .errors import DaemonError
from .units import format_size

if TYPE_CHECKING:
    from .local.client import Client
    from .local.model import PeerStatus, StreamStatus

INTERVAL_S: Final = 1.0
_TONES: Final = {"current": "green", "error": "bold red"}


def watch(client: Client, *, as_json: bool, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show the node until interrupted: on a terminal in place, else, or with `as_json`, one JSON line a second."""
    from .exits import Exit

    display = Console()
    try:
        if as_json or not display.is_terminal:
            while True:
                streams, peers, problems = look(client)
                console.print_json({"at": time.time(), "streams": streams, "peers": peers, "problems": problems})
                sleep(INTERVAL_S)
        with Live(console=display, auto_refresh=False, screen=True) as live:
            for picture in _pictures(client):
                live.update(picture, refresh=True)
                sleep(INTERVAL_S)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(Exit.INTERRUPTED) from None


def look(client: Client) -> tuple[list[StreamStatus], list[PeerStatus], list[str]]:
    """Streams, peers and problems, as they are now."""
    return client.streams(), client.peers(), client.node().problems


def _pictures(client: Client) -> Iterator[RenderableType]:
    """What to show, over and over; a daemon that is away for a moment is waited for."""
    while True:
        try:
            yield picture(*look(client))
        except DaemonError as error:
            yield Text(f"{error}; waiting for it", style="bold red")


def picture(streams: Sequence[StreamStatus], peers: Sequence[PeerStatus], problems: Sequence[str]) -> RenderableType:
    """Streams with their progress, then peers by site."""
    parts: list[RenderableType] = [Text(f"problem: {problem}", style="bold red") for problem in problems]
    parts.append(_streams(streams) if streams else Text("no streams yet", style="dim"))
    parts += [Text(f"{s.stream}: {s.last_error.detail}", style="red") for s in streams if s.last_error]
    parts += [Text(), _peers(peers) if peers else Text("no peers yet", style="dim")]
    return Group(*parts)


def _streams(streams: Sequence[StreamStatus]) -> Table:
    table = Table("stream", "state", "version", "newest", "behind", "proven", "progress", box=None, header_style="bold")
    for s in streams:
        progress: RenderableType = ""
        if s.progress is not None:
            total, done = max(s.progress.total_bytes, 1), s.progress.done_bytes
            progress = Group(
                ProgressBar(total=total, completed=done, width=24),
                Text(f"{format_size(done)} of {format_size(total)}", style="dim"),
            )
        table.add_row(
            s.stream,
            Text(s.state.value, style=_TONES.get(s.state.value, "yellow")),
            str(s.current.version) if s.current else "-",
            str(s.head.version) if s.head else "-",
            f"{s.lag} ({s.lag_s:.0f} s)" if s.lag else "no",
            ("yes" if s.proven else "not yet") if s.current else "-",
            progress,
        )
    return table


def _peers(peers: Sequence[PeerStatus]) -> Table:
    table = Table("site", "peer", "link", "rtt", "up", "down", "lanes", "has", box=None, header_style="bold")
    ordered = sorted(peers, key=lambda peer: (peer.site, peer.node))
    for site, members in groupby(ordered, key=lambda peer: peer.site):
        for number, p in enumerate(members):
            table.add_row(
                site if number == 0 else "",
                p.node[:10],
                Text("up", style="green") if p.connected else Text("-", style="dim"),
                f"{p.rtt_ms:.1f} ms" if p.rtt_ms is not None else "-",
                f"{format_size(p.up_bytes_per_s)}/s",
                f"{format_size(p.down_bytes_per_s)}/s",
                str(p.lanes),
                ", ".join(f"{head.stream} {head.version}" for head in p.heads) or "-",
            )
    return table
