"""Commands that speak for the cluster's CA: `revoke`, `issuer` and `publisher adopt | rotate`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import click

from . import completing, console, options
from .errors import BadInputError, RefusedError
from .home import Home

_MIN_PREFIX: Final = 8

ca_dir = click.option(
    "--ca-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder with the CA's key, where it is not in the home.",
)


@click.command()
@click.argument("node", shell_complete=completing.nodes)
@options.home
@ca_dir
@options.json
def revoke(*, node: str, home: Home, ca_dir: Path | None, as_json: bool) -> None:
    """Put a node out of the cluster, for ever.

    NODE is its id, or the first 8 digits at least where a peer of that id is known; of an issuing key, the whole id.
    All nodes hang up on it within seconds. On the head, or wherever an issuing key or the CA's key is.
    """
    from .fleet import governing
    from .fleet.identity import Identity

    home.check()
    own = Identity.load(home)
    name = _node(home, node)
    if name == own.node_id:
        raise BadInputError("this is the node itself: run the command on another one with an issuing key")
    data = governing.revocation(own, name, ca_dir)
    told = _spread(home, "revocation", data)
    if as_json:
        console.print_json({"node": name.hex(), "daemon_told": told})
        return
    click.echo(f"node {name.hex()} is revoked")
    if not told:
        click.echo("no daemon runs on this home: it spreads the word once it does", err=True)


@click.command()
@options.home
@ca_dir
@options.json
def issuer(*, home: Home, ca_dir: Path | None, as_json: bool) -> None:
    """Let this node enrol, renew and revoke others.

    Has the CA certify an issuing key of this home, or a new one for the one that ends. Restart the daemon afterwards.
    """
    import datetime as dt

    from .fleet import authority, identity
    from .fleet.identity import Identity

    home.check()
    with home.lock():
        own = Identity.load(home)
        issuing = authority.make_issuer(own.authority_key(ca_dir), own.ca_certificate, dt.datetime.now(dt.UTC))
        identity.write_issuer(home, issuing)
    key = authority.node_id(issuing.key.public_key().public_bytes_raw())
    if as_json:
        console.print_json({"issuing_key": key.hex(), "not_after": issuing.not_after.timestamp()})
        return
    click.echo(f"issuing key {key.hex()} holds until {issuing.not_after:%Y-%m-%d}; start the daemon")


@click.group()
def publisher() -> None:
    """Say who publishes a stream. The daemon must be stopped meanwhile."""


@publisher.command()
@click.argument("stream", callback=options.stream_argument, shell_complete=completing.streams)
@options.home
@ca_dir
@options.json
def adopt(*, stream: str, home: Home, ca_dir: Path | None, as_json: bool) -> None:
    """Let this node publish STREAM, in a new epoch: after its head was lost, or to begin it while the CA is offline.

    It goes on from the newest version that it has.
    """
    from .fleet import governing
    from .fleet.identity import Identity

    home.check()
    with home.lock():
        own = Identity.load(home)
        epoch = governing.adopt(home, own, own.authority_key(ca_dir), stream)
    if as_json:
        console.print_json({"stream": stream, "epoch": epoch})
        return
    click.echo(f"this node publishes {stream} in epoch {epoch}; start the daemon, and wait until it is up to date")


@publisher.command()
@options.home
@ca_dir
@options.json
def rotate(*, home: Home, ca_dir: Path | None, as_json: bool) -> None:
    """Give this node a new publisher key: after the old one was stolen.

    All its streams go on in a new epoch, whatever was published under the old key.
    """
    from .fleet import governing
    from .fleet.identity import Identity

    home.check()
    with home.lock():
        own = Identity.load(home)
        streams = governing.rotate(home, own, own.authority_key(ca_dir))
    if as_json:
        console.print_json({"streams": streams})
        return
    for stream, epoch in streams.items():
        click.echo(f"stream {stream} goes on in epoch {epoch}")
    click.echo("the publisher key is new; start the daemon")


def _node(home: Home, text: str) -> bytes:
    """The id that `text` begins. Raises BadInputError unless it is one id."""
    from .fleet import governing

    digits = text.lower()
    if len(digits) > 64 or len(digits) < _MIN_PREFIX or set(digits) - set("0123456789abcdef"):
        raise BadInputError(f"{text!r} is no node's id: give its 64 hex digits, or the first {_MIN_PREFIX} at least")
    if len(digits) == 64:
        return bytes.fromhex(digits)
    found = [name for name in governing.known_nodes(home) if name.hex().startswith(digits)]
    if len(found) != 1:
        state = f"{len(found)} nodes have ids that begin so" if found else "no node that is known here begins so"
        raise BadInputError(f"{text}: {state}; give all 64 digits, 'patchswarm peers --json' shows them")
    return found[0]


def _spread(home: Home, kind: Literal["stream", "revocation"], data: bytes) -> bool:
    """Give a signed object to this home's daemon, or to its catalog when none runs. Whether one does."""
    from .config import Config
    from .errors import InUseError
    from .fleet import governing
    from .local import governing as local
    from .local.errors import NotRunningError

    try:
        local.spread(Config.load(home).local.socket, kind, data)
    except NotRunningError:
        try:
            with home.lock():
                governing.keep(home, kind, data)
        except InUseError:
            raise RefusedError("this home's daemon is starting or stopping: try again") from None
        return False
    return True
