"""Frames: a 4-byte big-endian length, then that many bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.protocol.errors import FrameError
from patchswarm.protocol.framing import MAX_FRAME_BYTES, FrameDecoder, encode_frame

bodies = st.lists(st.binary(min_size=1, max_size=300), max_size=20)


def test_a_frame_is_its_length_and_its_body():
    assert encode_frame(b"hello") == b"\x00\x00\x00\x05hello"


def test_two_frames_in_one_read():
    assert FrameDecoder().feed(b"\x00\x00\x00\x02hi\x00\x00\x00\x01!") == [b"hi", b"!"]


def test_a_frame_in_three_reads():
    decoder = FrameDecoder()
    assert decoder.feed(b"\x00\x00") == []
    assert decoder.feed(b"\x00\x02h") == []
    assert decoder.feed(b"i") == [b"hi"]


def test_an_end_of_stream_is_clean_only_between_frames():
    decoder = FrameDecoder()
    assert decoder.at_boundary()
    decoder.feed(b"\x00\x00\x00\x02hi\x00")
    assert not decoder.at_boundary()
    decoder.feed(b"\x00\x00\x01!")
    assert decoder.at_boundary()


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_may_be_fed(buffer):
    assert FrameDecoder().feed(buffer(b"\x00\x00\x00\x01x")) == [b"x"]


def test_the_longest_frame_passes():
    body = bytes(MAX_FRAME_BYTES)
    assert FrameDecoder().feed(encode_frame(body)) == [body]


def test_one_byte_more_is_refused_before_it_is_sent():
    with pytest.raises(FrameError, match="65537 bytes is over the limit of 65536"):
        encode_frame(bytes(MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_bad_length_is_refused_before_its_body_comes(length):
    with pytest.raises(FrameError, match=f"announces {length} bytes"):
        FrameDecoder().feed(length.to_bytes(4, "big"))


@given(bodies, st.data())
def test_frames_survive_any_split_of_the_stream(frames, data):
    stream = b"".join(map(encode_frame, frames))
    decoder, received = FrameDecoder(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += decoder.feed(stream[:size])
        stream = stream[size:]
    assert received == frames
    assert decoder.at_boundary()


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_frames_or_a_frame_error(data):
    try:
        frames = FrameDecoder().feed(data)
    except FrameError:
        return
    assert data.startswith(b"".join(map(encode_frame, frames)))
