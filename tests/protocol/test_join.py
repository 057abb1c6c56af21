"""The invite token and the join messages, as bytes."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.protocol.errors import MessageError, ProtocolError
from patchswarm.protocol.join import (
    MAX_JOIN_BYTES,
    Authority,
    Enrol,
    JoinMessage,
    Reason,
    Refusal,
    Token,
    TokenError,
    Welcome,
    decode_join,
    decode_token,
    encode_join,
    encode_token,
)

TOKEN = Token(
    authority=bytes(range(32)),
    issuer=bytes(range(32, 64)),
    invite=b"invite01",
    secret=bytes(range(64, 96)),
    addresses=("head.example:7340", "[2001:db8::1]:7340"),
)
URL_SAFE = set(string.ascii_letters + string.digits + "-_")

tokens = st.builds(
    Token,
    authority=st.binary(min_size=32, max_size=32),
    issuer=st.binary(min_size=32, max_size=32),
    invite=st.binary(min_size=8, max_size=8),
    secret=st.binary(min_size=32, max_size=32),
    addresses=st.lists(st.text(max_size=60), min_size=1, max_size=8).map(tuple),
)

messages: st.SearchStrategy[JoinMessage] = st.one_of(
    st.builds(Authority, st.binary(min_size=1, max_size=2048), st.binary(min_size=32, max_size=32)),
    st.builds(
        Enrol,
        st.binary(min_size=8, max_size=8),
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=65, max_size=512),
    ),
    st.builds(
        Welcome,
        st.binary(min_size=1, max_size=2048),
        st.binary(min_size=65, max_size=512),
        st.lists(st.text(max_size=30), max_size=16).map(tuple),
    ),
    st.builds(Refusal, st.sampled_from(Reason)),
)


@given(tokens)
def test_a_token_is_one_url_safe_line_and_reads_back(token):
    text = encode_token(token)
    assert set(text) <= URL_SAFE
    assert text.startswith("patchswarm1_")
    assert decode_token(text) == token


def test_white_space_from_a_wrapped_paste_does_no_harm():
    text = encode_token(TOKEN)
    assert decode_token(f"  {text[:40]}\n  {text[40:]}\r\n") == TOKEN


@given(st.data())
def test_a_changed_lost_or_added_character_is_recognised(data):
    text = encode_token(TOKEN)
    at = data.draw(st.integers(0, len(text) - 1))
    replacement = data.draw(st.text(sorted(URL_SAFE), max_size=2).filter(lambda new: new != text[at]))
    with pytest.raises(TokenError):
        decode_token(text[:at] + replacement + text[at + 1 :])


@given(st.integers(1, 160))
def test_a_token_cut_short_is_called_damaged(lost):
    with pytest.raises(TokenError, match="damaged"):
        decode_token(encode_token(TOKEN)[:-lost])


@pytest.mark.parametrize(
    "text", ["", "hello", "patchswarm_x", "patchswarm1", "patchswarmX_abc", "eyJhbGciOiJIUzI1NiJ9"]
)
def test_what_is_no_token_is_called_so(text):
    with pytest.raises(TokenError, match="not an invite token"):
        decode_token(text)


def test_a_later_versions_token_is_told_from_a_damaged_one():
    with pytest.raises(TokenError, match="version 2"):
        decode_token(encode_token(TOKEN).replace("patchswarm1_", "patchswarm2_"))


@given(st.text(st.characters(codec="utf-8")))
def test_any_other_text_raises_only_a_token_error(text):
    for attempt in (text, "patchswarm1_" + text):
        with pytest.raises(TokenError):
            decode_token(attempt)


@given(messages)
def test_messages_read_back(message):
    body = encode_join(message)
    assert len(body) <= MAX_JOIN_BYTES
    assert decode_join(body) == message


@given(st.binary(max_size=300))
def test_bytes_from_a_stranger_raise_only_a_message_error(body):
    try:
        message = decode_join(body)
    except MessageError:
        return
    assert encode_join(message)


def test_a_message_over_the_limit_is_not_read():
    with pytest.raises(MessageError, match="over the limit"):
        decode_join(bytes(MAX_JOIN_BYTES + 1))


def test_token_errors_are_protocol_errors():
    assert issubclass(TokenError, ProtocolError)
