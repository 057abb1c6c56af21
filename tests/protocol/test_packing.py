"""MessagePack in and out: typed, bounded, and nothing but our own error for what is neither."""

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.protocol.errors import MessageError
from patchswarm.protocol.packing import pack, unpack, unpack_as


class Pair(msgspec.Struct, frozen=True, array_like=True):
    name: str
    data: bytes


class Triple(msgspec.Struct, frozen=True, array_like=True):
    name: str
    data: bytes
    more: int = 0


def test_a_struct_is_an_array_of_its_fields():
    assert pack(Pair("a", b"\x01\x02")) == b"\x92\xa1a\xc4\x02\x01\x02"


def test_a_field_added_at_the_end_keeps_old_readers_and_new_ones_working():
    assert unpack_as(pack(Triple("a", b"b", 7)), Pair) == Pair("a", b"b")
    assert unpack_as(pack(Pair("a", b"b")), Triple) == Triple("a", b"b", 0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "incomplete"),
        (b"\xc1", "not MessagePack within limits: .+"),
        (b"\x92\xa1a", "incomplete"),
        (b"\x92\xa1a\xc4\x00\x00", "extra data"),
        (b"\x91\xa1a", "at least length 2, got 1"),
        (b"\x92\xc4\x01a\xc4\x00", "Expected `str`, got `bytes`"),
        (b"\x92\xa1a\xa4QUFB", "Expected `bytes`, got `str`"),
        (b"\x92\xa1\xff\xc4\x00", "utf-8"),
        (b"\x82\xa4name\xa1a\xa4data\xc4\x00", "Expected `array`, got `object`"),
        (b"\x81\xc0\xc0", "strict_map_key"),
        (b"\x81\x90\xc0", "strict_map_key"),
        (b"\xc7\x00\x05", "extension type 5"),
        (b"\xd6\xff\x00\x00\x00\x00", "max_ext_len"),
        (b"\xdd\xff\xff\xff\xff", "max_array_len"),
        (b"\xdb\xff\xff\xff\xff", "incomplete"),
        (b"\xc6\xff\xff\xff\xff", "incomplete"),
        (b"\xdf\xff\xff\xff\xff", "max_map_len"),
        (b"\x91" * 50_000 + b"\x01", "not MessagePack within limits: .+"),
    ],
)
def test_malformed_bytes_are_a_message_error(data, why):
    with pytest.raises(MessageError, match=why):
        unpack(data, Pair)


def test_the_limit_holds_for_the_whole_input():
    data = pack(Pair("a", bytes(100)))
    assert unpack_as(data, Pair, limit=len(data)) == Pair("a", bytes(100))
    with pytest.raises(MessageError, match=f"{len(data)} bytes of MessagePack are over the limit of {len(data) - 1}"):
        unpack_as(data, Pair, limit=len(data) - 1)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_raise_only_a_message_error(data):
    try:
        value = unpack_as(data, Pair)
    except MessageError:
        return
    assert isinstance(value, Pair)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=5),
    max_leaves=20,
)


@given(values)
def test_any_well_formed_value_of_another_type_raises_only_a_message_error(value):
    try:
        got = unpack_as(msgpack.packb(value), Pair)
    except MessageError:
        return
    assert isinstance(value, list)
    assert value[:2] == [got.name, got.data]
