"""Compared: a set of signed objects that two nodes hold against each other bucket by bucket.

256 buckets by the first byte of an object's digest, each with the XOR of its digests' first 8 bytes: agreement costs
one digest, and a difference only the buckets that differ.
"""

from __future__ import annotations

from typing import Final

from .ids import digest
from .messages import ObjectKind

_BUCKETS: Final = 256
_SUM_BYTES: Final = 8


class Compared:
    """The set. Who may be in it, its subclass decides."""

    def __init__(self) -> None:
        self._set: dict[bytes, tuple[ObjectKind, bytes]] = {}
        self._buckets: list[set[bytes]] = [set() for _ in range(_BUCKETS)]
        self._sums = [0] * _BUCKETS
        self._summary = b""  # empty when the set has changed since

    def sums(self) -> bytes:
        """XOR of the first 8 bytes of the digests in each of the 256 buckets."""
        return b"".join(value.to_bytes(_SUM_BYTES, "big") for value in self._sums)

    def summary(self) -> bytes:
        """Digest of the whole set: two nodes with equal summaries hold the same objects."""
        if not self._summary:
            self._summary = digest(self.sums())
        return self._summary

    def differing(self, sums: bytes) -> list[int]:
        """Buckets whose sum is not the one in `sums`."""
        mine = self.sums()
        step = _SUM_BYTES
        return [at for at in range(_BUCKETS) if sums[at * step : (at + 1) * step] != mine[at * step : (at + 1) * step]]

    def bucket(self, number: int) -> set[bytes]:
        """Digests of the objects in one bucket."""
        return self._buckets[number]

    def _add(self, name: bytes, kind: ObjectKind, data: bytes) -> None:
        self._set[name] = (kind, data)
        self._buckets[name[0]].add(name)
        self._flip(name)

    def _remove(self, name: bytes) -> None:
        del self._set[name]
        self._buckets[name[0]].discard(name)
        self._flip(name)

    def _flip(self, name: bytes) -> None:
        self._summary = b""
        self._sums[name[0]] ^= int.from_bytes(name[:_SUM_BYTES], "big")
