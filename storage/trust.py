"""Whether the blocks of a parent still are the bytes that its version was made of: a bit may have flipped since.

A block's own digest says so. A head that made the version itself has also noted a check of each block, of the very
bytes that it digested: XXH3 with 128 bits, which no flipped bit gets past either, at a sixth of BLAKE3's time. Checks
are for the head's own memory; what others are told, and hold their bytes against, are digests alone.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import Final, Protocol

import xxhash

from ..protocol.layout import BLOCK_BYTES, Layout
from .mapped import Bytes, RegionTable
from .verify import DIGEST_BYTES, block_digest

CHECK_BYTES: Final = 16
Checker: Final = xxhash.xxh3_128
"""What a block's check is made with."""


class OldBytes(Protocol):
    """The version to compare with: a slot that is held, or a local base."""

    @property
    def layout(self) -> Layout:
        """Its layout."""

    @property
    def table(self) -> RegionTable:
        """Its regions."""

    def view(self, file: int, offset: int, size: int) -> Bytes:
        """Bytes of a file, not to be written to."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The version to compare with: its files, and what to hold them against.

    `checks`, of the pass that made the version, go before `digests`, its digest table; with neither nothing is checked.
    """

    files: OldBytes
    digests: bytes
    checks: bytes = b""


class Trust:
    """Looks at each block of a parent once. Thread-safe."""

    def __init__(self, parent: Parent) -> None:
        self.parent = parent
        counts = [-(-file.size // BLOCK_BYTES) for file in parent.files.layout.files]
        self._first_block = [0, *itertools.accumulate(counts)]
        self._known: dict[int, bool] = {}
        self._lock = threading.Lock()
        blocks = self._first_block[-1]
        self._checks = parent.checks if len(parent.checks) == blocks * CHECK_BYTES else b""

    @property
    def broken_blocks(self) -> int:
        """How many of the blocks that were looked at are not what they were."""
        with self._lock:
            return sum(not sound for sound in self._known.values())

    def holds(self, file: int, offset: int, size: int) -> bool:
        """Whether every block that these bytes of the parent lie in is what it was."""
        if not self._checks and not self.parent.digests:
            return True
        return all(
            self._block(file, index) for index in range(offset // BLOCK_BYTES, -(-(offset + size) // BLOCK_BYTES))
        )

    def _block(self, file: int, index: int) -> bool:
        number = self._first_block[file] + index
        sound = self._known.get(number)
        if sound is None:
            offset = index * BLOCK_BYTES
            size = min(BLOCK_BYTES, self.parent.files.layout.files[file].size - offset)
            sound = self._is_sound(number, self.parent.files.view(file, offset, size))
            with self._lock:
                self._known[number] = sound
        return sound

    def _is_sound(self, number: int, block: Bytes) -> bool:
        if self._checks:
            return Checker(block.data).digest() == self._checks[number * CHECK_BYTES : (number + 1) * CHECK_BYTES]
        return block_digest(block) == self.parent.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
