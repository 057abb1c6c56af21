r"""Lanes: plain TCP connections that carry sealed chunks at memory speed.

A lane is offered over TLS with a one-time id and a 32-byte key. The dialler opens it with a preamble; then both
sides send chunks, each behind a 64-byte header under a MAC. Bodies need none: their BLAKE3 is their name.

    preamble  magic "PSLANE1\n" (8) | lane id (16) | MAC (16)
    header    sequence (8) | size (4) | zero (4) | name (32) | MAC (16)        integers big-endian

The MAC is keyed BLAKE3 over a direction byte and what precedes it, cut to 16 bytes. The sequence counts headers
of one direction from 0, so a replayed or reordered one is recognised.
"""

from __future__ import annotations

import hmac
import struct
from typing import Final

import blake3

from .errors import FrameError
from .ids import MAX_CHUNK_BYTES

MAGIC: Final = b"PSLANE1\n"
PREAMBLE_BYTES: Final = 40
HEADER_BYTES: Final = 64
MAC_BYTES: Final = 16

_FIELDS: Final = struct.Struct(">QII32s")


def _mac(key: bytes, direction: bytes, data: bytes) -> bytes:
    return blake3.blake3(direction + data, key=key).digest(length=MAC_BYTES)


def encode_preamble(lane: bytes, key: bytes) -> bytes:
    """The dialler's first 40 bytes on a lane with this 16-byte id and 32-byte key."""
    opening = MAGIC + lane
    return opening + _mac(key, b"P", opening)


def preamble_lane(data: bytes) -> bytes:
    """The 16-byte lane id in a preamble. Raises FrameError when it is none."""
    if len(data) != PREAMBLE_BYTES or not data.startswith(MAGIC):
        raise FrameError("not the preamble of a lane")
    return data[len(MAGIC) : len(MAGIC) + 16]


def check_preamble(data: bytes, key: bytes) -> None:
    """Raise FrameError unless the preamble was made with `key`."""
    if not hmac.compare_digest(_mac(key, b"P", data[:-MAC_BYTES]), data[-MAC_BYTES:]):
        raise FrameError("a lane's preamble does not carry the key it was offered with")


class LaneCodec:
    """Headers of one lane, both directions. `dialler` says which end this is."""

    def __init__(self, key: bytes, *, dialler: bool) -> None:
        self._key = key
        self._out, self._in = (b"D", b"A") if dialler else (b"A", b"D")
        self._sent = 0
        self._received = 0

    def header(self, name: bytes, size: int) -> bytes:
        """Header of the next chunk to send."""
        fields = _FIELDS.pack(self._sent, size, 0, name)
        self._sent += 1
        return fields + _mac(self._key, self._out, fields)

    def open_header(self, data: bytes) -> tuple[bytes, int]:
        """(name, size) of the next chunk to come. Raises FrameError for a header that the peer did not send so."""
        if not hmac.compare_digest(_mac(self._key, self._in, data[:-MAC_BYTES]), data[-MAC_BYTES:]):
            raise FrameError("a lane header's MAC does not match")
        sequence, size, zero, name = _FIELDS.unpack(data[:-MAC_BYTES])
        if sequence != self._received or zero:
            raise FrameError(f"lane header {sequence} came where {self._received} was due")
        if size > MAX_CHUNK_BYTES:
            raise FrameError(f"lane header announces a chunk of {size} bytes")
        self._received += 1
        return name, size
