"""Locking: a file that one process holds alone; the kernel lets go of it however the process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import DaemonError


@contextmanager
def alone(
    path: Path, *, unusable: Callable[[OSError], DaemonError], taken: Callable[[int], DaemonError]
) -> Iterator[int]:
    """Hold the lock file at `path`, made with mode 0600 where it is missing; gives its descriptor.

    Raises what `unusable` makes of an error when it cannot be opened, or what `taken` makes, with the descriptor at
    hand, when another process has it.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unusable(error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken(handle) from None
        yield handle
    finally:
        os.close(handle)
