"""What a publisher signs for made-up versions: stream record, openings, pages, manifests, transitions and their chunks.

The chunks hold random bytes: nobody at this level opens them. Lists are real blobs, sealed and named.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import (
    PAGE_ENTRIES,
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
from patchswarm.protocol.seal import INDEX_ENTRY, seal_blob
from patchswarm.protocol.signed import object_digest, sign

FAR_FUTURE = 2**40
Signed = tuple[ObjectKind, bytes]


def key_of(name: object) -> Ed25519PrivateKey:
    """The same private key for the same name."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(str(name).encode()).digest())


def raw(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def noise(name: object, size: int) -> bytes:
    """The same bytes for the same name."""
    return hashlib.shake_128(str(name).encode()).digest(size)


def membership(ca: Ed25519PrivateKey, node_key: bytes) -> bytes:
    return sign(Membership(node_key, FAR_FUTURE), ca)


def node_record(
    ca: Ed25519PrivateKey,
    key: Ed25519PrivateKey,
    *,
    site: str = "a",
    serial: int = 1,
    addresses: tuple[str, ...] = (),
    incarnation: bytes = bytes(16),
    heads=(),
    member: bytes | None = None,
) -> bytes:
    """A signed NodeRecord."""
    member = membership(ca, raw(key)) if member is None else member
    return sign(NodeRecord(raw(key), incarnation, serial, site, addresses, tuple(heads), member), key)


def header(value: Opening | Manifest | Transition, key: Ed25519PrivateKey) -> Signed:
    """The signed header that announces `value`."""
    subject = {Opening: Subject.OPENING, Manifest: Subject.MANIFEST, Transition: Subject.TRANSITION}[type(value)]
    name = object_digest(sign(value, key), type(value))
    return ObjectKind.HEADER, sign(Header(subject, value.stream, value.epoch, value.version, name), key)


def body(value: Opening | Manifest | Transition, key: Ed25519PrivateKey) -> Signed:
    kind = {Opening: ObjectKind.OPENING, Manifest: ObjectKind.MANIFEST, Transition: ObjectKind.TRANSITION}[type(value)]
    return kind, sign(value, key)


@dataclass
class Version:
    """One version in all its signed parts. `chunks` and `lists` are sealed bytes by name."""

    opening: Opening
    manifest: Manifest
    transition: Transition
    chunks: dict[bytes, bytes]
    lists: dict[bytes, bytes]
    key: Ed25519PrivateKey
    pages: list[bytes] = field(default_factory=list)

    @property
    def digest(self) -> bytes:
        """The manifest's digest."""
        return object_digest(sign(self.manifest, self.key), Manifest)

    @property
    def attempt(self) -> bytes:
        return self.opening.attempt

    def begin(self) -> list[Signed]:
        """What is said before anything is encoded."""
        return [header(self.opening, self.key), body(self.opening, self.key)]

    def end(self) -> list[Signed]:
        """What makes it a version."""
        values = (self.manifest, self.transition)
        return [header(each, self.key) for each in values] + [body(each, self.key) for each in values]


@dataclass
class Publisher:
    """Makes versions of one stream, each a step from the one before."""

    stream: str = "qwen"
    epoch: int = 1
    seed: int = 0
    ca: Ed25519PrivateKey = field(default_factory=lambda: key_of("ca"))
    made: int = 0

    @property
    def key(self) -> Ed25519PrivateKey:
        return key_of(f"publisher {self.epoch}")

    def record(self) -> Signed:
        return ObjectKind.STREAM, sign(StreamRecord(self.stream, self.epoch, raw(self.key)), self.ca)

    def version(
        self,
        number: int,
        *,
        node: bytes,
        source: bytes = b"",
        chunks: int = 10,
        size: int = 40_000,
        roster: tuple[RosterSite, ...] = (),
        kind: Route | None = None,
        page: int = PAGE_ENTRIES,
    ) -> Version:
        """A version of `chunks` chunks of `size` bytes, seeded by `node`; another attempt at every call."""
        self.made += 1
        tag = f"{self.stream} {self.epoch} {number} {self.seed} {self.made}"
        attempt, chunk_key = noise(f"attempt {tag}", 16), noise(f"key {tag}", 32)
        sealed = [noise(f"chunk {ordinal} {tag}", size) for ordinal in range(chunks)]
        entries = [INDEX_ENTRY.pack(digest(each), len(each)) for each in sealed]
        layout, layout_pieces = seal_blob(noise(f"layout {tag}", 100), chunk_key)
        table, table_pieces = seal_blob(noise(f"digests {tag}", 320), chunk_key)
        index, index_pieces = seal_blob(b"".join(entries), chunk_key)
        part = TransitionPart(node, chunk_key, 0, chunks, chunks * size, layout, table, index)
        opening_part = OpeningPart(node, chunk_key, 0, layout)
        opening = Opening(
            self.stream, self.epoch, number, source, attempt, 100 * chunks * size, (opening_part,), roster
        )
        manifest = Manifest(
            self.stream,
            self.epoch,
            number,
            source,
            attempt,
            f"step {number}",
            opening.size,
            (ManifestPart(layout.root, table.root),),
        )
        target = object_digest(sign(manifest, self.key), Manifest)
        kind = kind if kind is not None else (Route.STEP if source else Route.FULL)
        transition = Transition(self.stream, self.epoch, number, kind, source, target, attempt, (part,))
        pages = [
            sign(IndexPage(self.stream, attempt, 0, first, b"".join(entries[first : first + page])), self.key)
            for first in range(0, chunks, page)
        ]
        lists = {digest(piece): piece for piece in [*layout_pieces, *table_pieces, *index_pieces]}
        return Version(opening, manifest, transition, {digest(each): each for each in sealed}, lists, self.key, pages)
