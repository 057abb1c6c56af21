"""What `patchswarm inspect --plot` draws: changed share by group and exponent, distances, and all of it over versions.

matplotlib is an optional extra; it draws without a display and without pyplot's global state.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .errors import BadInputError, reason

if TYPE_CHECKING:
    from ..storage.stillness import Part, Stillness

    Found = Sequence[tuple[str, str, Stillness]]
    """Names of two versions, and what was found between them; in the order of the versions."""

_SUFFIXES: Final = (".png", ".svg", ".pdf")
_MOST_GROUPS: Final = 24
_MOST_VERSIONS: Final = 8
"""Lines that one picture shows beside each other; of more, the latest."""


def check(path: Path) -> None:
    """Raise BadInputError unless a picture can be drawn into `path`."""
    if path.suffix.lower() not in _SUFFIXES:
        raise BadInputError(f"{path}: name a picture that ends in {', '.join(_SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise BadInputError(f"{path.absolute().parent} is not a directory: make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInputError("--plot needs matplotlib: pip install 'patchswarm[plot]'")


def draw(path: Path, found: Found) -> None:
    """Draw what was found, one line or bar per version. Raises BadInputError when `path` cannot be written."""
    from matplotlib.figure import Figure

    several = len(found) > 1
    figure = Figure(figsize=(13, 12 if several else 8.5), layout="constrained")
    grid = figure.add_gridspec(3 if several else 2, 2)
    shown = found[-_MOST_VERSIONS:]
    _groups(figure.add_subplot(grid[0, :]), found[-1][2].groups)
    _exponents(figure.add_subplot(grid[1, 0]), shown)
    _distances(figure.add_subplot(grid[1, 1]), shown)
    if several:
        _versions(figure.add_subplot(grid[2, :]), found)
    old, new, last = found[-1]
    figure.suptitle(
        f"{old} → {new}: {last.changed_fraction:.3%} of {last.elements:,} elements changed, patch "
        f"{last.patch_bytes:,} B, {last.bound_reached:.1%} of the bound reached"
    )
    try:
        figure.savefig(path)
    except OSError as error:
        raise BadInputError(f"{path}: {reason(error)}") from None


def _groups(axes: Any, groups: Sequence[Part]) -> None:
    """Bars of the groups with the most changed elements, in the order of the checkpoint."""
    most = sorted(groups, key=lambda part: part.changed, reverse=True)[:_MOST_GROUPS]
    shown = [part for part in groups if part in most]
    axes.barh([part.name for part in shown], [100 * part.changed_fraction for part in shown])
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    left_out = f", the {len(shown)} that change most" if len(shown) < len(groups) else ""
    axes.set(title=f"Changed share by group of tensors{left_out}", xlabel="changed elements, %")
    axes.grid(axis="x", alpha=0.3)


def _exponents(axes: Any, shown: Found) -> None:
    """A line per version and dtype; an exponent that nothing changed at leaves a gap."""
    for _, new, stillness in shown:
        for dtype in dict.fromkeys(part.dtype for part in stillness.exponents):
            parts = [part for part in stillness.exponents if part.dtype == dtype and part.changed]
            label = f"{new}, {dtype}" if len(shown) > 1 else dtype
            axes.plot(
                [part.exponent for part in parts],
                [100 * part.changed_fraction for part in parts],
                marker="o",
                markersize=3,
                label=label,
            )
    axes.set(title="Changed share by exponent of the old value", xlabel="exponent of two", ylabel="changed elements, %")
    if any(part.changed for _, _, stillness in shown for part in stillness.exponents):
        axes.set_yscale("log")
    _legend(axes)
    axes.grid(alpha=0.3)


def _distances(axes: Any, shown: Found) -> None:
    """Bars side by side, one colour per version."""
    classes = max((stillness.distances for _, _, stillness in shown), key=len)
    width = 0.8 / len(shown)
    for number, (_, new, stillness) in enumerate(shown):
        axes.bar(
            [place + number * width for place in range(len(stillness.distances))],
            [part.changed for part in stillness.distances],
            width,
            label=new,
        )
    names = [str(part.least) if part.least == part.most else f"{part.least}-{part.most}" for part in classes]
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(classes))], names, rotation=45, fontsize=7)
    axes.set(title="How far changed elements moved", xlabel="steps in ULP order", ylabel="elements")
    if classes:
        axes.set_yscale("log")
    if len(shown) > 1:
        _legend(axes)
    axes.grid(axis="y", alpha=0.3)


def _versions(axes: Any, found: Found) -> None:
    """Changed share and patch size, version by version."""
    names = [new for _, new, _ in found]
    places = range(len(names))
    axes.plot(places, [100 * stillness.changed_fraction for *_, stillness in found], marker="o", label="changed, %")
    axes.set(title="Over versions", ylabel="changed elements, %", ylim=(0, None))
    axes.set_xticks(places, names, rotation=30, fontsize=7)
    axes.grid(alpha=0.3)
    sizes = axes.twinx()
    sizes.plot(places, [stillness.patch_bytes / 2**20 for *_, stillness in found], marker="s", color="tab:orange")
    sizes.set(ylabel="patch, MiB (orange)", ylim=(0, None))


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7)
