"""Signed objects: bound to one key, one kind and every byte; small enough for one frame."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from support.structs import instances, smallest

from patchswarm.protocol import manifest
from patchswarm.protocol.errors import MessageError, ProtocolError, SignatureError
from patchswarm.protocol.framing import encode_frame
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import (
    Beacon,
    BlobRef,
    Header,
    IndexPage,
    IssuedMembership,
    Issuer,
    Manifest,
    Membership,
    MirrorRecord,
    NodeRecord,
    Opening,
    OpeningPart,
    Revocation,
    RosterSite,
    Route,
    StreamRecord,
    Subject,
    Transition,
    TransitionPart,
)
from patchswarm.protocol.messages import Object, ObjectKind, encode_message
from patchswarm.protocol.packing import pack
from patchswarm.protocol.signed import MAX_SIGNED_BYTES, object_digest, peek, sign, verify

KINDS = [
    StreamRecord,
    Membership,
    Issuer,
    IssuedMembership,
    Revocation,
    NodeRecord,
    Opening,
    IndexPage,
    Manifest,
    Transition,
    MirrorRecord,
    Beacon,
    Header,
]
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()


def test_these_are_all_the_signed_kinds_and_their_domains_differ():
    signable = [each for each in vars(manifest).values() if isinstance(each, type) and hasattr(each, "domain")]
    assert {*signable} == {*KINDS}
    domains = [kind.domain for kind in KINDS]
    assert len(set(domains)) == len(domains)
    assert all(domain.endswith(b"\0") for domain in domains), "else a domain and a body could blend into another domain"


def test_a_signed_object_is_its_signature_then_its_body():
    record = StreamRecord("qwen", 1, bytes(32))
    data = sign(record, KEY)
    assert data[64:] == pack(record)
    KEY.public_key().verify(data[:64], b"patchswarm stream 1\0" + data[64:])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_signing(kind):
    @given(instances(kind))
    def survives(value):
        try:
            data = sign(value, KEY)
        except MessageError:
            assert 64 + len(pack(value)) > MAX_SIGNED_BYTES
            return
        assert verify(data, kind, PUBLIC) == value
        assert peek(data, kind) == value
        assert object_digest(data, kind) == digest(kind.domain + pack(value))

    survives()


@pytest.mark.parametrize("kind", KINDS)
def test_another_key_is_refused(kind):
    with pytest.raises(SignatureError, match=f"{kind.__name__} is not signed by the key it should be"):
        verify(sign(smallest(kind), KEY), kind, OTHER)


@pytest.mark.parametrize("signed_as", KINDS)
def test_an_object_never_passes_for_another_kind(signed_as):
    data = sign(smallest(signed_as), KEY)
    for kind in KINDS:
        if kind is not signed_as:
            with pytest.raises(SignatureError):
                verify(data, kind, PUBLIC)


@given(st.data())
def test_any_changed_byte_breaks_the_signature(data):
    value = data.draw(instances(Header))
    signed = bytearray(sign(value, KEY))
    signed[data.draw(st.integers(0, len(signed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SignatureError):
        verify(bytes(signed), Header, PUBLIC)


def test_a_public_key_of_another_length_verifies_nothing():
    with pytest.raises(SignatureError):
        verify(sign(StreamRecord("qwen", 1, bytes(32)), KEY), StreamRecord, PUBLIC[:31])


def test_a_signed_but_malformed_object_is_a_message_error():
    body = b"\x93\xa4qwen\x01\xc4\x01x"
    data = KEY.sign(StreamRecord.domain + body) + body
    with pytest.raises(MessageError, match="`bytes` of length >= 32"):
        verify(data, StreamRecord, PUBLIC)
    with pytest.raises(MessageError, match="`bytes` of length >= 32"):
        peek(data, StreamRecord)


@pytest.mark.parametrize("size", [0, 64, MAX_SIGNED_BYTES + 1])
@pytest.mark.parametrize("read", [peek, lambda data, kind: verify(data, kind, PUBLIC)])
def test_length_is_checked_before_anything_else(size, read):
    with pytest.raises(MessageError, match=f"StreamRecord of {size} bytes: too short or over {MAX_SIGNED_BYTES}"):
        read(bytes(size), StreamRecord)


@given(st.binary(max_size=300), st.sampled_from(KINDS))
def test_arbitrary_bytes_raise_only_protocol_errors(data, kind):
    with pytest.raises(ProtocolError):
        verify(data, kind, PUBLIC)


@pytest.mark.parametrize("name", ["", "..", ".", "-x", ".hidden", "a/b", "a b", "ä", "a\n", "a" * 65, "a\0"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "stream" in kind.__struct_fields__])
def test_a_stream_name_that_could_leave_its_folder_is_refused_in_every_object(name, kind):
    fields = [name if field == "stream" else getattr(smallest(kind), field) for field in kind.__struct_fields__]
    body = pack(fields)
    with pytest.raises(MessageError, match="matching regex"):
        verify(KEY.sign(kind.domain + body) + body, kind, PUBLIC)


def test_a_header_has_at_most_256_bytes():
    longest = Header(Subject.TRANSITION, "s" * 64, 2**63 - 1, 2**63 - 1, bytes(32))
    assert len(sign(longest, KEY)) == 184 <= 256


def test_an_object_too_large_for_a_frame_is_never_signed():
    part = OpeningPart(bytes(32), bytes(32), 0, BlobRef(bytes(32), 0, bytes(32), ()))
    roster = tuple(RosterSite("s" * 64, 1, (bytes(32),) * 16) for _ in range(128))
    with pytest.raises(MessageError, match=r"Opening of \d+ bytes: too short or over 65472"):
        sign(Opening("qwen", 1, 1, b"", bytes(16), 0, (part,), roster), KEY)


def test_the_largest_transition_of_one_publisher_fits_in_a_frame():
    blob = BlobRef(bytes(32), 256 * 2**20, bytes(32), ((bytes(32), 4 * 2**20),) * 64)
    part = TransitionPart(bytes(32), bytes(32), 0, 2**31, 2**63 - 1, blob, blob, blob)
    data = sign(Transition("s" * 64, 0, 0, Route.FULL, b"", bytes(32), bytes(16), (part,)), KEY)
    encode_frame(encode_message(Object(ObjectKind.TRANSITION, data)))


@pytest.mark.parametrize(
    ("kind", "field", "value", "why"),
    [
        (NodeRecord, "addresses", ["a"] * 9, "length <= 8"),
        (NodeRecord, "heads", [["s", 0, 0, bytes(32)]] * 65, "length <= 64"),
        (NodeRecord, "heads", [["../s", 0, 0, bytes(32)]], "matching regex"),
        (NodeRecord, "membership", bytes(513), "length <= 512"),
        (NodeRecord, "site", "s" * 65, "length <= 64"),
        (Opening, "parts", [], "length >= 1"),
        (Opening, "epoch", 2**63, "`int` <= 9223372036854775807"),
        (Opening, "attempt", bytes(17), "length <= 16"),
        (Manifest, "label", "x" * 257, "length <= 256"),
        (Manifest, "parent", bytes(33), "length <= 32"),
        (IndexPage, "entries", b"", "length >= 36"),
        (IndexPage, "entries", bytes(36 * 64 + 1), "length <= 2304"),
        (Transition, "kind", 4, "Invalid enum value 4"),
        (Header, "subject", -1, "Invalid enum value -1"),
    ],
)
def test_a_field_outside_its_limits_is_named(kind, field, value, why):
    good = smallest(kind)
    body = pack([value if name == field else getattr(good, name) for name in kind.__struct_fields__])
    with pytest.raises(MessageError, match=why):
        verify(KEY.sign(kind.domain + body) + body, kind, PUBLIC)


def test_a_list_chunk_longer_than_any_chunk_is_refused_before_anyone_fetches_it():
    blob = [bytes(32), 100, bytes(32), [[bytes(32), 2**32 - 1]]]
    body = pack(["s", 0, 1, b"", bytes(16), 0, [[bytes(32), bytes(32), 0, blob]], []])
    with pytest.raises(MessageError, match="`int` <= 4259840"):
        verify(KEY.sign(Opening.domain + body) + body, Opening, PUBLIC)
