"""Commands that work on a home: `init`, `join`, `invite` and `daemon`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import completing, console, options
from .errors import BadInputError
from .home import Home

if TYPE_CHECKING:
    from .config import Config


@click.command()
@options.home
@click.option("--site", required=True, help="Where this node is, for example us-east/provider-a.")
@click.option(
    "--listen", required=True, metavar="HOST:PORT", callback=options.addresses, help="Where to accept other nodes."
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="HOST:PORT",
    callback=options.addresses,
    help="Where others reach this node, when that is not the listen address; may be given again.",
)
@click.option(
    "--ca-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keep the CA's key here and not in the home; it can be taken away then.",
)
@options.slot_dir
@options.model_size
@options.json
def init(
    *,
    home: Home,
    site: str,
    listen: str,
    advertise: tuple[str, ...],
    ca_dir: Path | None,
    slot_dir: Path | None,
    model_bytes: int,
    as_json: bool,
) -> None:
    """Make a new cluster and its head.

    The head enrols other nodes, and publishes.
    """
    from .fleet import identity

    storage = _storage(home, slot_dir, model_bytes, more_slots=1)
    config = identity.init(home, site=site, listen=listen, advertise=advertise, storage=storage, ca_dir=ca_dir)
    _introduce(home, identity.Identity.load(home).node_id, config, as_json=as_json)


@click.command()
@click.argument("token", envvar=f"{options.ENVIRONMENT_PREFIX}_JOIN_TOKEN")
@options.home
@click.option("--site", required=True, help="Where this node is, for example eu-west/provider-b.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=options.addresses,
    help="Where to accept other nodes; '' for nowhere.  [default: every interface, port 7340]",
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="HOST:PORT",
    callback=options.addresses,
    help="Where others reach this node; may be given again.  "
    "[default: the listen address, or for every interface the one that reaches the head]",
)
@options.slot_dir
@options.model_size
@options.json
def join(
    *,
    token: str,
    home: Home,
    site: str,
    listen: str | None,
    advertise: tuple[str, ...],
    slot_dir: Path | None,
    model_bytes: int,
    as_json: bool,
) -> None:
    """Enrol this host in a cluster.

    TOKEN is the line that 'patchswarm invite' printed on the head; '-' reads it from standard input.
    """
    import asyncio

    from .fleet import enrol

    if token == "-":  # noqa: S105 -- the usual name of standard input
        token = sys.stdin.read(65536)
    storage = _storage(home, slot_dir, model_bytes, more_slots=0)
    with console.steps(quiet=as_json) as told:
        joining = enrol.join(token, home, site=site, listen=listen, advertise=advertise, storage=storage, told=told)
        joined = asyncio.run(joining)
    _introduce(home, joined.node_id, joined.config, as_json=as_json)


def _storage(home: Home, slot_dir: Path | None, model_bytes: int, *, more_slots: int) -> dict[str, object]:
    """The storage settings of a new home. Raises BadInputError when models of that size will not fit on this host."""
    from .config import Storage

    chosen = Storage() if slot_dir is None else Storage(slot_dir=slot_dir.absolute())
    if model_bytes:
        from ..storage.slot_dir import check_fit

        slots = min(chosen.slots + more_slots, 4)
        problems = check_fit(home.root / chosen.slot_dir, home.root, model_bytes, slots, chosen.memory_limit)
        if problems:
            raise BadInputError("; ".join(problems))
    return {} if slot_dir is None else {"slot_dir": str(chosen.slot_dir)}


def _introduce(home: Home, node_id: bytes, config: Config, *, as_json: bool) -> None:
    """Say what a new home is, and what to do next."""
    if as_json:
        console.print_json(
            {
                "home": str(home.root),
                "node": node_id.hex(),
                "site": config.node.site,
                "listen": config.node.listen,
                "addresses": config.node.addresses,
                "seeds": config.node.seeds,
            }
        )
        return
    click.echo(f"node {node_id.hex()} of site {config.node.site} lives in {home.root}")
    if config.node.addresses:
        click.echo(f"others reach it at {', '.join(config.node.addresses)}")
    else:
        click.echo("others cannot dial it; set node.advertise in its config.toml if they should")
    click.echo(f"start it: patchswarm daemon --home {home.root}")


@click.command()
@options.home
@click.option(
    "--ttl", "ttl_s", default="24h", metavar="DURATION", callback=options.seconds, help="How long the invite holds."
)
@click.option("--uses", default=1, type=click.IntRange(1, 100_000), help="How many nodes may join with it.")
@click.option("--list", "listing", is_flag=True, help="Show the invites instead of making one.")
@click.option(
    "--withdraw", metavar="ID", shell_complete=completing.invites, help="Withdraw an invite instead of making one."
)
@options.json
def invite(*, home: Home, ttl_s: float, uses: int, listing: bool, withdraw: str | None, as_json: bool) -> None:
    """Print a token with which a new node can join.

    On the head. Its daemon need not run now, but must when the new node joins.
    """
    import time

    from .config import Config
    from .fleet import enrol, invites
    from .fleet.identity import Identity
    from .units import format_duration

    home.check()
    if withdraw is not None:
        if not invites.withdraw(home.invites, withdraw):
            raise BadInputError(f"no invite {withdraw!r} here; 'patchswarm invite --list' shows them")
        if as_json:
            console.print_json({"withdrawn": withdraw})
        else:
            click.echo(f"invite {withdraw} is withdrawn")
        return
    if listing:
        held, now_s = invites.listing(home.invites), time.time()
        if as_json:
            console.print_json(
                {"invites": [{"id": i.id, "expires_s": i.expires_s, "uses_left": i.uses_left} for i in held]}
            )
            return
        rows = [
            (i.id, format_duration(i.expires_s - now_s) if i.expires_s > now_s else "expired", str(i.uses_left))
            for i in held
        ]
        console.print_columns(("INVITE", "HOLDS", "USES LEFT"), rows)
        return
    token = enrol.invite(home, Identity.load(home), Config.load(home), ttl_s=ttl_s, uses=uses)
    if as_json:
        console.print_json({"token": token, "ttl_s": ttl_s, "uses": uses})
        return
    click.echo(token)
    if sys.stderr.isatty():
        click.echo(f"on the new host, within {format_duration(ttl_s)}: patchswarm join TOKEN --site SITE", err=True)


@click.command()
@options.home
@click.option(
    "--json", "as_json", is_flag=True, help="Log in JSON on a terminal too, until SIGHUP reads config.toml again."
)
def daemon(*, home: Home, as_json: bool) -> None:
    """Run this node until SIGTERM or SIGINT."""
    from .run import run

    run(home, log_format="json" if as_json else None)
