"""Commands that talk to a running daemon: `publish`, `pull`, `status`, `versions`, `verify` and `peers`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from . import completing, console, options
from .home import Home

if TYPE_CHECKING:
    from .local.client import Client
    from .local.model import PeerStatus, StreamStatus

_LOOK_S: Final = 0.2


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@options.stream
@click.option("--version", "number", type=click.IntRange(0, 2**63 - 1), help="Its number.  [default: the next]")
@click.option("--label", default="", help="Free text that goes with it, such as the trainer's step.")
@click.option("--base", is_flag=True, help="The hosts have these bytes already: register them, send nothing.")
@click.option(
    "--slime-delta", is_flag=True, help="DIR is one of slime's delta folders: apply it to the newest version."
)
@click.option(
    "--no-stream", is_flag=True, help="Send nothing before all of it is encoded: to see what streaming gains."
)
@options.staging
@click.option("--quiet", "-q", is_flag=True, help="Print the version's number only.")
@options.json
@options.home
@options.socket
def publish(
    *,
    directory: Path,
    stream: str,
    number: int | None,
    label: str,
    base: bool,
    slime_delta: bool,
    no_stream: bool,
    staging: Path | None,
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

    client = client_of(home, socket)
    with console.progress(quiet=quiet or as_json) as show, contextlib.ExitStack() as stack:
        if slime_delta:
            from .local.slime.source import applied
            from .local.trainer.staging import root_of

            label = label or directory.absolute().name
            directory = stack.enter_context(applied(directory, client, stream, root_of(client, staging)))
        else:
            _refuse_delta(directory)

        def relay(progress: PublishProgress) -> None:
            show(progress.stage, progress.done_bytes, progress.total_bytes)

        result = client.publish(
            directory.absolute(),
            stream=stream,
            version=number,
            label=label,
            base=base,
            streamed=not no_stream,
            progress=relay,
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


def _refuse_delta(directory: Path) -> None:
    """Packed changes of tensors must not be served as if they were tensors."""
    from .errors import BadInputError
    from .local.trainer.selecting import is_delta

    if is_delta(directory):
        raise BadInputError(f"{directory} holds slime's changes, not a checkpoint: publish it with --slime-delta")


@click.command()
@click.option("--watch", "-w", "watching", is_flag=True, help="Go on until Ctrl-C; with --json a line a second.")
@options.json
@options.home
@options.socket
def status(*, watching: bool, as_json: bool, home: Home, socket: Path | None) -> None:
    """Show the streams, how far behind they are, and the peers."""
    client = client_of(home, socket)
    if watching:
        from .screen import watch

        watch(client, as_json=as_json)
    streams, peers, problems = client.streams(), client.peers(), client.node().problems
    if as_json:
        console.print_json({"streams": streams, "peers": peers, "problems": problems})
        return
    for problem in problems:
        click.echo(f"problem: {problem}")
    if streams:
        _print_streams(streams)
    else:
        click.echo("no streams yet; the head starts one with 'patchswarm publish DIR --stream NAME'")
    click.echo()
    _print_peers(peers)


@click.command()
@options.json
@options.home
@options.socket
def peers(*, as_json: bool, home: Home, socket: Path | None) -> None:
    """Show the other nodes that this one knows."""
    known = client_of(home, socket).peers()
    if as_json:
        console.print_json({"peers": known})
    else:
        _print_peers(known)


@click.command()
@options.stream
@click.option(
    "--label", metavar="LABEL", shell_complete=completing.labels, help="Only versions with exactly this label."
)
@options.json
@options.home
@options.socket
def versions(*, stream: str, label: str | None, as_json: bool, home: Home, socket: Path | None) -> None:
    """Show a stream's versions on this node, newest first.

    With --label, exit code 7 when there is none.
    """
    import time

    from .local.errors import UnknownVersionError
    from .units import format_size

    known = client_of(home, socket).versions(stream)
    if label is not None:
        known = [version for version in known if version.label == label]
        if not known:
            raise UnknownVersionError(
                f"no version of {stream!r} is labelled {label!r}", remedy="leave --label out to see all"
            )
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


@click.command()
@options.stream
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A directory that is empty or does not exist yet.",
)
@click.option(
    "--version",
    "number",
    type=click.IntRange(0, 2**63 - 1),
    shell_complete=completing.versions,
    help="Which version.  [default: the newest here]",
)
@click.option("--wait", "wait_s", default=0.0, metavar="SECONDS", type=click.FloatRange(0), help="Wait so long for it.")
@click.option("--quiet", "-q", is_flag=True, help="Print the version's number only.")
@options.json
@options.home
@options.socket
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

    client = client_of(home, socket)
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


@click.command()
@options.stream
@click.option("--repair", is_flag=True, help="Wait until wrong blocks are mended; the daemon mends them in any case.")
@options.json
@options.home
@options.socket
def verify(*, stream: str, repair: bool, as_json: bool, home: Home, socket: Path | None) -> None:
    """Hold every slot of a stream against its digest table.

    A version with a wrong block is withdrawn. Ends with 0 when every block is right, or mended with --repair.
    """
    from .errors import DamagedError

    client = client_of(home, socket)
    with _shown(client, stream, quiet=as_json):
        slots = client.verify(stream, repair=repair)
    if as_json:
        console.print_json({"slots": slots})
    else:
        rows = [
            (
                str(slot.version),
                "twin" if slot.twin else "version",
                str(slot.blocks),
                str(slot.bad),
                str(slot.bad - slot.left),
                slot.problem or "-",
                slot.path,
            )
            for slot in slots
        ]
        console.print_columns(("VERSION", "SLOT", "BLOCKS", "BAD", "MENDED", "NOT CHECKED", "PATH"), rows)
    wrong = sum(slot.left for slot in slots)
    if wrong:
        raise DamagedError(f"{wrong} blocks of {stream} are wrong and not mended yet; 'patchswarm status' tells more")


@contextlib.contextmanager
def _shown(client: Client, stream: str, *, quiet: bool) -> Iterator[None]:
    """Show how far the daemon has come with a verification, as its status tells."""
    from .local.errors import LocalError

    if not console.is_watched(quiet=quiet):
        yield
        return
    over = threading.Event()

    def look(show: console.ShowProgress) -> None:
        while not over.wait(_LOOK_S):
            with contextlib.suppress(LocalError):  # the verification itself says what is wrong
                progress = client.status(stream).progress
                if progress is not None and progress.stage == "verify":
                    show("verify", progress.done_bytes, progress.total_bytes)

    with console.progress(quiet=False) as show:
        looking = threading.Thread(target=look, args=(show,), daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()


def client_of(home: Home, socket: Path | None) -> Client:
    """The client of the daemon on `socket`, or on the home's. Raises HomeError."""
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
