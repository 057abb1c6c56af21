"""Whether a state dict looks like the version before it: a renamed or reshaped tensor is a mistake until meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..client import Client
from ..errors import UnknownStreamError, UnknownVersionError, VersionNotReadyError
from .arrays import Spec
from .errors import LayoutChangedError

Known = Mapping[str, tuple[str, tuple[int, ...]]]
"""dtype and shape by name."""

_SHOWN: Final = 3
"""How many names an error shows of each kind."""


@dataclass(frozen=True)
class Last:
    """The tensors of one version."""

    manifest: str
    known: Known


def last_layout(client: Client, stream: str, remembered: Last | None) -> Last | None:
    """The tensors of the stream's current version here, or None when there is none to compare with.

    They are asked for only when they are not `remembered`: a large model's list is megabytes.
    """
    try:
        if remembered is not None and client.version(stream).manifest == remembered.manifest:
            return remembered
        listing = client.tensor_list(stream)
    except (UnknownStreamError, UnknownVersionError, VersionNotReadyError):
        return None
    known = {tensor.name: (tensor.dtype, tuple(tensor.shape)) for tensor in listing.tensors}
    return Last(listing.version.manifest, known)


def check_layout(stream: str, known: Known, specs: Mapping[str, Spec]) -> None:
    """Raise LayoutChangedError, naming what differs, unless names, shapes and dtypes are those of `known`."""
    gone = [name for name in known if name not in specs]
    new = [name for name in specs if name not in known]
    other = [
        f"{name} ({known[name][0]} {list(known[name][1])} before, {spec} now)"
        for name, spec in specs.items()
        if name in known and known[name] != (spec.dtype, spec.shape)
    ]
    parts = [
        f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}"
        for what, names in (("missing", gone), ("new", new), ("of another shape or dtype", other))
        if names
    ]
    if parts:
        raise LayoutChangedError(
            f"the tensors are not those of the version of {stream!r} before: {'; '.join(parts)}. "
            "If that is meant, publish with layout_change=True"
        )
