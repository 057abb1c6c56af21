"""The `patchswarm` command: its commands put together, and what they raise turned into one line and an exit code.

What is slow to import is imported by the command that needs it.
"""

from __future__ import annotations

import os
from typing import Any

import click

from . import governing, inspecting, membership, weights
from .completion import completion
from .errors import DaemonError, reason
from .exits import Exit, table
from .local.gateway.command import gateway
from .local.slime.command import write_deltas
from .local.trainer.command import watch
from .options import ENVIRONMENT_PREFIX


class _Commands(click.Group):
    """Turns what commands raise into one line on standard error and an exit code of the table."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)
        except Exception as error:  # not swallowed: one line and an exit code say it, PATCHSWARM_DEBUG shows where
            if os.environ.get("PATCHSWARM_DEBUG"):
                raise
            message, code = _explain(error)
            click.echo(f"error: {message}", err=True)
            ctx.exit(code)


def _explain(error: BaseException) -> tuple[str, Exit]:
    """The line and the exit code for an error."""
    while isinstance(error, BaseExceptionGroup):
        known = error.subgroup(DaemonError) or error
        error = known.exceptions[0]
    if isinstance(error, DaemonError):
        return " ".join(str(error).split()), error.exit
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {reason(error)}" if error.filename else reason(error), Exit.UNEXPECTED
    return f"unexpected {type(error).__name__}: {error}; PATCHSWARM_DEBUG=1 shows where", Exit.UNEXPECTED


@click.group(
    cls=_Commands,
    context_settings={
        "auto_envvar_prefix": ENVIRONMENT_PREFIX,
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 100,
    },
    epilog="\b\nExit codes:\n" + table(),
)
@click.version_option(package_name="patchswarm", prog_name="patchswarm")
def main() -> None:
    """Carry a trainer's new weights to every rollout host, exactly, in seconds.

    Every option can also be set in the environment: PATCHSWARM_<COMMAND>_<OPTION>.
    """


for _command in (
    membership.init,
    membership.invite,
    membership.join,
    membership.daemon,
    governing.revoke,
    governing.issuer,
    governing.publisher,
    weights.publish,
    watch,
    weights.pull,
    weights.status,
    weights.versions,
    weights.verify,
    weights.peers,
    inspecting.inspect,
    gateway,
    write_deltas,
    completion,
):
    main.add_command(_command)
