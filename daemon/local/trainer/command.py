"""`patchswarm watch`: publishes a trainer's checkpoint folders as they are finished."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ... import console, options
from ...errors import BadInputError
from ...home import Home

if TYPE_CHECKING:
    from .watching import Event


@click.command("watch")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@options.stream
@click.option("--match", default="*", metavar="GLOB", help="Which folders in DIR are checkpoints, such as 'step_*'.")
@click.option(
    "--finished",
    type=click.Choice(["auto", "marker", "index", "settled"]),
    default="auto",
    help="What tells that a folder is finished; 'auto': the marker, or that it is whole and has not changed.",
)
@click.option("--marker", default="STABLE", metavar="NAME", help="File that a trainer writes last into a folder.")
@click.option(
    "--settle",
    "settle_s",
    default="10s",
    metavar="DURATION",
    callback=options.seconds,
    help="How long a folder without a marker must not have changed.",
)
@click.option(
    "--poll", "poll_s", default="2s", metavar="DURATION", callback=options.seconds, help="Time between two looks."
)
@click.option("--newest", "newest_only", is_flag=True, help="Skip folders when a newer one is ready.")
@click.option("--label", default="{name}", metavar="TEXT", help="Label of the versions; {name} and {step} are filled.")
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Files that are left out; repeatable.  [default: optimizer states and what else only trainers read]",
)
@click.option(
    "--state", metavar="DIR", type=click.Path(path_type=Path), help="Where to remember.  [default: 'watch' in the home]"
)
@options.staging
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line instead of text.")
@options.home
@options.socket
def watch(
    *,
    directory: Path,
    exclude: tuple[str, ...],
    state: Path | None,
    staging: Path | None,
    as_json: bool,
    home: Home,
    socket: Path | None,
    **given: Any,
) -> None:
    """Publish each finished checkpoint folder in DIR as it appears, oldest first.

    Says what it published and what it skipped, one line each. Ends with 0 on SIGTERM or Ctrl-C; a publish that is
    under way is abandoned then, and made again by the next start.
    """
    from .run import run
    from .selecting import DEFAULT_EXCLUDES
    from .watching import Options

    if not directory.is_dir():
        raise BadInputError(f"{directory}: no such directory; name the one in which the trainer makes its folders")
    settings = Options(
        directory=directory.absolute(),
        exclude=exclude or DEFAULT_EXCLUDES,
        staging=staging,
        **given,
    )
    if socket is None:
        from ...config import Config

        home.check()
        socket = Config.load(home).local.socket
    if state is None:
        home.check()
        state = home.root / "watch"
    run(settings, socket, state, console.print_json if as_json else _tell)


def _tell(event: Event) -> None:
    click.echo(event.text)
