"""Holding files against the digest table: BLAKE3 of each 4 MiB block, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

from ..protocol.ids import digest
from ..protocol.layout import Layout
from .errors import StorageError
from .rebuild import ByteSource

DIGEST_BYTES: Final = 32
_RUN_BLOCKS: Final = 16  # for one thread in one go: handing over each block costs some percent of hashing it


def block_digests(source: ByteSource, threads: int) -> bytes:
    """The digest table of what `source` holds: 32 bytes for each block, in the order of `Layout.blocks`."""
    return b"".join(_digests(source, source.layout, threads))


def bad_blocks(source: ByteSource, layout: Layout, digests: bytes, threads: int) -> list[int]:
    """Numbers of the blocks of `layout` in which `source` differs from a digest table.

    `source` has the same layout, or one with the same file numbers. Raises StorageError for a table of wrong length.
    """
    count = sum(1 for _ in layout.blocks())
    if len(digests) != count * DIGEST_BYTES:
        raise StorageError(f"digest table of {len(digests)} bytes does not fit a version of {count} blocks")
    return [
        number
        for number, found in enumerate(_digests(source, layout, threads))
        if found != digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
    ]


def good_block(name: bytes, number: int, sources: Iterable[Callable[[int], bytes | None]]) -> bytes | None:
    """Block `number` from the first source whose bytes hash to `name`, or None."""
    for source in sources:
        data = source(number)
        if data is not None and digest(data) == name:
            return data
    return None


def _digests(source: ByteSource, layout: Layout, threads: int) -> Iterator[bytes]:
    def hash_run(run: Sequence[tuple[int, int, int]]) -> list[bytes]:
        # One block at a time: foreign sources read each into memory of its own.
        return [digest(source.read(*block).data) for block in run]

    blocks = layout.blocks()
    with ThreadPoolExecutor(threads) as pool:
        while runs := [run for _ in range(4 * threads) if (run := list(islice(blocks, _RUN_BLOCKS)))]:
            for found in pool.map(hash_run, runs):
                yield from found
