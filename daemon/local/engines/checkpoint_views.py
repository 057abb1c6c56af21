"""An engine's parameters as its checkpoint names them: fused ones by their parts, sharded ones by their share.

SGLang and vLLM hold `q_proj`, `k_proj` and `v_proj` as rows of one `qkv_proj`, and `gate_proj` and `up_proj` of one
`gate_up_proj`; with tensor parallelism each rank has its share of the rows or columns. What was turned into something
else after loading (transposed, repacked, quantised) fits no checkpoint tensor any more, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...errors import BadInputError

if TYPE_CHECKING:
    import torch

FUSED: Final[dict[str, tuple[str, ...]]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Parts of fused modules, in the order of their rows: what the engines' Llama-like models share."""


@dataclass(frozen=True)
class Views:
    """Tensors of one rank by their checkpoint's names, and along which dimension those are sharded that are."""

    tensors: dict[str, Any] = field(default_factory=dict)
    shard_dims: dict[str, int] = field(default_factory=dict)


def checkpoint_views(
    parameters: Mapping[str, torch.Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    names: Iterable[str],
    world: int,
    fused: Mapping[str, tuple[str, ...]] = FUSED,
) -> Views:
    """Views of `names` in `parameters`, given the shapes of all tensors of the checkpoint.

    Raises BadInputError for a name that no parameter, or row of a fused one, stands for, and for a shape that is
    neither the checkpoint's nor one of `world` equal shares of it.
    """
    parents = {part: parent for parent, parts in fused.items() for part in parts}
    views = Views()
    for name in names:
        tensor = parameters.get(name)
        if tensor is None:
            tensor = _rows(parameters, shapes, name, parents, fused, world)
        if tensor is None:
            raise BadInputError(f"the engine has no parameter for tensor {name!r}: load in full")
        views.tensors[name] = tensor
        dim = _sharded_along(name, tuple(tensor.shape), shapes[name], world)
        if dim is not None:
            views.shard_dims[name] = dim
    return views


def _rows(
    parameters: Mapping[str, torch.Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    name: str,
    parents: Mapping[str, str],
    fused: Mapping[str, tuple[str, ...]],
    world: int,
) -> torch.Tensor | None:
    """The rows of a fused parameter that a checkpoint tensor is, or None when there is no such parameter."""
    before, _, last = name.rpartition(".")
    prefix, _, module = before.rpartition(".")
    parent = parents.get(module)
    whole = parameters.get(f"{prefix}.{parent}.{last}") if parent else None
    if parent is None or whole is None:
        return None
    parts = [f"{prefix}.{part}.{last}" for part in fused[parent]]
    missing = [part for part in parts if part not in shapes]
    rows = [] if missing else [shapes[part][0] for part in parts]
    if missing or any(each % world for each in rows) or sum(rows) // world != whole.shape[0]:
        raise BadInputError(
            f"tensor {name!r}: {list(whole.shape)} of the engine's {parent} are not equal shares of "
            f"{', '.join(fused[parent])}: load in full"
        )
    at = parts.index(name)
    return whole.narrow(0, sum(rows[:at]) // world, rows[at] // world)


def _sharded_along(name: str, held: tuple[int, ...], whole: tuple[int, ...], world: int) -> int | None:
    """The one dimension of which `held` is an equal share; None when it is whole."""
    if held == whole:
        return None
    differing = [dim for dim, (here, there) in enumerate(zip(held, whole, strict=False)) if here != there]
    if len(held) == len(whole) and len(differing) == 1 and held[differing[0]] * world == whole[differing[0]]:
        return differing[0]
    raise BadInputError(
        f"tensor {name!r} is {list(held)} in the engine and {list(whole)} in the checkpoint, on {world} ranks: load in "
        "full"
    )
