"""Deltas applied in place: to tensors of torch on any device or to arrays of numpy, whole or one rank's share.

What is written are bits: tensors are seen as integers of their width, so NaN payloads and -0.0 arrive as they are.
Everything is checked before the first element is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ...protocol.codec.bits import kernel
from ..errors import BadInputError
from .delta_file import Changed, Delta
from .shards import Shard, within
from .tensors import NUMPY, TORCH, storage_shape

if TYPE_CHECKING:
    import torch

_PIECE: Final = 1 << 20
"""Elements that are written in one go: what bounds the memory for index arithmetic, and what threads share out."""

_SAMPLE: Final = 256
"""Changed elements of a tensor that are held against the base, about."""


@dataclass(frozen=True, slots=True)
class _Write:
    """One tensor's changes, checked: `target` as integers of its width (torch or numpy), and the share it is."""

    changed: Changed
    target: Any
    shard: Shard | None


def apply_delta(
    state_dict: Mapping[str, Any],
    delta: Delta,
    *,
    rank: int = 0,
    world: int = 1,
    shard_dims: Mapping[str, int] | None = None,
    ignore_missing: bool = False,
    base: Mapping[str, NDArray[Any]] | None = None,
    threads: int | None = None,
) -> int:
    """Write `delta` over the tensors of `state_dict`, which hold the version that it leads from; elements written.

    With `world` ranks, `shard_dims` has for each tensor that is sharded the dimension along which it is, in equal
    shares; the others are whole on every rank. `ignore_missing`: tensors that `state_dict` lacks are another rank's.
    With `base`, the tensors of `delta.start` (`Client.tensors` gives them), some of what is about to be overwritten is
    held against them first; without, another version in the tensors is not noticed. On a CPU up to 4 `threads` share
    the work. Raises BadInputError, nothing written, for a tensor that is missing, has another dtype or shape, or does
    not hold what `base` does.
    """
    if not 0 <= rank < world:
        raise BadInputError(f"rank {rank} of {world}: give a rank from 0 on, below the world")
    writes = []
    for name, changed in delta.items():
        target = state_dict.get(name)
        if target is None:
            if ignore_missing:
                continue
            raise BadInputError(f"tensor {name!r} has changed and is not in the state dict; pass ignore_missing=True")
        dim = (shard_dims or {}).get(name) if world > 1 else None
        shard = None if dim is None else Shard.of(name, _held_shape(changed), dim, rank, world)
        writes.append(_Write(changed, _as_integers(changed, target, shard), shard))
    if base is not None:
        for write in writes:
            _check_base(write, base[write.changed.name], delta.start)
    here = [write for write in writes if isinstance(write.target, np.ndarray)]
    with ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1)) as pool:
        written = sum(pool.map(lambda piece: _put(*piece), (piece for write in here for piece in _pieces(write))))
    there = [write for write in writes if not isinstance(write.target, np.ndarray)]
    return written + (_apply_on_device(delta, there) if there else 0)


