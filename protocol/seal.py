"""Sealing: the publisher encrypts each chunk once; relays and caches pass it on untouched.

AES-256-GCM under a key that is random per attempt, nonce = chunk ordinal, associated data = where the chunk
belongs. The chunk's name is BLAKE3 of the sealed bytes, so anyone can verify it and only members can read it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .errors import SealError
from .ids import MAX_CHUNK_BYTES, digest, short
from .manifest import BlobRef, Opening, Transition
from .packing import pack

TAG_BYTES: Final = 16
MAX_BLOB_BYTES: Final = 256 * 1024 * 1024
"""Longest layout, digest table or index: enough for 30 TB of weights."""

INDEX_ENTRY: Final = struct.Struct("<32sI")
"""One chunk in an index page or blob: name, then size of the sealed chunk in bytes, little-endian."""

_BLOB_PIECE: Final = 4 * 1024 * 1024
_MAX_WINDOW: Final = 8 * 1024 * 1024


class ChunkSealer:
    """Seals and opens the chunks of one part of one transition.

    Thread-safe: AES-GCM keeps no state between calls. The caller never seals two chunks under one ordinal.
    """

    def __init__(self, of: Opening | Transition, part: int) -> None:
        self._aead = AESGCM(of.parts[part].key)
        self._context = pack((of.stream, of.epoch, of.version, of.source, of.attempt))

    def _aad(self, ordinal: int) -> bytes:
        return b"patchswarm chunk 1\0" + self._context + ordinal.to_bytes(4, "big")

    def seal(self, ordinal: int, contents: bytes) -> bytes:
        """Sealed bytes of a chunk's contents: 16 bytes longer."""
        return self._aead.encrypt(ordinal.to_bytes(12, "big"), contents, self._aad(ordinal))

    def open(self, ordinal: int, sealed: bytes | memoryview) -> bytes:
        """Contents of a sealed chunk. Raises SealError when it does not belong under this ordinal."""
        if not TAG_BYTES <= len(sealed) <= MAX_CHUNK_BYTES:
            raise SealError(f"chunk {ordinal} has {len(sealed)} bytes, outside {TAG_BYTES} to {MAX_CHUNK_BYTES}")
        try:
            return self._aead.decrypt(ordinal.to_bytes(12, "big"), sealed, self._aad(ordinal))
        except InvalidTag:
            raise SealError(f"chunk {ordinal} does not open under its transition's key") from None


def seal_blob(data: bytes, key: bytes) -> tuple[BlobRef, list[bytes]]:
    """A reference to `data` and the sealed chunks that carry it, under a fresh 32-byte `key`."""
    if len(data) > MAX_BLOB_BYTES:
        raise SealError(f"list of {len(data)} bytes is over the limit of {MAX_BLOB_BYTES}")
    root = digest(data)
    packed = zstandard.ZstdCompressor(level=3).compress(data)
    aead = AESGCM(key)
    pieces = [
        aead.encrypt((at // _BLOB_PIECE).to_bytes(12, "big"), packed[at : at + _BLOB_PIECE], _blob_aad(root))
        for at in range(0, len(packed), _BLOB_PIECE)
    ]
    names = tuple((digest(piece), len(piece)) for piece in pieces)
    return BlobRef(root=root, size=len(data), key=key, chunks=names), pieces


def open_blob(ref: BlobRef, pieces: Sequence[bytes | memoryview]) -> bytes:
    """The list that `ref` names, from its sealed chunks in order. Raises SealError when it is not that list."""
    if ref.size > MAX_BLOB_BYTES:
        raise SealError(f"list of {ref.size} bytes is over the limit of {MAX_BLOB_BYTES}")
    aead = AESGCM(ref.key)
    try:
        packed = b"".join(
            aead.decrypt(number.to_bytes(12, "big"), piece, _blob_aad(ref.root)) for number, piece in enumerate(pieces)
        )
        with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(packed) as reader:
            data = reader.read(ref.size + 1)  # never more, whatever the frame says
    except (InvalidTag, zstandard.ZstdError):
        raise SealError(f"list {short(ref.root)} does not open") from None
    if len(data) != ref.size or digest(data) != ref.root:
        raise SealError(f"list {short(ref.root)} opens to other contents")
    return data


def _blob_aad(root: bytes) -> bytes:
    return b"patchswarm blob 1\0" + root


def index_entries(data: bytes) -> list[tuple[bytes, int]]:
    """(name, sealed size) of every chunk in an index page or blob. Raises SealError for a torn or absurd one."""
    if len(data) % INDEX_ENTRY.size:
        raise SealError(f"index of {len(data)} bytes is not a whole number of {INDEX_ENTRY.size}-byte entries")
    entries = list(INDEX_ENTRY.iter_unpack(data))
    for name, size in entries:
        if not TAG_BYTES <= size <= MAX_CHUNK_BYTES:
            raise SealError(f"index gives chunk {short(name)} {size} bytes, outside {TAG_BYTES} to {MAX_CHUNK_BYTES}")
    return entries
