"""Holding files against the digest table: BLAKE3 of each 4 MiB block, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Final

import numpy as np
from blake3 import blake3

from ..protocol.ids import digest
from ..protocol.layout import Layout
from .errors import StorageError
from .mapped import Bytes
from .rebuild import ByteSource

DIGEST_BYTES: Final = 32
RUN_BLOCKS: Final = 16  # for one thread in one go

_LEAD_RUNS: Final = 64
PIECE_BYTES: Final = 1 << 19
"""What is hashed in one go: a core's own cache holds it."""

_LINE_BYTES: Final = 64

Block = tuple[int, int, int]
"""File, offset, size."""

Hash = Callable[[Sequence[Block]], list[bytes]]
Spread = Callable[[Hash, Iterable[Sequence[Block]]], Iterable[list[bytes]]]
"""`map`, over threads or not."""


def block_digest(data: Bytes) -> bytes:
    """BLAKE3 of contiguous uint8 that come from memory: 32 bytes.

    BLAKE3 reads sixteen places a kilobyte apart at once, which no processor's prefetching follows. Each piece is looked
    through from one end to the other first, and is in the cache then.
    """
    hasher = blake3()
    for at in range(0, len(data), PIECE_BYTES):
        piece = data[at : at + PIECE_BYTES]
        np.count_nonzero(piece[::_LINE_BYTES])
        hasher.update(piece.data)
    return hasher.digest()


@contextmanager
def hashers(threads: int) -> Iterator[Spread]:
    """Threads to hash in; the caller's own when it is one, because handing over costs some percent."""
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="hash") as pool:
        yield pool.map


def block_digests(source: ByteSource, threads: int) -> bytes:
    """The digest table of what `source` holds: 32 bytes for each block, in the order of `Layout.blocks`."""
    with hashers(threads) as spread:
        return b"".join(_digests(source, source.layout.blocks(), spread))


def bad_blocks(source: ByteSource, layout: Layout, digests: bytes, threads: int) -> list[int]:
    """Numbers of the blocks of `layout` in which `source` differs from a digest table.

    `source` has the same layout, or one with the same file numbers. Raises StorageError for a table of wrong length.
    """
    blocks = checked_blocks(layout, digests)
    with hashers(threads) as spread:
        return compare_blocks(source, blocks, digests, 0, len(blocks), spread)


def checked_blocks(layout: Layout, digests: bytes) -> list[Block]:
    """All blocks of a layout. Raises StorageError for a digest table of another length."""
    blocks = list(layout.blocks())
    if len(digests) != len(blocks) * DIGEST_BYTES:
        raise StorageError(f"digest table of {len(digests)} bytes does not fit a version of {len(blocks)} blocks")
    return blocks


def compare_blocks(
    source: ByteSource, blocks: Sequence[Block], digests: bytes, first: int, last: int, spread: Spread
) -> list[int]:
    """Numbers of the blocks from `first` up to `last` in which `source` differs from a digest table."""
    found = _digests(source, iter(blocks[first:last]), spread)
    return [
        number for number, each in enumerate(found, first) if each != digests[number * DIGEST_BYTES :][:DIGEST_BYTES]
    ]


def good_block(name: bytes, number: int, sources: Iterable[Callable[[int], bytes | None]]) -> bytes | None:
    """Block `number` from the first source whose bytes hash to `name`, or None."""
    for source in sources:
        data = source(number)
        if data is not None and digest(data) == name:
            return data
    return None


def _digests(source: ByteSource, blocks: Iterator[Block], spread: Spread) -> Iterator[bytes]:
    def hash_run(run: Sequence[Block]) -> list[bytes]:
        # One block at a time: foreign sources read each into memory of its own.
        return [block_digest(source.read(*block)) for block in run]

    while runs := [run for _ in range(_LEAD_RUNS) if (run := list(islice(blocks, RUN_BLOCKS)))]:
        for found in spread(hash_run, runs):
            yield from found
