"""Memory: how the C library's allocator is to treat what the daemon frees."""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

KEPT_BYTES: Final = 16 * 1024 * 1024
"""So much that is free may stay with each of the allocator's arenas."""

LARGE_BYTES: Final = 8 * 1024 * 1024
"""What is as large as this comes from the system each time and goes back to it: twice the largest chunk."""


def keep_freed() -> bool:
    """Let buffers of chunks be allocated where others were freed. Returns whether the C library can do it: glibc can.

    It gives all beyond a few MiB back to the system otherwise, and takes it again for the next chunk, page by page,
    which costs as much as sealing the chunk does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
