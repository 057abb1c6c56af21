"""Joining: the one-line token, and the four messages by which a new node gets its certificate.

    joiner                                     issuer (a node that holds the CA's key)
      TLS, server not verified     ────────►
                                   ◄────────   Authority: CA certificate
      checks it against the token, closes
      TLS, server verified: under that CA, and the very node that the token names
                                   ◄────────   Authority: CA certificate, fresh challenge
      Enrol: invite, secret, proof ────────►
                                   ◄────────   Welcome, or Refusal
                                   ◄────────   after a Welcome: Introductions, until the end

The secret therefore only ever reaches the node that made it. The proof is a signature by the joiner's new key
over the challenge and both ends, so nobody gets a certificate for a key that is not theirs.
"""

from __future__ import annotations

import base64
import binascii
from enum import IntEnum
from typing import Annotated, ClassVar, Final

import msgspec

from .errors import MessageError, ProtocolError
from .ids import Digest, Key, digest
from .manifest import Address
from .messages import ObjectKind
from .packing import pack, unpack, unpack_as

TOKEN_VERSION: Final = 1
MAX_INTRODUCTIONS: Final = 128
MAX_JOIN_BYTES: Final = 4096
"""Longest message of this exchange; it is spoken with strangers."""

_TOKEN_PREFIX: Final = "patchswarm"  # noqa: S105 -- what every token begins with
_CHECKSUM_BYTES: Final = 4

Certificate = Annotated[bytes, msgspec.Meta(min_length=1, max_length=2048)]
"""An X.509 certificate, DER; behind a node's own that of the issuing key that signed it, if the CA did not."""

InviteId = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


class TokenError(ProtocolError):
    """A text that is no token, or one that was damaged on its way."""


class Token(msgspec.Struct, frozen=True, array_like=True):
    """What a joiner must know: whom to ask, how to know them, and the secret that lets it in."""

    authority: Digest
    """Digest of the CA's certificate."""
    issuer: Digest
    """Node id of the node that made the invite and will answer."""
    invite: InviteId
    secret: Key
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1, max_length=8)]


def encode_token(token: Token) -> str:
    """One line of letters, digits, '-' and '_': "patchswarm1_" and base64url of token and checksum."""
    body = pack(token)
    return f"{_TOKEN_PREFIX}{TOKEN_VERSION}_{_text(body + _checksum(body))}"


def decode_token(text: str) -> Token:
    """The token in `text`; white space is ignored, for lines that were wrapped on their way.

    Raises TokenError saying whether it is no token at all, another version's, or damaged.
    """
    head, mark, body = "".join(text.split()).partition("_")
    number = head.removeprefix(_TOKEN_PREFIX)
    if not mark or not head.startswith(_TOKEN_PREFIX) or not number.isdecimal():
        raise TokenError(
            "this is not an invite token; give the line that starts with 'patchswarm1_', as the head's invite prints it"
        )
    if number != str(TOKEN_VERSION):
        raise TokenError(
            f"the token is of version {number}, this patchswarm reads version {TOKEN_VERSION}: "
            "run the same one at both ends"
        )
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    whole = len(data) > _CHECKSUM_BYTES and _checksum(data[:-_CHECKSUM_BYTES]) == data[-_CHECKSUM_BYTES:]
    if not whole or _text(data) != body:
        raise TokenError("the token is damaged: a part is missing or changed; copy the whole line again")
    try:
        return unpack_as(data[:-_CHECKSUM_BYTES], Token, limit=MAX_JOIN_BYTES)
    except MessageError as error:
        raise TokenError(f"the token is malformed: {error}; make a new one on the head") from None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _checksum(body: bytes) -> bytes:
    return digest(b"patchswarm token 1\0" + body)[:_CHECKSUM_BYTES]


class Reason(IntEnum):
    """Why a joiner is refused. `UNKNOWN` also covers a wrong secret: a stranger learns nothing from the difference."""

    MALFORMED = 0
    NOT_ISSUER = 1
    UNKNOWN = 2
    EXPIRED = 3
    USED = 4


class Authority(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """First word of the issuer."""

    certificate: Certificate
    challenge: Key


class Enrol(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The joiner's request: the invite it spends, and its signed `Possession`."""

    invite: InviteId
    secret: Key
    proof: Annotated[bytes, msgspec.Meta(min_length=65, max_length=512)]


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The joiner is a member: its certificate, its signed Membership, and whom to dial."""

    certificate: Certificate
    membership: Annotated[bytes, msgspec.Meta(min_length=65, max_length=512)]
    seeds: Annotated[tuple[Address, ...], msgspec.Meta(max_length=16)]


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The joiner is not let in."""

    reason: Reason


class Introduction(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A signed object that lets a new member find a stream in a mirror, though it never reaches another node."""

    kind: ObjectKind
    data: Annotated[bytes, msgspec.Meta(min_length=65, max_length=1024)]


class Possession(msgspec.Struct, frozen=True, array_like=True):
    """Says, signed with `node_key`, that the joiner holds that key and means this very exchange."""

    domain: ClassVar[bytes] = b"patchswarm join 1\0"
    challenge: Key
    authority: Digest
    issuer: Digest
    invite: InviteId
    node_key: Key


JoinMessage = Authority | Enrol | Welcome | Refusal | Introduction


def encode_join(message: JoinMessage) -> bytes:
    """Frame body of a message."""
    return pack(message)


def decode_join(body: bytes) -> JoinMessage:
    """The message in a frame body. Raises MessageError."""
    message: JoinMessage = unpack(body, JoinMessage, limit=MAX_JOIN_BYTES)
    return message
