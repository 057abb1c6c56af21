"""Which part of a tensor one rank of a tensor-parallel engine holds, and where a changed element lies in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..errors import BadInputError


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows `first` to `first + size` of dimension `dim` of a tensor of `shape`: what one rank holds.

    The methods take and give arrays of numpy or tensors of torch alike.
    """

    shape: tuple[int, ...]
    dim: int
    first: int
    size: int

    @classmethod
    def of(cls, name: str, shape: Sequence[int], dim: int, rank: int, world: int) -> Shard:
        """The equal share of `rank` among `world`. Raises BadInputError where there is none."""
        if not -len(shape) <= dim < len(shape):
            raise BadInputError(
                f"tensor {name!r} of shape {list(shape)} has no dimension {dim} to be sharded along: load in full"
            )
        dim %= len(shape)
        if shape[dim] % world:
            raise BadInputError(
                f"tensor {name!r}: dimension {dim} of {list(shape)} does not divide among {world} ranks; load in full"
            )
        size = shape[dim] // world
        return cls(tuple(shape), dim, rank * size, size)

    @property
    def held(self) -> tuple[int, ...]:
        """Shape of what the rank holds."""
        return (*self.shape[: self.dim], self.size, *self.shape[self.dim + 1 :])

    @property
    def inner(self) -> int:
        """Elements of one row of the dimension."""
        return prod(self.shape[self.dim + 1 :])

    @property
    def span(self) -> tuple[int, int] | None:
        """First element and the one after the last, when the share is one stretch of the whole tensor."""
        if prod(self.shape[: self.dim]) != 1:
            return None
        return self.first * self.inner, (self.first + self.size) * self.inner

    def select(self, places: Any) -> tuple[Any, Any]:
        """For int64 element numbers (k,) of the whole tensor: which lie in the share, and their numbers there."""
        inner, along = self.inner, self.shape[self.dim]
        rows = places // inner
        row = rows % along - self.first
        inside = (row >= 0) & (row < self.size)
        rows, row, places = rows[inside], row[inside], places[inside]
        return inside, (rows // along * self.size + row) * inner + places % inner


def within(places: np.ndarray[Any, Any], first: int, last: int) -> slice:
    """Which of rising element numbers lie from `first` to before `last`."""
    begin, end = np.searchsorted(places, np.array([first, last], places.dtype.newbyteorder("=")))
    return slice(int(begin), int(end))
