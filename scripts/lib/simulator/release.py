"""Release: a cluster's keys and the signed objects of each publish, as a real head would make them.

Contents do not exist: a chunk is a random name and a size. Only the index list is real, since every node opens it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import (
    PAGE_ENTRIES,
    BlobRef,
    Header,
    IndexPage,
    Manifest,
    ManifestPart,
    Membership,
    NodeRecord,
    Opening,
    OpeningPart,
    RosterSite,
    Route,
    StreamRecord,
    Subject,
    Transition,
    TransitionPart,
)
from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.seal import INDEX_ENTRY
from patchswarm.protocol.signed import Signable, object_digest, peek, sign

from .places import Patch

STREAM: Final = "sim"
PAGE_DELAY_S: Final = 0.05
_BLOCK_BYTES: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 4 * 1024 * 1024

Object = tuple[ObjectKind, bytes]
"""Kind and signed bytes."""


class Cluster:
    """The CA, the publisher and every node's identity, drawn from one seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ca = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32))
        self.publisher = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32))
        self.ca_key = self._ca.public_key().public_bytes_raw()

    def stream(self) -> Object:
        """The record that binds the stream to the publisher."""
        record = StreamRecord(STREAM, 1, self.publisher.public_key().public_bytes_raw())
        return ObjectKind.STREAM, sign(record, self._ca)

    def identity(self) -> Identity:
        """A new member."""
        key = Ed25519PrivateKey.from_private_bytes(self._rng.randbytes(32))
        public = key.public_key().public_bytes_raw()
        membership = sign(Membership(public, 2**40), self._ca)
        return Identity(key, public, membership, self._rng.randbytes(16))


@dataclass(frozen=True, slots=True)
class Identity:
    """A member's key and what the CA signed for it."""

    key: Ed25519PrivateKey
    public: bytes
    membership: bytes
    incarnation: bytes

    def record(self, serial: int, site: str, addresses: tuple[str, ...]) -> bytes:
        """Its signed node record."""
        record = NodeRecord(self.public, self.incarnation, serial, site, addresses, (), self.membership)
        return sign(record, self.key)


