"""Mirror: where a stream's chunks and signed objects lie in a store that anybody may read, and how they are sealed.

Chunks lie there as they travel: sealed, named by what they are. The signed objects hold the chunks' keys, and names
that are nobody's business; they stand together in one list, sealed under a key that members alone have. Nothing that
comes from a mirror is believed: chunks have names, objects have signatures, and what is older than known is of no use.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .errors import SealError
from .manifest import MirrorRecord
from .messages import ObjectKind, SignedBytes
from .packing import pack, unpack

MAX_LIST_BYTES: Final = 64 * 1024 * 1024
"""Longest list, packed or unpacked: a thousand versions of a model whose own lists have a thousand pieces."""

NONCE_BYTES: Final = 12

_HEAD: Final = struct.Struct("<8sBQQ12s")
_MAGIC: Final = b"PSMIRROR"
_FORMAT: Final = 1
_DOMAIN: Final = b"patchswarm mirror list 1\0"
_MAX_WINDOW: Final = 8 * 1024 * 1024


class LaterKeyError(SealError):
    """The list is sealed under a newer record than this node knows."""


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """One signed object of a list."""

    kind: ObjectKind
    data: SignedBytes


def seal_list(objects: Iterable[tuple[ObjectKind, bytes]], record: MirrorRecord, nonce: bytes) -> bytes:
    """The list of these signed objects as it lies in a mirror. `nonce` is random, 12 bytes, and never used again.

    Raises SealError when they are too many.
    """
    body = pack([Listed(kind, data) for kind, data in objects])
    if len(body) > MAX_LIST_BYTES:
        raise SealError(f"what is signed of {record.stream} has {len(body)} bytes, over a mirror's {MAX_LIST_BYTES}")
    head = _HEAD.pack(_MAGIC, _FORMAT, record.epoch, record.serial, nonce)
    packed = zstandard.ZstdCompressor(level=3).compress(body)
    return head + AESGCM(record.key).encrypt(nonce, packed, _DOMAIN + record.place + head)


def open_list(sealed: bytes, record: MirrorRecord) -> list[tuple[ObjectKind, bytes]]:
    """The signed objects in a mirror's list, none of them verified.

    Raises SealError when it is no list, is damaged, or is sealed under another record than this one, LaterKeyError
    when that is a newer one; MessageError when it is malformed inside.
    """
    if len(sealed) < _HEAD.size or not sealed.startswith(_MAGIC):
        raise SealError(f"the mirror has something else where the list of {record.stream} should be")
    _, version, epoch, serial, nonce = _HEAD.unpack_from(sealed)
    if version != _FORMAT:
        raise SealError(f"the mirror's list of {record.stream} has format {version}, not {_FORMAT}: upgrade patchswarm")
    if (epoch, serial) != (record.epoch, record.serial):
        what = f"the mirror's list of {record.stream} is sealed under"
        if (epoch, serial) > (record.epoch, record.serial):
            raise LaterKeyError(f"{what} a newer key: this node must reach another one to learn it")
        raise SealError(f"{what} an older key: its publisher will renew it")
    head, body = sealed[: _HEAD.size], sealed[_HEAD.size :]
    try:
        packed = AESGCM(record.key).decrypt(nonce, body, _DOMAIN + record.place + head)
        with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(packed) as reader:
            data = reader.read(MAX_LIST_BYTES + 1)
    except (InvalidTag, zstandard.ZstdError):
        raise SealError(f"the mirror's list of {record.stream} does not open: it is damaged, or another's") from None
    listed: list[Listed] = unpack(data, list[Listed], limit=MAX_LIST_BYTES)
    return [(each.kind, each.data) for each in listed]


def list_path(record: MirrorRecord) -> str:
    """Where the list of signed objects lies, below the mirror's URL."""
    return f"{record.place.hex()}/objects"


def chunks_path(record: MirrorRecord) -> str:
    """The folder of the chunks."""
    return f"{record.place.hex()}/chunks"


def chunk_path(record: MirrorRecord, name: bytes) -> str:
    """Where a chunk lies."""
    text = name.hex()
    return f"{chunks_path(record)}/{text[:2]}/{text}"
