"""What lies in a mirror: it opens for members alone, and damage is seen; its record spreads like any other."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.versions import Publisher, header, key_of, raw
from support.versions import body as body_of

from patchswarm.protocol.errors import MessageError, ProtocolError, SealError, SignatureError
from patchswarm.protocol.gossip import Gossip
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import MirrorRecord
from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.mirror import chunk_path, list_path, open_list, seal_list
from patchswarm.protocol.signed import sign

CA = key_of("ca")
NODE = digest(raw(key_of("head")))
PUBLISHER = Publisher()
RECORD = MirrorRecord("qwen", 1, 0, bytes(range(16)), bytes(32))
NONCE = bytes(12)


def mirror_record(serial=0, epoch=1, key=None, place=0):
    record = MirrorRecord("qwen", epoch, serial, bytes([place] * 16), bytes([serial] * 32))
    return ObjectKind.MIRROR, sign(record, key or key_of(f"publisher {epoch}"))


@pytest.fixture
def gossip():
    gossip = Gossip(raw(CA))
    gossip.learn(*PUBLISHER.record())
    return gossip


def objects(count=3):
    made = [PUBLISHER.version(number, node=NODE) for number in range(1, count + 1)]
    return [PUBLISHER.record(), *(each for version in made for each in version.end())]


# -- the list ------------------------------------------------------------------------------------------------


def test_a_list_opens_to_what_was_sealed():
    listed = objects()
    assert open_list(seal_list(listed, RECORD, NONCE), RECORD) == listed


def test_a_list_shows_no_name_and_no_key():
    version = PUBLISHER.version(1, node=NODE)
    sealed = seal_list([PUBLISHER.record(), *version.end()], RECORD, NONCE)
    assert b"qwen" not in sealed
    assert version.opening.parts[0].key not in sealed
    assert b"qwen" not in list_path(RECORD).encode() + chunk_path(RECORD, NODE).encode()


def test_a_list_opens_for_nobody_without_the_key():
    other = MirrorRecord("qwen", 1, 0, RECORD.place, bytes([1] * 32))
    with pytest.raises(SealError, match="does not open"):
        open_list(seal_list(objects(), RECORD, NONCE), other)


def test_a_list_of_another_place_is_refused():
    """Else a mirror could pass one stream's list off as another's."""
    other = MirrorRecord("qwen", 1, 0, bytes(16), RECORD.key)
    with pytest.raises(SealError, match="does not open"):
        open_list(seal_list(objects(), RECORD, NONCE), other)


@pytest.mark.parametrize(("serial", "says"), [(0, "an older key"), (2, "a newer key: this node must reach another")])
def test_a_list_under_another_key_says_what_to_do(serial, says):
    made = MirrorRecord("qwen", 1, serial, RECORD.place, RECORD.key)
    mine = MirrorRecord("qwen", 1, 1, RECORD.place, RECORD.key)
    with pytest.raises(SealError, match=says):
        open_list(seal_list([], made, NONCE), mine)


def test_a_later_format_is_named():
    sealed = bytearray(seal_list([], RECORD, NONCE))
    sealed[8] = 2
    with pytest.raises(SealError, match="format 2"):
        open_list(bytes(sealed), RECORD)


@given(st.data())
def test_any_changed_byte_is_seen(data):
    sealed = bytearray(seal_list([PUBLISHER.record()], RECORD, NONCE))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        open_list(bytes(sealed), RECORD)


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data):
    with pytest.raises(SealError):
        open_list(data, RECORD)


# -- the record that says where and under which key ----------------------------------------------------------


def test_the_record_with_the_higher_serial_replaces_the_other_in_whatever_order(gossip):
    records = [mirror_record(serial) for serial in range(4)]
    random.Random(3).shuffle(records)
    for record in records:
        gossip.learn(*record)
    assert gossip.mirrors["qwen"].serial == 3
    assert [kind for kind, _, _ in gossip.durable()] == [ObjectKind.STREAM, ObjectKind.MIRROR]


def test_a_record_of_a_new_epoch_replaces_every_one_of_the_old(gossip):
    gossip.learn(*Publisher(epoch=2).record())
    gossip.learn(*mirror_record(0, epoch=2))
    assert gossip.learn(*mirror_record(9)) is None
    assert gossip.mirrors["qwen"].epoch == 2


def test_two_records_of_one_serial_are_settled_alike_everywhere():
    one, two = mirror_record(1, place=1), mirror_record(1, place=2)
    kept = set()
    for order in ([one, two], [two, one]):
        gossip = Gossip(raw(CA))
        gossip.learn(*PUBLISHER.record())
        for record in order:
            gossip.learn(*record)
        kept.add((gossip.mirrors["qwen"].place, gossip.summary()))
    assert len(kept) == 1


def test_only_the_publisher_can_say_it(gossip):
    with pytest.raises(SignatureError):
        gossip.learn(*mirror_record(key=key_of("nobody")))
    assert not gossip.mirrors


def test_a_record_before_its_stream_is_taken_when_it_comes_again():
    gossip = Gossip(raw(CA))
    assert gossip.learn(*mirror_record()) is None
    gossip.learn(*PUBLISHER.record())
    assert gossip.learn(*mirror_record()) is not None


# -- what another node must learn ----------------------------------------------------------------------------


def test_the_words_for_a_version_make_another_node_know_it(gossip):
    made = [PUBLISHER.version(number, node=NODE) for number in (1, 2)]
    for version in made:
        for kind, data in (*version.begin(), *version.end()):
            gossip.learn(kind, data)
    transition = next(name for name, each in gossip.transitions.items() if each == made[1].transition)
    other = Gossip(raw(CA))
    for kind, data in gossip.words_for("qwen", {made[1].digest, transition}):
        assert other.learn(kind, data) is not None
    assert other.head("qwen") == made[1].manifest
    assert other.routes("qwen") == [made[1].transition]
    assert not other.openings
    assert not list(other.lacking())


def test_the_words_for_a_stream_name_no_other(gossip):
    other = Publisher(stream="llama")
    version = other.version(1, node=NODE)
    for kind, data in (other.record(), *version.end()):
        gossip.learn(kind, data)
    assert gossip.words_for("qwen", {version.digest}) == [PUBLISHER.record()]


def test_an_object_in_a_list_is_no_more_believed_than_one_from_a_peer(gossip):
    version = PUBLISHER.version(1, node=NODE)
    forged = key_of("nobody")
    listed = [header(version.manifest, forged), body_of(version.manifest, forged)]
    (kind, data), _ = open_list(seal_list(listed, RECORD, NONCE), RECORD)
    with pytest.raises(SignatureError):
        gossip.learn(kind, data)
    with pytest.raises(MessageError):
        gossip.learn(ObjectKind.STREAM, data[:10])
