"""Messages of the control connection: one tagged MessagePack array per frame.

Four families. Gossip moves signed objects: headers are pushed, bodies pulled, digests compared in turns.
Swarm moves chunks: have, request, reject; the chunks themselves come over lanes, or in pieces here when a lane
failed. Blocks are plain parts of a version's files, for repairs and for joiners whom no transition leads in.
Link keeps the connection itself: hello, ping, lanes, goodbye.

Every request is answered exactly once: by the chunk (on a lane, or as `Piece`s) or by a `Reject`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Final

import msgspec

from .errors import MessageError
from .framing import MAX_FRAME_BYTES
from .ids import Attempt, ChunkSize, Digest, Key, Ordinal
from .layout import BLOCK_BYTES
from .packing import pack, unpack
from .signed import MAX_SIGNED_BYTES, SIGNATURE_BYTES

PROTOCOL_VERSION: Final = 1
META_ORDINAL: Final = 2**31
"""Chunks of a transition's blobs are numbered from here in HAVE and REQUEST: layout, then digests, then index."""

RELEASED: Final = 255
"""Rank of a CLAIM that takes an earlier one back."""

SPARE: Final = 254
"""Rank of a CLAIM that others of the site may make instead, who have nothing to do: these chunks wait long."""

PIECE_BYTES: Final = 48 * 1024

SignedBytes = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES + 1, max_length=MAX_SIGNED_BYTES)]
HeaderBytes = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES + 1, max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=256)]
Ranges = Annotated[tuple[tuple[Ordinal, Ordinal], ...], msgspec.Meta(max_length=4096)]
"""Ordinal ranges as (first, last), both included, rising, not touching."""


class Reason(IntEnum):
    """Why a request is rejected."""

    MISSING = 0  # the chunk is not here
    BUSY = 1  # too much is queued for you: ask later, or elsewhere
    STOPPING = 2


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """First message in both directions: the sender's signed NodeRecord."""

    protocol: int
    record: SignedBytes


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Answered at once by Pong with the same `stamp` (the sender's own clock, in µs)."""

    stamp: Annotated[int, msgspec.Meta(ge=0)]


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Answer to Ping."""

    stamp: Annotated[int, msgspec.Meta(ge=0)]


class Bye(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Last message before closing on purpose."""

    reason: Text


class Lane(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """From the side that accepted the control connection: dial a lane with this one-time id and this key."""

    lane: Attempt
    key: Key


class Widen(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """From the side that dialled: offer one more lane, those there are do not suffice."""


class Renew(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Asks a node that issues certificates for a new one for the sender; one that does not issue says nothing."""


class Renewed(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Answer to Renew: as in `join.Welcome`."""

    certificate: Annotated[bytes, msgspec.Meta(min_length=1, max_length=2048)]
    membership: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES + 1, max_length=512)]


class Summary(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Anti-entropy, some links each second: a digest of everything gossiped that the sender holds."""

    digest: Digest


class Buckets(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Answer to a Summary that differs: 8 bytes for each of 256 buckets (first byte of an object's digest)."""

    sums: Annotated[bytes, msgspec.Meta(min_length=256 * 8, max_length=256 * 8)]


class Inventory(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Digests of the objects held in one bucket that differs.

    The receiver pulls what it lacks and pushes what the sender lacks.
    """

    bucket: Annotated[int, msgspec.Meta(ge=0, le=255)]
    digests: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=1800)]


class Headers(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Signed Headers, pushed to every peer that has not sent them."""

    items: Annotated[tuple[HeaderBytes, ...], msgspec.Meta(max_length=256)]


class Pull(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Asks for the signed objects with these digests."""

    digests: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=1024)]


class ObjectKind(IntEnum):
    """Kinds of signed object that gossip moves."""

    STREAM = 0
    NODE = 1
    HEADER = 2
    OPENING = 3
    MANIFEST = 4
    TRANSITION = 5
    REVOCATION = 6
    MIRROR = 7
    BEACON = 8


class Object(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """One signed object."""

    kind: ObjectKind
    data: SignedBytes


class Page(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """A signed IndexPage, pushed while the head encodes."""

    data: SignedBytes


class Lossy(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The path between the sender's site and another loses packets that no queue explains.

    Said to the hosts at both ends, whose connections meet on the same links: they bear loss from now on.
    """


class Have(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The sender has these chunks of the transition made under `attempt`."""

    attempt: Attempt
    ranges: Ranges


class Request(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Asks for one chunk. `request` numbers it on this connection; `secure` wants it in pieces over TLS."""

    request: Ordinal
    name: Digest
    secure: bool = False


class Reject(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """The chunk will not come."""

    request: Ordinal
    reason: Reason
    holders: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=16)] = ()


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """The chunk is no longer wanted; answered by the chunk if it is under way, else by Reject."""

    request: Ordinal


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Part of a chunk over TLS, when no lane works: bytes from `offset` of `size`."""

    request: Ordinal
    offset: Ordinal
    size: ChunkSize
    data: Annotated[bytes, msgspec.Meta(min_length=1, max_length=PIECE_BYTES)]


class Claim(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """The sender fetches these chunks into its site, as the owner of this rank: no one else need.

    Said to the sender's site, and across sites to the border that would have taken them from the seed.
    """

    attempt: Attempt
    rank: Annotated[int, msgspec.Meta(ge=0, le=255)]
    ranges: Ranges


class BlockRequest(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Asks for one 4 MiB block of a version that the receiver holds in a slot. Numbered like Request, apart from it."""

    request: Ordinal
    manifest: Digest
    block: Ordinal


class BlockReject(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """The block will not come: MISSING when the version is not held here, or not clean."""

    request: Ordinal
    reason: Reason


class BlockPiece(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Part of a block, which only ever travels over TLS: bytes from `offset` of `size`."""

    request: Ordinal
    offset: Ordinal
    size: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES)]
    data: Annotated[bytes, msgspec.Meta(min_length=1, max_length=PIECE_BYTES)]


Message = (
    Hello
    | Ping
    | Pong
    | Bye
    | Lane
    | Widen
    | Renew
    | Renewed
    | Summary
    | Buckets
    | Inventory
    | Headers
    | Pull
    | Object
    | Page
    | Lossy
    | Have
    | Request
    | Reject
    | Cancel
    | Piece
    | Claim
    | BlockRequest
    | BlockReject
    | BlockPiece
)


def encode_message(message: Message) -> bytes:
    """Frame body of a message."""
    return pack(message)


def decode_message(body: bytes) -> Message:
    """The message in a frame body. Raises MessageError."""
    message: Any = unpack(body, Message, limit=MAX_FRAME_BYTES)
    return check_message(message)


def check_message(message: Message) -> Message:
    """Check what types cannot: ranges rise and do not touch, a piece lies within its chunk."""
    if isinstance(message, Have | Claim):
        previous = -2
        for first, last in message.ranges:
            if first <= previous + 1 or last < first:
                raise MessageError(f"ordinal ranges do not rise: {first}..{last} after {previous}")
            previous = last
    elif isinstance(message, Piece | BlockPiece) and message.offset + len(message.data) > message.size:
        end = message.offset + len(message.data)
        raise MessageError(f"piece ends at {end}, beyond its chunk of {message.size} bytes")
    return message
