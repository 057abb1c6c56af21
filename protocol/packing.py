"""MessagePack to typed values and back, with limits.

`msgpack` bounds hostile input (lengths, nesting) in a first pass; `msgspec` then decodes, and checks types, ranges
and lengths of every field. Structs are encoded as arrays, so adding a field at the end keeps old readers working.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

import msgpack
import msgspec

from .errors import MessageError

T = TypeVar("T")

_LIMIT: Final = 64 * 1024
_encoder: Final = msgspec.msgpack.Encoder()


def pack(value: Any) -> bytes:
    """MessagePack of a struct: the same bytes for the same value."""
    return _encoder.encode(value)


def unpack(data: bytes, kind: Any, *, limit: int = _LIMIT) -> Any:
    """Value of type `kind` (a struct class or a union of tagged ones) from MessagePack `data`.

    `limit` bounds the length of the input and of every string, byte string, array and map in it.
    Raises MessageError for anything that is not exactly one such value.
    """
    if len(data) > limit:
        raise MessageError(f"{len(data)} bytes of MessagePack are over the limit of {limit}")
    try:
        msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=limit,
            max_bin_len=limit,
            max_array_len=limit,
            max_map_len=limit,
            max_ext_len=0,
            ext_hook=_refuse_extension,
        )
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise MessageError(f"not MessagePack within limits: {str(error) or type(error).__name__}") from None
    try:
        return _decoder(kind).decode(data)
    except msgspec.DecodeError as error:
        raise MessageError(str(error)) from None


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Made once per type: looking into a union of messages takes a hundred times as long as decoding one."""
    return msgspec.msgpack.Decoder(kind)


def _refuse_extension(code: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not used here")


def unpack_as(data: bytes, kind: type[T], *, limit: int = _LIMIT) -> T:
    """`unpack` for one struct class."""
    value: T = unpack(data, kind, limit=limit)
    return value
