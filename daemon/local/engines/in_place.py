"""Bringing a model in an engine's worker from one version to another in place: what the engines' hooks share.

The worker asks the daemon of its own host for the delta and writes it over the parameters where they are. Before the
first element is written, names, dtypes and shapes of everything that changes are checked, and a sample of the old
values: a worker that holds another version than is said is refused, not spoiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from ..applying import apply_delta
from ..client import Client
from .checkpoint_views import checkpoint_views


class Move(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One move of a model: of which stream, from which version to which, and where the daemon answers."""

    stream: str
    start: int
    end: int
    socket: str | None = None
    """A unix socket's path or "http://HOST:PORT"; None for the daemon's usual place."""
    token: str = ""


def move_in_place(model: torch.nn.Module, move: Move, *, rank: int, world: int, partial: bool = False) -> int:
    """Write over a model's parameters what changes between two versions; elements written on this rank.

    The version `move.start` must be held by the daemon (lease it while the engine has it). `partial`: other ranks have
    other layers, so a tensor that is missing here is theirs. Raises LocalError when there is no such delta, and
    BadInputError when the model cannot take it; either way nothing was written, and a full load helps.
    """
    client = Client(None if move.socket is None else _address(move.socket), token=move.token)
    with client.tensors(move.stream, move.start) as base:
        delta = client.delta(move.stream, move.start, move.end)
        parameters: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
        parameters |= dict(model.named_buffers(remove_duplicate=False))
        shapes = {name: tuple(base[name].shape) for name in base}
        names = [name for name in delta if not partial or _is_here(name, parameters)]
        views = checkpoint_views(parameters, shapes, names, world)
        return apply_delta(
            views.tensors,
            delta,
            rank=rank,
            world=world,
            shard_dims=views.shard_dims,
            ignore_missing=partial,
            base=base,
        )


def _address(text: str) -> Path | str:
    return text if "://" in text else Path(text)


def _is_here(name: str, parameters: dict[str, Any]) -> bool:
    """Whether the module of a tensor, or one beside it, is on this rank: the layer's prefix is."""
    prefix = name.rpartition(".")[0].rpartition(".")[0]
    return any(each.startswith(f"{prefix}.") for each in parameters)
