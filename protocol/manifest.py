"""The signed objects: what a publisher, the CA and each node say about themselves and about versions.

Every object is small (at most one control frame), signed once, and never changed afterwards. Long lists
(layout, digest table, chunk index) stand outside as blobs: sealed chunks named by a `BlobRef`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, ClassVar, Final

import msgspec

from .ids import Attempt, ChunkSize, Counter, Digest, Key, MaybeDigest, Ordinal, StreamName

MAX_LABEL: Final = 256
PAGE_ENTRIES: Final = 64
"""Most chunks that one index page lists; the head flushes a page at that many, or after 50 ms."""

SERIAL_BITS: Final = 24
"""Low bits of a node record's serial that only count."""

Label = Annotated[str, msgspec.Meta(max_length=MAX_LABEL)]
Site = Annotated[str, msgspec.Meta(max_length=64)]
Address = Annotated[str, msgspec.Meta(max_length=128)]


class StreamRecord(msgspec.Struct, frozen=True, array_like=True):
    """Binds a stream's name to the key that may publish under it. Signed by the CA; a higher epoch replaces it."""

    domain: ClassVar[bytes] = b"patchswarm stream 1\0"
    stream: StreamName
    epoch: Counter
    publisher: Key


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """Says that a node key belongs to the cluster until `not_after` (Unix seconds). Signed by the CA."""

    domain: ClassVar[bytes] = b"patchswarm member 1\0"
    node_key: Key
    not_after: Counter


class Issuer(msgspec.Struct, frozen=True, array_like=True):
    """Lets another key speak for the CA until `not_after`: it enrols, renews and revokes nodes. Signed by the CA.

    Stream records it may not sign.
    """

    domain: ClassVar[bytes] = b"patchswarm issuer 1\0"
    key: Key
    not_after: Counter


IssuerBytes = Annotated[bytes, msgspec.Meta(max_length=256)]
"""A signed Issuer."""


class IssuedMembership(msgspec.Struct, frozen=True, array_like=True):
    """A Membership that is signed by the key in `issuer`."""

    domain: ClassVar[bytes] = b"patchswarm member 2\0"
    node_key: Key
    not_after: Counter
    issuer: IssuerBytes


class Revocation(msgspec.Struct, frozen=True, array_like=True):
    """Says that a node's key, or an issuing key, counts for nothing any more. For ever: there is no way back in.

    `key_id` is the BLAKE3 of the raw public key, a node's id. Signed by the CA, or by the key in `issuer`.
    """

    domain: ClassVar[bytes] = b"patchswarm revoke 1\0"
    key_id: Digest
    at: Counter
    """Unix seconds."""
    issuer: IssuerBytes


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The newest version a node has committed in one stream."""

    stream: StreamName
    epoch: Counter
    version: Counter
    manifest: Digest


class NodeRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of itself. Signed by the node's own key; only the node itself ever raises `serial`.

    `incarnation` is drawn afresh at every start of the daemon: two live records of one node with different
    incarnations mean a copied home. `addresses` is empty for a node that cannot be dialled (behind NAT).
    """

    domain: ClassVar[bytes] = b"patchswarm node 1\0"
    node_key: Key
    incarnation: Attempt
    serial: Counter
    """From bit SERIAL_BITS on the Unix second of signing, or a later one that an earlier record named."""
    site: Site
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=8)]
    heads: Annotated[tuple[Head, ...], msgspec.Meta(max_length=64)]
    membership: Annotated[bytes, msgspec.Meta(max_length=512)]


class BlobRef(msgspec.Struct, frozen=True, array_like=True):
    """A long list outside a signed object: `size` bytes with BLAKE3 `root`, zstd, sealed into named chunks.

    `key` opens them (AES-256-GCM, nonce = number of the chunk). The same blob is referred to again,
    name for name, by later versions whose list did not change.
    """

    root: Digest
    size: Counter
    key: Key
    chunks: Annotated[tuple[tuple[Digest, ChunkSize], ...], msgspec.Meta(max_length=1024)]


class OpeningPart(msgspec.Struct, frozen=True, array_like=True):
    """One publisher's share of a version in the making; its chunks are numbered from `first`."""

    node: Digest
    key: Key
    first: Ordinal
    layout: BlobRef


