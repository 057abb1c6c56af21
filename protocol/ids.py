"""Names of things: digests, keys, attempts, streams, and how they are checked and shown."""

from __future__ import annotations

import re
from typing import Annotated, Final

import blake3
import msgspec

from .errors import MessageError

Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
"""BLAKE3 of something, 32 bytes. A chunk's name is the digest of its sealed bytes."""

MaybeDigest = Annotated[bytes, msgspec.Meta(max_length=32)]
"""A digest, or empty bytes for "nothing" (the source of a full transition)."""

Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
"""A raw 32-byte key: Ed25519 public key, or AES-256 key."""

Attempt = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
"""Random id of one making of one transition. Nothing made under another attempt mixes with it."""

Counter = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Epochs, versions, sizes and offsets: 63 bits, so that SQLite and every language can hold them."""

Ordinal = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""Number of a chunk within one transition."""

_STREAM_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"

StreamName = Annotated[str, msgspec.Meta(pattern=_STREAM_NAME)]
"""A stream's name; also a folder name on every host, so its alphabet is narrow."""

MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024 + 64 * 1024
"""Longest sealed chunk: 4 MiB of contents, and room for what a record of incompressible bytes adds."""

ChunkSize = Annotated[int, msgspec.Meta(ge=16, le=MAX_CHUNK_BYTES)]
"""Bytes of one sealed chunk, at least its tag."""


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """BLAKE3 of `data`: 32 bytes."""
    return blake3.blake3(data).digest()


def check_stream_name(name: str) -> str:
    """Return `name`, or raise MessageError when it could not be a folder on every host."""
    if not re.match(_STREAM_NAME, name):
        raise MessageError(
            f"stream name {name!r} is not allowed: use 1 to 64 letters, digits, '.', '_' or '-', "
            "starting with a letter or digit"
        )
    return name


def short(value: bytes) -> str:
    """First 10 hex digits of an id or digest: enough for people, as in git."""
    return value[:5].hex()
