"""`patchswarm completion`: the script with which a shell completes the command."""

from __future__ import annotations

from typing import Final

import click

from . import console, options

_NAME: Final = "patchswarm"


@click.command(
    epilog="""\b
Where a shell looks for it:
  bash  patchswarm completion bash > ~/.local/share/bash-completion/completions/patchswarm
  zsh   patchswarm completion zsh > "${fpath[1]}/_patchswarm"
  fish  patchswarm completion fish > ~/.config/fish/completions/patchswarm.fish
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@options.json
@click.pass_context
def completion(ctx: click.Context, *, shell: str, as_json: bool) -> None:
    """Print the script that completes this command in SHELL.

    Streams, versions, labels and nodes come from the daemon of the home, when it answers at once.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    script = kind(ctx.find_root().command, {}, _NAME, f"_{_NAME.upper()}_COMPLETE").source()
    if as_json:
        console.print_json({"shell": shell, "script": script})
    else:
        click.echo(script, nl=False)