class RosterSite(msgspec.Struct, frozen=True, array_like=True):
    """A site that does not hold the version yet: its share of the owners, and the nodes that fetch for it."""

    site: Site
    weight: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    borders: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=16)]


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """First word of a transition in the making. `source` is empty when it starts from nothing."""

    domain: ClassVar[bytes] = b"patchswarm opening 1\0"
    stream: StreamName
    epoch: Counter
    version: Counter
    source: MaybeDigest
    attempt: Attempt
    size: Counter
    """Bytes of the whole checkpoint: for progress and for reserving space."""
    parts: Annotated[tuple[OpeningPart, ...], msgspec.Meta(min_length=1, max_length=64)]
    roster: Annotated[tuple[RosterSite, ...], msgspec.Meta(max_length=128)]


class IndexPage(msgspec.Struct, frozen=True, array_like=True):
    """Names and sizes of the chunks `first`, `first` + 1, … of an attempt, in the order they were sealed."""

    domain: ClassVar[bytes] = b"patchswarm page 1\0"
    stream: StreamName
    attempt: Attempt
    part: Ordinal
    first: Ordinal
    entries: Annotated[bytes, msgspec.Meta(min_length=36, max_length=36 * PAGE_ENTRIES)]
    """`INDEX_ENTRY` records, as in the index blob."""


class ManifestPart(msgspec.Struct, frozen=True, array_like=True):
    """Roots of what one publisher contributed: BLAKE3 of the encoded layout and of the digest table."""

    layout: Digest
    digests: Digest


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """A version's content, and nothing else. Its digest is the version's identity."""

    domain: ClassVar[bytes] = b"patchswarm manifest 1\0"
    stream: StreamName
    epoch: Counter
    version: Counter
    parent: MaybeDigest
    attempt: Attempt
    label: Label
    size: Counter
    parts: Annotated[tuple[ManifestPart, ...], msgspec.Meta(min_length=1, max_length=64)]


class Route(IntEnum):
    """Kinds of transition."""

    STEP = 0  # from the version before
    SKIP = 1  # from an older version
    FULL = 2  # from nothing
    BASE = 3  # from the same bytes, which the host has already: carries the lists, no chunks


class TransitionPart(msgspec.Struct, frozen=True, array_like=True):
    """One publisher's share of a transition: where its chunks start, how many, and the three lists."""

    node: Digest
    key: Key
    first: Ordinal
    count: Ordinal
    size: Counter
    """Sealed bytes of all its chunks."""
    layout: BlobRef
    digests: BlobRef
    index: BlobRef

    @property
    def blobs(self) -> tuple[BlobRef, BlobRef, BlobRef]:
        """Its three lists."""
        return self.layout, self.digests, self.index


class Transition(msgspec.Struct, frozen=True, array_like=True):
    """How to get from one manifest (or from nothing) to another. Can be added at any later time."""

    domain: ClassVar[bytes] = b"patchswarm transition 1\0"
    stream: StreamName
    epoch: Counter
    version: Counter
    kind: Route
    source: MaybeDigest
    target: Digest
    attempt: Attempt
    parts: Annotated[tuple[TransitionPart, ...], msgspec.Meta(min_length=1, max_length=64)]


class MirrorRecord(msgspec.Struct, frozen=True, array_like=True):
    """Where in a mirror a stream's chunks lie, and the key that what is signed of it is sealed with there.

    Signed by the publisher, and told to members only: whoever has it can read the weights from a mirror.
    """

    domain: ClassVar[bytes] = b"patchswarm mirror 1\0"
    stream: StreamName
    epoch: Counter
    serial: Counter
    """Keys that were revoked in the cluster when this was signed: with each that is, the mirror gets another key."""
    place: Attempt
    key: Key


class Beacon(msgspec.Struct, frozen=True, array_like=True):
    """Says, again and again, which version is the newest: without it, a freeze could not be told from a quiet trainer.

    Signed by the publisher. Only the latest counts, and only in the stream's newest epoch.
    """

    domain: ClassVar[bytes] = b"patchswarm beacon 1\0"
    stream: StreamName
    epoch: Counter
    version: Counter
    manifest: Digest
    at: Counter
    """Unix seconds."""


class Subject(IntEnum):
    """What a header announces."""

    OPENING = 0
    MANIFEST = 1
    TRANSITION = 2


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Announces one object by its digest: at most 256 bytes signed, pushed on receipt; the body is pulled once."""

    domain: ClassVar[bytes] = b"patchswarm header 1\0"
    subject: Subject
    stream: StreamName
    epoch: Counter
    version: Counter
    digest: Digest
