"""The `patchswarm` command.

`init`, `join`, `invite` and `daemon` work on a home; the others talk to its daemon over the local socket.
What is slow to import is imported by the command that needs it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from . import console
from .errors import BadInputError, DaemonError
from .exits import Exit, table
from .home import Home
from .local.gateway.command import gateway
from .units import parse_address, parse_duration_s

if TYPE_CHECKING:
    from .config import Config
    from .local.client import Client
    from .local.model import PeerStatus, StreamStatus

ENVIRONMENT_PREFIX: Final = "PATCHSWARM"


class _Commands(click.Group):
    """Turns what commands raise into one line on standard error and an exit code of the table."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)
        except Exception as error:
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
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror, Exit.UNEXPECTED
    return f"unexpected {type(error).__name__}: {error}; PATCHSWARM_DEBUG=1 shows where", Exit.UNEXPECTED


def _addresses(_ctx: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """Check HOST:PORT options, one or many, before anything is made with them."""
    for address in value if isinstance(value, tuple) else (value,) if value else ():
        try:
            parse_address(address)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


def _seconds(_ctx: click.Context, _parameter: click.Parameter, value: str) -> float:
    try:
        return parse_duration_s(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _home_argument(_ctx: click.Context, _parameter: click.Parameter, value: str) -> Home:
    return Home.at(value)


def _stream_argument(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    from ..protocol.errors import MessageError
    from ..protocol.ids import check_stream_name

    try:
        return check_stream_name(value)
    except MessageError as error:
        raise BadInputError(f"--stream: {error}") from None


_home = click.option(
    "--home",
    envvar=f"{ENVIRONMENT_PREFIX}_HOME",
    default="~/.patchswarm",
    show_default=True,
    show_envvar=True,
    metavar="DIR",
    callback=_home_argument,
    help="Folder with this node's keys, configuration and state.",
)
_socket = click.option(
    "--socket",
    envvar=f"{ENVIRONMENT_PREFIX}_SOCKET",
    show_envvar=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The daemon's socket, when it is not the home's.",
)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
_stream = click.option("--stream", required=True, metavar="NAME", callback=_stream_argument, help="The stream.")


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


@main.command()
@_home
@click.option("--site", required=True, help="Where this node is, for example us-east/provider-a.")
@click.option("--listen", required=True, metavar="HOST:PORT", callback=_addresses, help="Where to accept other nodes.")
@click.option(
    "--advertise",
    multiple=True,
    metavar="HOST:PORT",
    callback=_addresses,
    help="Where others reach this node, when that is not the listen address; may be given again.",
)
@_json
def init(*, home: Home, site: str, listen: str, advertise: tuple[str, ...], as_json: bool) -> None:
    """Make a new cluster and its head.

    The head enrols other nodes, and publishes.
    """
    from .fleet import identity

    config = identity.init(home, site=site, listen=listen, advertise=advertise)
    _introduce(home, identity.Identity.load(home).node_id, config, as_json=as_json)


@main.command()
@click.argument("token", envvar=f"{ENVIRONMENT_PREFIX}_JOIN_TOKEN")
@_home
@click.option("--site", required=True, help="Where this node is, for example eu-west/provider-b.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_addresses,
    help="Where to accept other nodes; '' for nowhere.  [default: every interface, port 7340]",
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="HOST:PORT",
    callback=_addresses,
    help="Where others reach this node; may be given again.  "
    "[default: the listen address, or for every interface the one that reaches the head]",
)
@_json
def join(*, token: str, home: Home, site: str, listen: str | None, advertise: tuple[str, ...], as_json: bool) -> None:
    """Enrol this host in a cluster.

    TOKEN is the line that 'patchswarm invite' printed on the head; '-' reads it from standard input.
    """
    import asyncio

    from .fleet import enrol

    if token == "-":  # noqa: S105 -- the usual name of standard input
        token = sys.stdin.read(65536)
    joined = asyncio.run(enrol.join(token, home, site=site, listen=listen, advertise=advertise))
    _introduce(home, joined.node_id, joined.config, as_json=as_json)


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


@main.command()
@_home
@click.option("--ttl", "ttl_s", default="24h", metavar="DURATION", callback=_seconds, help="How long the invite holds.")
@click.option("--uses", default=1, type=click.IntRange(1, 100_000), help="How many nodes may join with it.")
@click.option("--list", "listing", is_flag=True, help="Show the invites instead of making one.")
@click.option("--withdraw", metavar="ID", help="Withdraw an invite instead of making one.")
@_json
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


@main.command()
@_home
def daemon(*, home: Home) -> None:
    """Run this node until SIGTERM or SIGINT."""
    from .run import run

    run(home)


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@_stream
@click.option("--version", "number", type=click.IntRange(0, 2**63 - 1), help="Its number.  [default: the next]")
@click.option("--label", default="", help="Free text that goes with it, such as the trainer's step.")
@click.option("--base", is_flag=True, help="The hosts have these bytes already: register them, send nothing.")
@click.option("--quiet", "-q", is_flag=True, help="Print the version's number only.")
@_json
@_home
@_socket
def publish(
    *,
    directory: Path,
    stream: str,
    number: int | None,
    label: str,
    base: bool,
    quiet: bool,
    as_json: bool,
    home: Home,
    socket: Path | None,
) -> None:
    """Publish a checkpoint directory as the next version.

    On the head. DIR holds safetensors files and whatever else belongs to the checkpoint.
    """
    from .local.model import PublishProgress
    from .units import format_size

    client = _client(home, socket)
    with console.progress(quiet=quiet or as_json) as show:

        def relay(progress: PublishProgress) -> None:
            show(progress.stage, progress.done_bytes, progress.total_bytes)

        result = client.publish(
            directory.absolute(), stream=stream, version=number, label=label, base=base, progress=relay
        )
    if as_json:
        console.print_json(result)
    elif quiet:
        click.echo(result.version)
    else:
        label = f" ({result.label})" if result.label else ""
        click.echo(f"published {result.stream} version {result.version}{label}")
        click.echo(f"  changed  {result.changed_fraction:.3%} ({result.changed_elements:,} elements)")
        ratio = f"{result.ratio:,.1f}x smaller" if result.patch_bytes else "nothing to send"
        click.echo(f"  patch    {format_size(result.patch_bytes)} of {format_size(result.full_bytes)}, {ratio}")
        click.echo(f"  seconds  {', '.join(f'{stage} {took:.2f}' for stage, took in result.seconds.items())}")


@main.command()
@_json
@_home
@_socket
def status(*, as_json: bool, home: Home, socket: Path | None) -> None:
    """Show the streams, how far behind they are, and the peers."""
    client = _client(home, socket)
    streams, peers = client.streams(), client.peers()
    if as_json:
        console.print_json({"streams": streams, "peers": peers})
        return
    if streams:
        _print_streams(streams)
    else:
        click.echo("no streams yet; the head starts one with 'patchswarm publish DIR --stream NAME'")
    click.echo()
    _print_peers(peers)


@main.command()
@_json
@_home
@_socket
def peers(*, as_json: bool, home: Home, socket: Path | None) -> None:
    """Show the other nodes that this one knows."""
    known = _client(home, socket).peers()
    if as_json:
        console.print_json({"peers": known})
    else:
        _print_peers(known)


@main.command()
@_stream
@_json
@_home
@_socket
def versions(*, stream: str, as_json: bool, home: Home, socket: Path | None) -> None:
    """Show a stream's versions on this node, newest first."""
    import time

    from .units import format_size

    known = _client(home, socket).versions(stream)
    if as_json:
        console.print_json({"versions": known})
        return
    rows = [
        (
            str(v.version),
            v.label or "-",
            format_size(v.size_bytes),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(v.committed_at)) if v.committed_at else "-",
            ("proven" if v.proven else "unproven") if v.path else "not held",
            v.manifest[:10],
        )
        for v in known
    ]
    console.print_columns(("VERSION", "LABEL", "SIZE", "COMMITTED", "BYTES", "MANIFEST"), rows)


@main.command()
@_stream
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A directory that is empty or does not exist yet.",
)
@click.option(
    "--version", "number", type=click.IntRange(0, 2**63 - 1), help="Which version.  [default: the newest here]"
)
@click.option("--wait", "wait_s", default=0.0, metavar="SECONDS", type=click.FloatRange(0), help="Wait so long for it.")
@click.option("--quiet", "-q", is_flag=True, help="Print the version's number only.")
@_json
@_home
@_socket
def pull(
    *,
    stream: str,
    out: Path,
    number: int | None,
    wait_s: float,
    quiet: bool,
    as_json: bool,
    home: Home,
    socket: Path | None,
) -> None:
    """Copy a version's files into a new directory."""
    from .units import format_size

    client = _client(home, socket)
    with console.progress(quiet=quiet or as_json) as show:
        pulled = client.pull(
            stream, out, version=number, wait_s=wait_s, progress=lambda done, total: show("pull", done, total)
        )
    if as_json:
        console.print_json({"version": pulled, "out": str(out)})
    elif quiet:
        click.echo(pulled.version)
    else:
        click.echo(f"pulled {stream} version {pulled.version}, {format_size(pulled.size_bytes)}, into {out}")


main.add_command(gateway)


def _client(home: Home, socket: Path | None) -> Client:
    from .local.client import Client

    if socket is None:
        from .config import Config

        home.check()
        socket = Config.load(home).local.socket
    return Client(socket)


def _print_streams(streams: list[StreamStatus]) -> None:
    rows = [
        (
            s.stream,
            s.state.value,
            str(s.current.version) if s.current else "-",
            str(s.head.version) if s.head else "-",
            f"{s.lag} ({s.lag_s:.0f} s)" if s.lag else "0",
            ("yes" if s.proven else "not yet") if s.current else "-",
            f"{s.progress.stage} {s.progress.done_bytes / max(1, s.progress.total_bytes):.0%}" if s.progress else "-",
        )
        for s in streams
    ]
    console.print_columns(("STREAM", "STATE", "VERSION", "HEAD", "LAG", "PROVEN", "PROGRESS"), rows)
    for s in streams:
        if s.last_error:
            click.echo(f"{s.stream}: last error: {s.last_error.detail}")


def _print_peers(peers: list[PeerStatus]) -> None:
    from .units import format_size

    if not peers:
        click.echo("no peers yet; add some with 'patchswarm invite' on the head, and 'patchswarm join' on the new host")
        return
    rows = [
        (
            p.node[:10],
            p.site or "-",
            "yes" if p.connected else "no",
            f"{p.rtt_ms:.1f}" if p.rtt_ms is not None else "-",
            f"{format_size(p.up_bytes_per_s)}/s",
            f"{format_size(p.down_bytes_per_s)}/s",
            str(p.lanes),
            ", ".join(f"{head.stream} {head.version}" for head in p.heads) or "-",
        )
        for p in sorted(peers, key=lambda peer: (peer.site, peer.node))
    ]
    console.print_columns(("PEER", "SITE", "LINK", "RTT MS", "UP", "DOWN", "LANES", "HEADS"), rows)
