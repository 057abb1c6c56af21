"""Lanes: preambles and headers under a MAC."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.protocol.errors import FrameError
from patchswarm.protocol.ids import MAX_CHUNK_BYTES
from patchswarm.protocol.lane import (
    HEADER_BYTES,
    PREAMBLE_BYTES,
    LaneCodec,
    check_preamble,
    encode_preamble,
    preamble_lane,
)

LANE, KEY = bytes(range(16)), bytes(range(32))
NAME = bytes(range(100, 132))


@pytest.fixture
def ends():
    return LaneCodec(KEY, dialler=True), LaneCodec(KEY, dialler=False)


def test_a_preamble_says_which_lane_it_is_and_proves_the_key():
    data = encode_preamble(LANE, KEY)
    assert len(data) == PREAMBLE_BYTES
    assert preamble_lane(data) == LANE
    check_preamble(data, KEY)


def test_a_preamble_under_another_key_is_refused():
    with pytest.raises(FrameError, match="does not carry the key"):
        check_preamble(encode_preamble(LANE, KEY), bytes(32))


@given(st.binary(max_size=64).filter(lambda data: len(data) != PREAMBLE_BYTES or not data.startswith(b"PSLANE1\n")))
def test_anything_else_is_no_preamble(data):
    with pytest.raises(FrameError):
        preamble_lane(data)


@given(st.integers(0, PREAMBLE_BYTES * 8 - 1))
def test_a_flipped_bit_in_a_preamble_is_found(bit):
    data = bytearray(encode_preamble(LANE, KEY))
    data[bit // 8] ^= 1 << bit % 8

    def open_(preamble):
        preamble_lane(preamble)
        check_preamble(preamble, KEY)

    with pytest.raises(FrameError):
        open_(bytes(data))


@given(st.lists(st.tuples(st.binary(min_size=32, max_size=32), st.integers(0, MAX_CHUNK_BYTES)), max_size=5))
def test_headers_come_through_in_both_directions(chunks):
    one, other = LaneCodec(KEY, dialler=True), LaneCodec(KEY, dialler=False)
    for name, size in chunks:
        for sender, receiver in ((one, other), (other, one)):
            header = sender.header(name, size)
            assert len(header) == HEADER_BYTES
            assert receiver.open_header(header) == (name, size)


@given(st.integers(0, HEADER_BYTES * 8 - 1))
def test_a_flipped_bit_in_a_header_is_found(bit):
    one, other = LaneCodec(KEY, dialler=True), LaneCodec(KEY, dialler=False)
    data = bytearray(one.header(NAME, 1000))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError, match="MAC does not match"):
        other.open_header(bytes(data))


def test_a_replayed_header_is_recognised(ends):
    one, other = ends
    header = one.header(NAME, 1000)
    other.open_header(header)
    with pytest.raises(FrameError, match="header 0 came where 1 was due"):
        other.open_header(header)


def test_a_header_that_was_left_out_or_moved_is_recognised(ends):
    one, other = ends
    _, second = one.header(NAME, 1000), one.header(NAME, 1000)
    with pytest.raises(FrameError, match="header 1 came where 0 was due"):
        other.open_header(second)


def test_a_header_sent_back_to_its_sender_is_refused(ends):
    one, _ = ends
    with pytest.raises(FrameError, match="MAC"):
        one.open_header(one.header(NAME, 1000))


def test_a_chunk_that_is_too_large_is_refused_before_its_first_byte(ends):
    one, other = ends
    with pytest.raises(FrameError, match="announces a chunk of"):
        other.open_header(one.header(NAME, MAX_CHUNK_BYTES + 1))
