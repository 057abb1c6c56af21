"""Signed objects: 64 bytes of Ed25519 signature, then the MessagePack body.

The signature covers a domain string and the body, so an object of one kind never passes for another. The
digest that names an object is BLAKE3 over the same bytes: domain, then body; the signature is not part of it.
"""

from __future__ import annotations

from typing import ClassVar, Final, Protocol, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .errors import MessageError, SignatureError
from .framing import MAX_FRAME_BYTES
from .ids import digest
from .packing import pack, unpack_as

SIGNATURE_BYTES: Final = 64

MAX_SIGNED_BYTES: Final = MAX_FRAME_BYTES - 64
"""Longest signed object: it fits in one frame with the message around it."""


class Signable(Protocol):
    """A struct with the domain string that its signatures and digests are bound to."""

    domain: ClassVar[bytes]


S = TypeVar("S", bound=Signable)


def sign(value: Signable, key: Ed25519PrivateKey) -> bytes:
    """The signed object: signature, then body. Raises MessageError above MAX_SIGNED_BYTES: no peer would take it."""
    body = pack(value)
    _check_size(SIGNATURE_BYTES + len(body), type(value))
    return key.sign(value.domain + body) + body


def verify(data: bytes, kind: type[S], public_key: bytes) -> S:
    """The object in `data`, signed under the raw 32-byte Ed25519 `public_key`.

    Raises SignatureError when it is not; MessageError when it is signed but malformed.
    """
    _check_size(len(data), kind)
    signature, body = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, kind.domain + body)
    except (InvalidSignature, ValueError):
        raise SignatureError(f"{kind.__name__} is not signed by the key it should be") from None
    return unpack_as(body, kind)


def peek(data: bytes, kind: type[S]) -> S:
    """The object in `data`, its signature not checked: only to find which key should have signed it."""
    _check_size(len(data), kind)
    return unpack_as(data[SIGNATURE_BYTES:], kind)


def object_digest(data: bytes, kind: type[Signable]) -> bytes:
    """The 32-byte digest that names the signed object in `data`."""
    return digest(kind.domain + data[SIGNATURE_BYTES:])


def _check_size(size: int, kind: type[Signable]) -> None:
    if not SIGNATURE_BYTES < size <= MAX_SIGNED_BYTES:
        raise MessageError(f"{kind.__name__} of {size} bytes: too short or over {MAX_SIGNED_BYTES}")
