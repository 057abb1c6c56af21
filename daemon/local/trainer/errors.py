"""What can go wrong between a trainer's tensors and a version: each is one clear line."""

from __future__ import annotations

from ...errors import BadInputError, DaemonError
from ...exits import Exit


class BadTensorError(BadInputError):
    """A value of a state dict cannot be written as it is: sharded, sparse, without data, of an unknown dtype."""

    remedy = "hand in plain, whole tensors, each name once"


class LayoutChangedError(BadInputError):
    """The state dict has other names, shapes or dtypes than the version before it."""


class StagingError(DaemonError):
    """The staging folder cannot be used, or has no room."""

    remedy = "choose another staging folder, or free room there"
    exit = Exit.HOME


class RankMissingError(DaemonError):
    """A rank has not finished its part of a version: nothing is published without it."""

    exit = Exit.TIMEOUT