def _check_base(write: _Write, base: NDArray[Any], version: int) -> None:
    """Raise BadInputError unless a sample of what changes has the values of the version that the delta leads from."""
    places = write.changed.indices[:: max(1, write.changed.indices.size // _SAMPLE)].astype(np.int64)
    numbers = places
    if write.shard is not None:
        inside, numbers = write.shard.select(places)
        places = places[inside]
    if not places.size:
        return
    width = write.changed.values.itemsize
    expected = base.reshape(-1).view(f"u{width}")[places]
    at = np.unravel_index(numbers, tuple(write.target.shape))
    if isinstance(write.target, np.ndarray):
        found = write.target[at]
    else:
        import torch

        where = tuple(torch.from_numpy(each).to(write.target.device) for each in at)
        found = write.target[where].cpu().numpy().view(f"u{width}")
    if not np.array_equal(found, expected):
        raise BadInputError(f"tensor {write.changed.name!r} does not hold version {version}: load in full")


def _as_integers(changed: Changed, target: Any, shard: Shard | None) -> Any:
    """`target` as integers of its elements' width: a numpy array where the memory is the host's, else a tensor."""
    shape = tuple(_held_shape(changed) if shard is None else shard.held)
    dtype = NUMPY if isinstance(target, np.ndarray) else TORCH
    wanted, found = dtype.get(changed.dtype, "uint8" if dtype is TORCH else "u1"), str(target.dtype)
    same = np.dtype(wanted) == target.dtype if dtype is NUMPY else found == f"torch.{wanted}"
    if not same or tuple(target.shape) != shape:
        raise BadInputError(
            f"tensor {changed.name!r} is {found} {list(target.shape)} here and {changed.dtype} {list(shape)} in the "
            "delta: load in full"
        )
    width = changed.values.itemsize
    if isinstance(target, np.ndarray):
        if not target.flags.writeable:
            raise BadInputError(f"tensor {changed.name!r} cannot be written to: hand in one whose memory is its own")
        return target.view(f"u{width}") if target.ndim else target.reshape(1).view(f"u{width}")
    import torch

    seen = target.detach()
    seen = (seen if seen.ndim else seen.view(1)).view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    )
    return seen.numpy().view(f"u{width}") if seen.device.type == "cpu" else seen


def _held_shape(changed: Changed) -> tuple[int, ...]:
    """The tensor's shape as arrays have it: of packed dtypes the last dimension counts bytes."""
    count = changed.size_bytes if changed.bytewise else prod(changed.shape)
    return tuple(storage_shape(list(changed.shape), count))


def _pieces(write: _Write) -> Iterator[tuple[_Write, slice]]:
    span = write.shard.span if write.shard else None
    places = write.changed.indices
    part = within(places, *span) if span else slice(0, places.size)
    for first in range(part.start, part.stop, _PIECE):
        yield write, slice(first, min(first + _PIECE, part.stop))


def _put(write: _Write, part: slice) -> int:
    """Write some of a tensor's changes into host memory."""
    places, values = write.changed.indices[part], write.changed.values[part]
    shift = 0
    if write.shard is not None:
        span = write.shard.span
        if span is None:
            inside, places = write.shard.select(places.astype(np.int64))
            values = values[inside]
        else:
            shift = span[0]
    target: NDArray[Any] = write.target
    if target.flags.c_contiguous:
        _scatter(target.reshape(-1), places, values, shift)
    else:
        target[np.unravel_index(places.astype(np.int64) - shift, target.shape)] = values
    return int(values.size)


@kernel
def _scatter(target: Any, places: Any, values: Any, shift: Any) -> None:
    """target[places - shift] = values; the places were checked."""
    for k in range(places.size):
        target[places[k] - shift] = values[k]


def _apply_on_device(delta: Delta, writes: list[_Write]) -> int:
    """The same where the tensors are: the delta's bytes go over once, and the rest happens there."""
    import torch

    bodies: dict[torch.device, torch.Tensor] = {}
    written = 0
    for write in writes:
        device = write.target.device
        if device not in bodies:
            bodies[device] = torch.from_numpy(delta.body).to(device)
        written += _put_on_device(write, bodies[device])
    return written


def _put_on_device(write: _Write, body: torch.Tensor) -> int:
    import torch

    changed, target = write.changed, write.target
    index_type = torch.int32 if changed.indices.itemsize == 4 else torch.int64
    places = body[changed.indices_at : changed.indices_at + changed.indices.nbytes].view(index_type)
    values = body[changed.values_at : changed.values_at + changed.values.nbytes].view(target.dtype)
    written = 0
    for _, part in _pieces(write):
        numbers, new = places[part].long(), values[part]
        if write.shard is not None:
            span = write.shard.span
            if span is None:
                inside, numbers = write.shard.select(numbers)
                new = new[inside]
            else:
                numbers = numbers - span[0]
        if target.is_contiguous():
            target.view(-1).index_copy_(0, numbers, new)
        else:
            target.index_put_(torch.unravel_index(numbers, target.shape), new)
        written += new.numel()
    return written
