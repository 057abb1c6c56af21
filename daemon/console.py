"""What commands show: aligned columns, JSON, and progress, on whatever standard output and error are."""

from __future__ import annotations

import contextlib
import sys
import time
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


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[ShowProgress]:
    """Shows stages as bars on a terminal and as one line per stage elsewhere, on standard error."""
    if quiet:
        yield lambda _stage, _done, _total: None
    elif sys.stderr.isatty():
        with _bars() as show:
            yield show
    else:
        yield _stage_lines()


@contextlib.contextmanager
def _bars() -> Iterator[ShowProgress]:
    from rich import progress as bars
    from rich.console import Console

    tasks: dict[str, bars.TaskID] = {}
    columns = (
        bars.TextColumn("{task.description:>8}"),
        bars.BarColumn(),
        bars.DownloadColumn(binary_units=True),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(compact=True),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as display:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = display.add_task(stage, total=total or None)
            display.update(tasks[stage], completed=done, total=total or None)

        yield show


def _stage_lines() -> ShowProgress:
    started_s = time.monotonic()
    seen: set[str] = set()

    def show(stage: str, _done: int, _total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            click.echo(f"{time.monotonic() - started_s:7.2f} s  {stage}", err=True)

    return show
