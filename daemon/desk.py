"""Desk: what every maker of versions and transitions works with, and how what they signed goes out."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..protocol.codec.chunk import CodecOptions
from ..protocol.manifest import BlobRef
from ..protocol.messages import ObjectKind
from ..protocol.seal import seal_blob
from ..protocol.signed import Signable, object_digest, sign
from ..storage.catalog import Catalog
from ..storage.chunks import ChunkStore
from .fleet.fleet import Fleet

Signed = tuple[ObjectKind, bytes, bytes]
"""Kind, digest and signed bytes of an object."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What making versions takes."""

    fleet: Fleet
    store: ChunkStore
    catalog: Catalog
    codec: CodecOptions
    memory_limit: int
    threads: int

    def announce(self, objects: list[Signed]) -> None:
        """Make signed objects durable, then give them to the fleet."""
        self.catalog.put_objects(objects)
        for kind, _, data in objects:
            self.fleet.publish(kind, data)

    def keep_blob(self, data: bytes) -> BlobRef:
        """Seal a list under a fresh key and store its chunks, durably."""
        ref, pieces = seal_blob(data, secrets.token_bytes(32))
        for (name, _), piece in zip(ref.chunks, pieces, strict=True):
            self.store.put(name, piece, sync=True)
        return ref


def signed(kind: ObjectKind, value: Signable, key: Ed25519PrivateKey) -> Signed:
    """A signed object with its kind and digest."""
    data = sign(value, key)
    return kind, object_digest(data, type(value)), data
