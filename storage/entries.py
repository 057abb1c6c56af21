"""Entries appended to a file one after the other, each with its length and a check: a torn last one is recognised.

An entry:

    offset  bytes  contents
    0       4      length N of the body, little-endian
    4       4      low half of XXH3-64 of the body
    8       N      body
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

import xxhash

_HEADER: Final = struct.Struct("<II")
LIMIT: Final = 64 * 1024 * 1024


def framed(body: bytes) -> bytes:
    """One entry."""
    return _HEADER.pack(len(body), _check(body)) + body


def whole_entries(read: Callable[[int, int], bytes | bytearray]) -> Iterator[bytes]:
    """The bodies of all entries up to the first that is torn, damaged or over LIMIT.

    `read(offset, size)` gives bytes of the file, fewer where it ends.
    """
    at = 0
    while len(header := read(at, _HEADER.size)) == _HEADER.size:
        length, check = _HEADER.unpack(header)
        body = read(at + _HEADER.size, length) if length <= LIMIT else b""
        if len(body) != length or _check(body) != check:
            return
        yield bytes(body)
        at += _HEADER.size + length


def _check(body: bytes | bytearray) -> int:
    return xxhash.xxh3_64_intdigest(body) & 0xFFFFFFFF
