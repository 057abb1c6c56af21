"""`patchswarm inspect`: how still the weights are from one version to the next, and how small a patch that makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import completing, console, options
from .errors import BadInputError
from .home import Home
from .weights import client_of

if TYPE_CHECKING:
    from ..storage.stillness import ExponentPart, Part, Stillness
    from .local.client import Client
    from .local.errors import UnknownVersionError
    from .local.model import VersionInfo


@dataclass(frozen=True, slots=True)
class Pair:
    """Two directories to compare, and what to call what is in them."""

    old: str
    new: str
    old_directory: Path
    new_directory: Path


def _stream_argument(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else options.stream_argument(ctx, parameter, value)


@click.command()
@click.option(
    "--dirs",
    "directories",
    nargs=2,
    multiple=True,
    metavar="OLD NEW",
    type=click.Path(path_type=Path),
    help="Two checkpoint directories; needs no daemon. Repeat it for more steps.",
)
@click.option(
    "--stream",
    metavar="NAME",
    callback=_stream_argument,
    shell_complete=completing.streams,
    help="Versions of this stream that are held here.",
)
@click.option(
    "--version",
    "numbers",
    multiple=True,
    type=click.IntRange(0, 2**63 - 1),
    shell_complete=completing.versions,
    help="Which one, compared with the one before. Repeat it for more.  [default: the newest here]",
)
@click.option(
    "--from",
    "start",
    type=click.IntRange(0, 2**63 - 1),
    shell_complete=completing.versions,
    help="Compare with this version instead of the one before.",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also draw it, as .png, .svg or .pdf; needs patchswarm[plot].",
)
@options.json
@options.home
@options.socket
def inspect(
    *,
    directories: Sequence[tuple[Path, Path]],
    stream: str | None,
    numbers: Sequence[int],
    start: int | None,
    plot: Path | None,
    as_json: bool,
    home: Home,
    socket: Path | None,
) -> None:
    """Show how much changes from one version to the next.

    Changed share overall, by dtype, by group of tensors and by exponent, how far values moved in ULP order, the size of
    the patch, and how much of the size bound it reaches. Give --dirs, or --stream. Versions that are compared must be
    held here: a lease keeps one, and so does 'patchswarm pull'.
    """
    if bool(directories) == (stream is not None):
        raise click.UsageError("give either --dirs OLD NEW or --stream NAME")
    if stream is None and (numbers or start is not None):
        raise click.UsageError("--version and --from go with --stream")
    if start is not None and len(numbers) > 1:
        raise click.UsageError("--from goes with one --version only")
    draw = _drawing(plot) if plot is not None else None
    with contextlib.ExitStack() as held:
        if stream is None:
            pairs = [Pair(str(old), str(new), old, new) for old, new in directories]
        else:
            pairs = held.enter_context(_leased(client_of(home, socket), stream, numbers, start))
        found = [(pair, _compare(pair, quiet=as_json)) for pair in pairs]
    if as_json:
        console.print_json({"transitions": [_document(pair, stillness) for pair, stillness in found]})
    else:
        for number, (pair, stillness) in enumerate(found):
            if number:
                click.echo()
            _print(pair, stillness)
    if draw is not None:
        draw([(pair.old, pair.new, stillness) for pair, stillness in found])


@contextlib.contextmanager
def _leased(client: Client, stream: str, numbers: Sequence[int], start: int | None) -> Iterator[list[Pair]]:
    """The versions to compare, under leases until the end. Raises UnknownVersionError for one that is not held here."""
    known = client.versions(stream)
    held = [version.version for version in known if version.path]
    steps = [(_before(known, number) if start is None else start, number) for number in sorted(numbers or held[:1])]
    if not steps or any(old == new or old not in held or new not in held for old, new in steps):
        raise _not_held(stream, held, steps)
    with contextlib.ExitStack() as leases:
        paths = {
            number: leases.enter_context(client.lease(stream, number)).path
            for number in sorted({number for step in steps for number in step})
        }
        yield [Pair(f"{stream} {old}", f"{stream} {new}", paths[old], paths[new]) for old, new in steps]


def _before(known: Sequence[VersionInfo], number: int) -> int:
    """The version that was committed before `number`; `number` itself when none is known."""
    numbers = [version.version for version in known]
    if number not in numbers:
        return number
    return (numbers[numbers.index(number) + 1 :] or [number])[0]


def _not_held(stream: str, held: Sequence[int], steps: Sequence[tuple[int, int]]) -> UnknownVersionError:
    """Why these steps cannot be compared: one line that names what is missing and what is here."""
    from .local.errors import UnknownVersionError

    here = f"held are {', '.join(map(str, sorted(held)))}" if held else "none is held"
    for old, new in steps:
        if new not in held:
            return UnknownVersionError(
                f"version {new} of {stream!r} is not held here; {here}", remedy="name one of these"
            )
        if old == new:
            return UnknownVersionError(
                f"no version of {stream!r} before {new} is known here; {here}", remedy="give --from"
            )
        if old not in held:
            return UnknownVersionError(
                f"version {old} of {stream!r}, to compare {new} with, is not held here any more; {here}",
                remedy="keep a lease on it while the next one comes, give --from, or compare copies with --dirs",
            )
    return UnknownVersionError(f"no version of {stream!r} is held here yet", remedy="wait for one, or use --dirs")


def _compare(pair: Pair, *, quiet: bool) -> Stillness:
    """Compare, and show how far it has come. Raises BadInputError."""
    from ..protocol.codec.chunk import CodecOptions
    from ..storage import checkpoint
    from ..storage.errors import NotACheckpointError, NotComparableError, SourceChangedError
    from ..storage.stillness import compare_checkpoints

    try:
        with (
            checkpoint.scan(pair.old_directory) as old,
            checkpoint.scan(pair.new_directory) as new,
            console.progress(quiet=quiet) as show,
        ):
            return compare_checkpoints(
                old, new, codec=CodecOptions(), progress=lambda done, total: show("compare", done, total)
            )
    except (NotACheckpointError, NotComparableError, SourceChangedError) as error:
        raise BadInputError(str(error)) from None


def _document(pair: Pair, stillness: Stillness) -> dict[str, Any]:
    import msgspec

    return {"old": pair.old, "new": pair.new, **msgspec.to_builtins(stillness)}


def _print(pair: Pair, found: Stillness) -> None:
    from .units import format_size

    ratio = f"{found.full_bytes / found.patch_bytes:,.1f}x smaller" if found.patch_bytes else "nothing to send"
    click.echo(f"{pair.old} -> {pair.new}")
    click.echo(f"  changed  {found.changed_fraction:.3%} ({found.changed:,} of {found.elements:,} elements)")
    click.echo(f"  patch    {format_size(found.patch_bytes)} of {format_size(found.full_bytes)}, {ratio}")
    click.echo(
        f"  bound    {format_size(found.bound_bytes)} for the tensors, which take "
        f"{format_size(found.tensor_patch_bytes)}: {found.bound_reached:.1%} of it reached"
    )
    click.echo()
    _print_parts("DTYPE", found.dtypes)
    click.echo()
    _print_parts("GROUP", found.groups)
    if found.exponents:
        click.echo()
        console.print_columns(
            ("DTYPE", "EXPONENT", "ELEMENTS", "CHANGED", "SHARE"),
            [
                (part.dtype, f"2^{part.exponent}", f"{part.elements:,}", f"{part.changed:,}", _share(part))
                for part in found.exponents
            ],
        )
    if found.distances:
        click.echo()
        console.print_columns(
            ("ULPS", "CHANGED", "SHARE"),
            [
                (
                    f"{part.least}" if part.least == part.most else f"{part.least}-{part.most}",
                    f"{part.changed:,}",
                    f"{part.changed / found.changed:.3%}",
                )
                for part in found.distances
            ],
        )


def _print_parts(header: str, parts: Sequence[Part]) -> None:
    console.print_columns(
        (header, "TENSORS", "ELEMENTS", "CHANGED", "SHARE"),
        [(part.name, f"{part.tensors:,}", f"{part.elements:,}", f"{part.changed:,}", _share(part)) for part in parts],
    )


def _share(part: Part | ExponentPart) -> str:
    return f"{part.changed_fraction:.3%}"


def _drawing(path: Path) -> Callable[[Sequence[tuple[str, str, Stillness]]], None]:
    """What draws into `path`. Raises BadInputError at once when it could not, before anything is measured."""
    from . import plotting

    plotting.check(path)
    return lambda found: plotting.draw(path, found)
