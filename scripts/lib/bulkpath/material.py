"""Material: the chunks that are sent, and the key they are sealed under. The same in every process."""

from __future__ import annotations

import random

from patchswarm.protocol.manifest import BlobRef, Opening, OpeningPart
from patchswarm.protocol.seal import ChunkSealer

DISTINCT = 64
"""Different chunks; they go round."""


def contents(number: int, size: int) -> bytes:
    """Contents of chunk `number` before sealing."""
    return random.Random(number).randbytes(size)  # noqa: S311 -- the same bytes in every process


def sealer() -> ChunkSealer:
    """Seals and opens the chunks."""
    layout = BlobRef(bytes(32), 1, bytes(32), ((bytes(32), 17),))
    return ChunkSealer(
        Opening("bench", 1, 1, b"", bytes(16), 1, (OpeningPart(bytes(32), bytes(32), 0, layout),), ()), 0
    )
