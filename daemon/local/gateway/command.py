"""`patchswarm gateway`: the home's [gateway] section, with what the command line says instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ... import completing
from ...errors import BadInputError
from ...home import Home

_ENGINES = ("sglang", "vllm", "openai", "none")


@click.command("gateway")
@click.option("--engine", type=click.Choice(_ENGINES), help="What stands behind it; 'none' on a group's other hosts.")
@click.option("--engine-url", "engine_urls", multiple=True, metavar="URL", help="Where the engine answers.")
@click.option("--stream", metavar="NAME", shell_complete=completing.streams, help="The stream of the model's weights.")
@click.option("--lora", "loras", multiple=True, metavar="NAME=STREAM", help="An adapter; may be given again.")
@click.option("--listen", metavar="HOST:PORT", help="Where to answer.")
@click.option("--commit-mode", type=click.Choice(["in_place", "quiesce"]), help="Which requests a move waits for.")
@click.option("--group", multiple=True, metavar="HOST:PORT", help="Gateway on another host of the engine; repeatable.")
@click.option("--group-token", "group_token_file", metavar="FILE", help="File with the secret that a group shares.")
@click.option("--reload-path", metavar="PATH", help="Where an engine of kind 'openai' is told of new weights.")
@click.option(
    "--home",
    envvar="PATCHSWARM_HOME",
    default="~/.patchswarm",
    show_default=True,
    show_envvar=True,
    metavar="DIR",
    help="Folder with this node's configuration.",
)
@click.option(
    "--socket",
    envvar="PATCHSWARM_SOCKET",
    show_envvar=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The daemon's socket, when it is not the home's.",
)
@click.option("--json", "as_json", is_flag=True, help="Log in JSON on a terminal too.")
def gateway(
    *, engine_urls: tuple[str, ...], loras: tuple[str, ...], home: str, socket: Path | None, as_json: bool, **given: Any
) -> None:
    """Stand before an inference engine and keep it at the newest weights.

    Needs the daemon on this host. What is not given comes from the [gateway] section of the home's config.toml.
    """
    import msgspec

    from ...config import Config, Gateway
    from .run import run

    if len(engine_urls) > 1:
        raise BadInputError(
            f"--engine-url is given {len(engine_urls)} times: a gateway drives one engine; start one for each"
        )
    place = Home.at(home)
    config = Config.load(place) if socket is None or place.is_initialised() else Config()
    section = msgspec.structs.asdict(config.gateway)
    section |= {name: value for name, value in given.items() if value not in {None, ()}}
    section |= {"engine_url": engine_urls[0]} if engine_urls else {}
    section |= {"loras": loras} if loras else {}
    try:
        settings = msgspec.convert(section, Gateway, dec_hook=_as_given)
    except msgspec.ValidationError as error:
        raise BadInputError(f"gateway: {error}", remedy="see 'patchswarm gateway --help' for what it takes") from None
    run(settings, socket or config.local.socket, config.log, "json" if as_json else None)


def _as_given(kind: type[Any], value: object) -> Any:
    """Paths and sizes are what they are already."""
    return value if isinstance(value, kind) else kind(value)
