"""What commands show: aligned columns, JSON, and progress, on whatever standard output and error are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

ShowProgress = Callable[[str, int, int], None]
"""Called with a stage's name, bytes done and bytes in all (0 when not known)."""


def print_json(value: Any) -> None:
    """One JSON document to standard output: indented on a terminal, one line elsewhere."""
    import msgspec

    data = msgspec.json.encode(value)
    click.echo(msgspec.json.format(data, indent=2 if sys.stdout.isatty() else -1))


def print_columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in plain text, columns two blanks apart, never cut: it is read by people and by `awk`."""
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    click.echo(click.style(line(headers), bold=True))
    for row in rows:
        click.echo(line(row))


def is_watched(*, quiet: bool) -> bool:
    """Whether somebody looks on who wants to see how far it has come: standard error is a terminal."""
    return not quiet and sys.stderr.isatty()


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[ShowProgress]:
    """Shows stages as bars, with rates and the time that is left, on standard error when it is a terminal."""
    if is_watched(quiet=quiet):
        with _bars() as show:
            yield show
    else:
        yield lambda _stage, _done, _total: None


@contextlib.contextmanager
def steps(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows what is being done now, where there is nothing to measure, on standard error when it is a terminal."""
    if not is_watched(quiet=quiet):
        yield lambda _step: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


@contextlib.contextmanager
def _bars() -> Iterator[ShowProgress]:
    from rich import progress as bars
    from rich.console import Console
    from rich.text import Text

    from .units import format_size

    class Rate(bars.ProgressColumn):
        """Bytes per second, in the units of everything else here."""

        def render(self, task: bars.Task) -> Text:
            return Text("" if task.speed is None else f"{format_size(task.speed)}/s", style="progress.data.speed")

    tasks: dict[str, bars.TaskID] = {}
    columns = (
        bars.TextColumn("{task.description:>8}"),
        bars.BarColumn(),
        bars.DownloadColumn(binary_units=True),
        Rate(),
        bars.TimeRemainingColumn(compact=True),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as display:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = display.add_task(stage, total=total or None)
            display.update(tasks[stage], completed=done, total=total or None)

        yield show
