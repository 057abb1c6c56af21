"""Messages: every one survives its frame; nothing malformed becomes one."""

import contextlib
from typing import get_args

import msgpack
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.structs import instances

from patchswarm.protocol.errors import MessageError, ProtocolError
from patchswarm.protocol.framing import MAX_FRAME_BYTES
from patchswarm.protocol.ids import MAX_CHUNK_BYTES
from patchswarm.protocol.manifest import Header, Subject
from patchswarm.protocol.messages import (
    PIECE_BYTES,
    Claim,
    Have,
    Headers,
    Inventory,
    Lane,
    Message,
    Object,
    ObjectKind,
    Piece,
    Pull,
    Reason,
    Reject,
    Request,
    check_message,
    decode_message,
    encode_message,
)
from patchswarm.protocol.packing import pack
from patchswarm.protocol.signed import MAX_SIGNED_BYTES

KINDS = get_args(Message)
ATTEMPT = bytes(16)


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_survives_its_frame(kind):
    @given(instances(kind))
    def survives(message):
        try:
            check_message(message)
        except MessageError:
            assume(False)
        assert decode_message(encode_message(message)) == message

    survives()


def test_tags_are_unique():
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)


@given(instances(Message), st.data())
def test_a_message_with_any_one_byte_changed_raises_only_protocol_errors(message, data):
    body = bytearray(encode_message(message))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ProtocolError):
        decode_message(bytes(body))


@given(instances(Message), st.data())
def test_a_message_cut_short_is_refused(message, data):
    body = encode_message(message)
    with pytest.raises(MessageError):
        decode_message(body[: data.draw(st.integers(0, len(body) - 1))])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_protocol_errors(data):
    with contextlib.suppress(ProtocolError):
        decode_message(data)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([99, 0], "Invalid value 99"),
        ([], "at least length 1"),
        ([1, -1], "`int` >= 0"),
        ([4, bytes(15), bytes(32)], r"`bytes` of length >= 16"),
        ([4, bytes(16), bytes(33)], r"`bytes` of length <= 32"),
        ([12, 99, bytes(65)], "Invalid enum value 99"),
        ([12, 0, bytes(64)], "`bytes` of length >= 65"),
        ([10, [bytes(257)]], "`bytes` of length <= 256"),
        ([17, 2**32, bytes(32)], "`int` <= 4294967295"),
        ([20, 0, 0, MAX_CHUNK_BYTES + 1, b"x"], "`int` <="),
        ([20, 0, 0, 16, b""], "`bytes` of length >= 1"),
        ([20, 0, 10, 16, bytes(7)], "piece ends at 17, beyond its chunk of 16 bytes"),
        ([20, 0, 0, 2**20, bytes(PIECE_BYTES + 1)], "`bytes` of length <= 49152"),
        ([16, ATTEMPT, [[3, 2]]], "do not rise: 3..2"),
        ([16, ATTEMPT, [[0, 4], [5, 9]]], "do not rise: 5..9 after 4"),
        ([16, ATTEMPT, [[5, 9], [0, 1]]], "do not rise: 0..1 after 9"),
        ([21, ATTEMPT, 0, [[5, 9], [9, 12]]], "do not rise: 9..12 after 9"),
        ([21, ATTEMPT, 256, []], "`int` <= 255"),
    ],
)
def test_a_field_outside_its_limits_is_named(fields, why):
    with pytest.raises(MessageError, match=why):
        decode_message(msgpack.packb(fields))


def test_ranges_that_touch_nothing_pass():
    for message in (Have(ATTEMPT, ((0, 0), (2, 2**32 - 1))), Claim(ATTEMPT, 1, ()), Have(ATTEMPT, ())):
        assert decode_message(encode_message(message)) == message


def test_a_reject_without_holders_is_read_from_an_older_sender():
    assert decode_message(msgpack.packb([18, 7, 0])) == Reject(7, Reason.MISSING)


def fullest_header():
    return bytes(64) + pack(Header(Subject.TRANSITION, "s" * 64, 2**63 - 1, 2**63 - 1, bytes(32)))


@pytest.mark.parametrize(
    "message",
    [
        Inventory(255, (bytes(32),) * 1800),
        Pull((bytes(32),) * 1024),
        Have(ATTEMPT, tuple((2**31 + 4 * n, 2**31 + 4 * n + 1) for n in range(4096))),
        Claim(ATTEMPT, 255, tuple((2**31 + 4 * n, 2**31 + 4 * n + 1) for n in range(4096))),
        Object(ObjectKind.TRANSITION, bytes(MAX_SIGNED_BYTES)),
        Headers((fullest_header(),) * 256),
        Piece(2**32 - 1, 0, MAX_CHUNK_BYTES, bytes(PIECE_BYTES)),
        Reject(2**32 - 1, Reason.BUSY, (bytes(32),) * 16),
        Lane(ATTEMPT, bytes(32)),
        Request(2**32 - 1, bytes(32)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_fullest_message_fits_in_one_frame(message):
    body = encode_message(message)
    assert len(body) <= MAX_FRAME_BYTES
    assert decode_message(body) == message