class Release:
    """One version after another, each with the patch that leads to it.

    The first is made after `base`, version 1, which every host holds (or nobody, when the patch is a full one).
    """

    def __init__(self, cluster: Cluster, patch: Patch, rng: random.Random, previous: Release | None = None) -> None:
        self._key = cluster.publisher
        self._rng = rng
        self._model_size = patch.model_size or 100 * patch.size
        self.patch = patch
        self.version: int = 2 if previous is None else previous.version + 1
        self.attempt = rng.randbytes(16)
        self._chunk_key = rng.randbytes(32)
        self.chunks = self._draw_chunks()
        self.layout: BlobRef = previous.layout if previous else self._blob(max(4096, self._model_size // 2**21))
        self.digests = self._blob(max(64, math.ceil(self._model_size / _BLOCK_BYTES) * 32))
        self.index = b"".join(INDEX_ENTRY.pack(name, size) for name, size in self.chunks)
        self._index_ref = self._blob(len(self.index), digest(self.index))
        self._base: list[Object] = []
        if previous is None:
            self._base, self._parent = self._manifest(1, b"")
        else:
            self._parent = previous.target
        self.source = b"" if patch.full and previous is None else self._parent
        self.target: bytes
        self._closing, self.target = self._manifest(self.version, self._parent)

    def base(self, node: bytes) -> list[Object]:
        """Version 1, and the transition in which `node` published it: this is not the fleet's first day."""
        first = peek(self._base[1][1], Manifest)
        part = TransitionPart(node, self._chunk_key, 0, 0, 0, self.layout, self.digests, self._index_ref)
        transition = Transition(STREAM, 1, 1, Route.FULL, b"", self._parent, first.attempt, (part,))
        record = self._announced(ObjectKind.TRANSITION, Subject.TRANSITION, 1, transition)
        return [*self._base, *record]

    @property
    def held(self) -> frozenset[bytes]:
        """Manifests of which every host has the bytes before this."""
        return frozenset({self.source} - {b""})

    @property
    def old_chunks(self) -> list[tuple[bytes, int]]:
        """Chunks that every host has: those of a layout that has not changed."""
        return list(self.layout.chunks) if self.source else []

    @property
    def list_chunks(self) -> list[tuple[bytes, int]]:
        """Chunks of the lists that travel."""
        layout = () if self.source else self.layout.chunks
        return [*layout, *self.digests.chunks, *self._index_ref.chunks]

    @property
    def sealed_bytes(self) -> int:
        """What every host has to receive."""
        return sum(size for _, size in (*self.chunks, *self.list_chunks))

    def _draw_chunks(self) -> list[tuple[bytes, int]]:
        mean = self.patch.size / self.patch.chunks
        sizes = [max(64, round(mean * self._rng.uniform(0.95, 1.05))) for _ in range(self.patch.chunks)]
        return [(self._rng.randbytes(32), size) for size in sizes]

    def _blob(self, size: int, root: bytes | None = None) -> BlobRef:
        pieces = [min(_PIECE_BYTES, size - at) for at in range(0, size, _PIECE_BYTES)]
        names = tuple((self._rng.randbytes(32), piece + 16) for piece in pieces)
        return BlobRef(root or self._rng.randbytes(32), size, self._rng.randbytes(32), names)

    # -- objects --------------------------------------------------------------------------------------------

    def _header(self, subject: Subject, version: int, name: bytes) -> Object:
        return ObjectKind.HEADER, sign(Header(subject, STREAM, 1, version, name), self._key)

    def _announced(self, kind: ObjectKind, subject: Subject, version: int, value: Signable) -> list[Object]:
        data = sign(value, self._key)
        return [self._header(subject, version, object_digest(data, type(value))), (kind, data)]

    def _manifest(self, version: int, parent: bytes) -> tuple[list[Object], bytes]:
        """Header and manifest of a version, and its digest."""
        parts = (ManifestPart(self.layout.root, self.digests.root),)
        attempt = self.attempt if version == self.version else self._rng.randbytes(16)
        manifest = Manifest(STREAM, 1, version, parent, attempt, f"step {version}", self._model_size, parts)
        objects = self._announced(ObjectKind.MANIFEST, Subject.MANIFEST, version, manifest)
        return objects, object_digest(objects[1][1], Manifest)

    def opening(self, node: bytes, roster: tuple[RosterSite, ...]) -> list[Object]:
        """What goes out first."""
        parts = (OpeningPart(node, self._chunk_key, 0, self.layout),)
        opening = Opening(STREAM, 1, self.version, self.source, self.attempt, self._model_size, parts, roster)
        return self._announced(ObjectKind.OPENING, Subject.OPENING, self.version, opening)

    def pages(self) -> Iterator[tuple[float, bytes, list[bytes]]]:
        """(seconds after the start, signed page, names in it): a page when it is full, or after 50 ms."""
        made_s, sent_s, first = 0.0, 0.0, 0
        for at, (_, size) in enumerate(self.chunks):
            made_s += size / self.patch.encode_rate
            if at + 1 - first == PAGE_ENTRIES or made_s - sent_s >= PAGE_DELAY_S or at + 1 == len(self.chunks):
                batch = self.chunks[first : at + 1]
                entries = b"".join(INDEX_ENTRY.pack(name, size) for name, size in batch)
                page = IndexPage(STREAM, self.attempt, 0, first, entries)
                yield made_s, sign(page, self._key), [name for name, _ in batch]
                first, sent_s = at + 1, made_s

    def closing(self, node: bytes) -> list[Object]:
        """Manifest and transition: the version exists."""
        part = TransitionPart(
            node,
            self._chunk_key,
            0,
            len(self.chunks),
            sum(size for _, size in self.chunks),
            self.layout,
            self.digests,
            self._index_ref,
        )
        kind = Route.STEP if self.source else Route.FULL
        transition = Transition(STREAM, 1, self.version, kind, self.source, self.target, self.attempt, (part,))
        record = self._announced(ObjectKind.TRANSITION, Subject.TRANSITION, self.version, transition)
        return [self._closing[0], record[0], self._closing[1], record[1]]
