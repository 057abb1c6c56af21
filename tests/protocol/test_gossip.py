"""Gossip: what is believed, what is kept, what is dropped, and how two nodes come to hold the same."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.versions import Publisher, header, key_of, membership, node_record, raw

from patchswarm.protocol.effects import Forget, Persist, Send
from patchswarm.protocol.errors import MessageError, SignatureError
from patchswarm.protocol.gossip import Gossip
from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.manifest import Header, NodeRecord, StreamRecord, Subject
from patchswarm.protocol.messages import Buckets, Object, ObjectKind, Pull, Summary, decode_message, encode_message
from patchswarm.protocol.signed import object_digest, peek, sign
from patchswarm.protocol.spread import COMPARED_EACH_TURN, COMPARED_EVERY, Spread

CA = key_of("ca")
NODE = digest(raw(key_of("head")))
FOREIGN = key_of("nobody")


@pytest.fixture
def gossip():
    return Gossip(raw(CA))


def learn(gossip, objects):
    return [gossip.learn(kind, data) for kind, data in objects]


def announce(number, key=None, *, subject=Subject.MANIFEST, epoch=1, stream="qwen", tag=""):
    """A signed header of a made-up body."""
    name = digest(f"{stream} {epoch} {number} {subject} {tag}".encode())
    return ObjectKind.HEADER, sign(Header(subject, stream, epoch, number, name), key or key_of(f"publisher {epoch}"))


# -- what is believed ----------------------------------------------------------------------------------------


def test_a_version_is_learned_part_by_part(gossip):
    publisher = Publisher()
    one = publisher.version(1, node=NODE)
    assert learn(gossip, [publisher.record(), *one.begin(), *one.end()]) == [
        gossip.streams["qwen"],
        peek(header(one.opening, one.key)[1], Header),
        one.opening,
        peek(header(one.manifest, one.key)[1], Header),
        peek(header(one.transition, one.key)[1], Header),
        one.manifest,
        one.transition,
    ]
    assert gossip.head("qwen") == one.manifest
    assert gossip.head_digest("qwen") == one.digest
    assert gossip.routes("qwen") == [one.transition]
    assert gossip.publishers() == {NODE}


def test_nothing_is_learned_twice(gossip):
    publisher = Publisher()
    one = publisher.version(1, node=NODE)
    said = [publisher.record(), (ObjectKind.NODE, node_record(CA, key_of("head"))), *one.begin(), *one.end()]
    learn(gossip, said)
    before = gossip.summary()
    assert learn(gossip, said) == [None] * len(said)
    assert gossip.summary() == before
    assert gossip.take_dropped() == []


def test_a_stream_record_that_the_ca_did_not_sign_is_its_senders_fault(gossip):
    record = StreamRecord("qwen", 1, raw(FOREIGN))
    with pytest.raises(SignatureError):
        gossip.learn(ObjectKind.STREAM, sign(record, FOREIGN))
    assert gossip.streams == {}


def test_of_two_publishers_for_one_epoch_the_first_stays_and_nobody_who_brings_the_other_is_blamed(gossip):
    learn(gossip, [Publisher().record()])
    other = sign(StreamRecord("qwen", 1, raw(FOREIGN)), CA)
    assert gossip.learn(ObjectKind.STREAM, other) is None
    assert gossip.streams["qwen"].publisher == raw(key_of("publisher 1"))
    assert gossip.contradictions == {"qwen"}


def test_a_header_under_a_foreign_key_is_its_senders_fault(gossip):
    learn(gossip, [Publisher().record()])
    with pytest.raises(SignatureError):
        gossip.learn(*announce(1, FOREIGN))


def test_a_header_of_an_unknown_stream_waits_for_its_record(gossip):
    said = announce(1)
    assert gossip.learn(*said) is None
    (record,) = learn(gossip, [Publisher().record()])
    assert gossip.take_early(record) == [said[1]]
    assert gossip.take_early(record) == []
    assert gossip.learn(*said) is not None


def test_a_body_that_nobody_announced_is_of_no_use(gossip):
    publisher = Publisher()
    one = publisher.version(1, node=NODE)
    assert learn(gossip, [publisher.record(), *one.end()[2:]]) == [gossip.streams["qwen"], None, None]


def test_a_body_that_does_not_fit_its_header_is_a_contradiction(gossip):
    publisher = Publisher()
    one = publisher.version(1, node=NODE)
    name = object_digest(sign(one.manifest, one.key), type(one.manifest))
    lies = [
        Header(Subject.OPENING, "qwen", 1, 1, name),
        Header(Subject.MANIFEST, "qwen", 1, 2, name),
    ]
    learn(gossip, [publisher.record()])
    for lie in lies:
        learn(gossip, [(ObjectKind.HEADER, sign(lie, one.key))])
        with pytest.raises(MessageError, match="do not agree"):
            gossip.learn(*one.end()[2])
    assert gossip.manifests == {}


def test_a_node_says_who_it_is_and_only_its_newest_word_counts(gossip):
    key = key_of("n")
    first, second = node_record(CA, key, serial=1, site="a"), node_record(CA, key, serial=2, site="b")
    assert learn(gossip, [(ObjectKind.NODE, second), (ObjectKind.NODE, first)])[1] is None
    assert gossip.nodes[digest(raw(key))].site == "b"
    assert gossip.take_dropped() == []
    third = node_record(CA, key, serial=3)
    learn(gossip, [(ObjectKind.NODE, third)])
    assert gossip.take_dropped() == [(object_digest(second, NodeRecord), None)]
    assert gossip.take_dropped() == []


def test_a_node_record_under_another_key_is_refused(gossip):
    record = peek(node_record(CA, key_of("n")), NodeRecord)
    with pytest.raises(SignatureError):
        gossip.learn(ObjectKind.NODE, sign(record, FOREIGN))


def test_a_node_that_shows_anothers_membership_is_refused(gossip):
    borrowed = membership(CA, raw(key_of("member")))
    with pytest.raises(SignatureError, match="another node's membership"):
        gossip.learn(ObjectKind.NODE, node_record(CA, key_of("n"), member=borrowed))
    own = membership(FOREIGN, raw(key_of("n")))
    with pytest.raises(SignatureError):
        gossip.learn(ObjectKind.NODE, node_record(CA, key_of("n"), member=own))
    assert gossip.nodes == {}


@given(st.sampled_from(ObjectKind), st.binary(min_size=65, max_size=300))
def test_noise_is_refused_or_of_no_use(kind, data):
    gossip = Gossip(raw(CA))
    learn(gossip, [Publisher().record()])
    with contextlib.suppress(MessageError, SignatureError):
        assert gossip.learn(kind, data) is None


# -- what is kept --------------------------------------------------------------------------------------------


@pytest.fixture
def window(monkeypatch):
    """A short memory."""
    monkeypatch.setattr("patchswarm.protocol.gossip.WINDOW", 4)
    return 4


def kept(gossip, stream="qwen"):
    return sorted((each.epoch, each.version, each.subject.name) for each in gossip.headers(stream))


def test_versions_within_the_window_are_kept_and_older_ones_dropped_with_their_bodies(gossip, window):
    publisher = Publisher()
    versions = [publisher.version(number, node=NODE) for number in range(1, 8)]
    learn(gossip, [publisher.record()])
    for version in versions:
        learn(gossip, [*version.begin(), *version.end()])
    assert {each.version for each in gossip.manifests.values()} == {4, 5, 6, 7}
    assert {each.version for each in gossip.routes("qwen")} == {4, 5, 6, 7}
    assert [each.version for each in gossip.openings.values()] == [7], "the newest roster is still of use"
    gone = [body for _, body in gossip.take_dropped() if body is not None]
    assert [each for each in gone if each in [v.transition for v in versions]] == [v.transition for v in versions[:3]]
    assert all(gossip.get(v.digest) is None for v in versions[:3])


def test_an_old_header_is_not_taken_again(gossip, window):
    learn(gossip, [Publisher().record(), *(announce(number) for number in range(1, 9))])
    assert gossip.learn(*announce(4)) is None
    assert kept(gossip) == [(1, number, "MANIFEST") for number in (5, 6, 7, 8)]


def test_openings_of_versions_that_exist_are_dropped(gossip, window):
    opened = [announce(number, subject=Subject.OPENING) for number in (3, 4, 5)]
    learn(gossip, [Publisher().record(), *opened, announce(4)])
    assert kept(gossip) == [(1, 4, "MANIFEST"), (1, 4, "OPENING"), (1, 5, "OPENING")]


def test_a_new_epoch_comes_after_every_version_of_the_old_one(gossip):
    learn(gossip, [Publisher().record(), Publisher(epoch=2).record()])
    learn(gossip, [announce(90), announce(1, epoch=2)])
    assert gossip.head_header("qwen").epoch == 2
    assert gossip.streams["qwen"].epoch == 2
    assert gossip.publisher("qwen", 1) == raw(key_of("publisher 1"))


def test_a_retired_key_signs_nothing_for_the_new_epoch(gossip):
    learn(gossip, [Publisher().record(), Publisher(epoch=2).record()])
    with pytest.raises(SignatureError):
        gossip.learn(*announce(1, key_of("publisher 1"), epoch=2))


def test_two_epochs_are_remembered_each_within_its_window(gossip, window):
    for epoch in (1, 2, 3):
        learn(gossip, [Publisher(epoch=epoch).record()])
        learn(gossip, [announce(number, epoch=epoch) for number in range(1, 9)])
    assert {epoch for epoch, _, _ in kept(gossip)} == {2, 3}
    assert len(kept(gossip)) == 2 * window


def test_a_publisher_cannot_fill_the_memory_with_headers(gossip, monkeypatch):
    monkeypatch.setattr("patchswarm.protocol.gossip.MAX_HEADERS", 10)
    learn(gossip, [Publisher().record()])
    flood = [announce(5, subject=Subject.TRANSITION, tag=str(number)) for number in range(15)]
    assert sum(each is not None for each in learn(gossip, flood)) == 10
    assert gossip.learn(*announce(5)) is not None, "the version itself still gets through"


def test_more_nodes_or_streams_than_there_is_room_for_blame_nobody(gossip, monkeypatch):
    monkeypatch.setattr("patchswarm.protocol.census.MAX_NODES", 2)
    monkeypatch.setattr("patchswarm.protocol.gossip.MAX_STREAMS", 2)
    nodes = [(ObjectKind.NODE, node_record(CA, key_of(name))) for name in "abc"]
    streams = [Publisher(stream=name).record() for name in ("x", "y", "z")]
    assert [each is not None for each in learn(gossip, nodes)] == [True, True, False]
    assert [each is not None for each in learn(gossip, streams)] == [True, True, False]


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_all_nodes_keep_the_same_in_whatever_order_they_learn(chance):
    """Once everything was offered twice, in any order: some is of use only after its stream record came."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchswarm.protocol.gossip.WINDOW", 3)
        said = [
            *(Publisher(epoch=epoch).record() for epoch in (1, 2, 3)),
            *(
                announce(chance.randrange(1, 9), epoch=chance.randrange(1, 4), subject=Subject(chance.randrange(3)))
                for _ in range(14)
            ),
            *((ObjectKind.NODE, node_record(CA, key_of(chance.randrange(3)), serial=serial)) for serial in range(6)),
        ]
        holders = [Gossip(raw(CA)) for _ in range(2)]
        for gossip in holders:
            for _ in range(4):
                chance.shuffle(said)
                learn(gossip, said)
        assert holders[0].summary() == holders[1].summary()


def test_what_is_durable_is_learned_again_in_order(gossip):
    publisher = Publisher()
    one = publisher.version(1, node=NODE)
    learn(gossip, [publisher.record(), (ObjectKind.NODE, node_record(CA, key_of("n"))), *one.begin(), *one.end()])
    again = Gossip(raw(CA))
    for kind, _, data in gossip.durable():
        assert again.learn(kind, data) is not None
    assert again.summary() == gossip.summary()
    assert again.head("qwen") == one.manifest


def test_an_attempt_is_finished_once_its_manifest_is_announced_unless_another_attempt_was(gossip):
    publisher = Publisher()
    won, lost = publisher.version(1, node=NODE), publisher.version(1, node=NODE)
    learn(gossip, [publisher.record(), *won.begin(), *lost.begin()])
    assert not gossip.finished("qwen", (1, 1), won.attempt)
    learn(gossip, won.end()[:1])
    assert gossip.finished("qwen", (1, 1), won.attempt)
    assert gossip.finished("qwen", (1, 1), lost.attempt), "which of the two, only the manifest says"
    learn(gossip, won.end()[2:3])
    assert gossip.finished("qwen", (1, 1), won.attempt)
    assert not gossip.finished("qwen", (1, 1), lost.attempt)


# -- two nodes -----------------------------------------------------------------------------------------------


class Node:
    """A gossip and its spread, with one link to another node."""

    def __init__(self):
        self.gossip = Gossip(raw(CA))
        self.effects = []
        self.learned = []
        self.links = {0: Link(0, b"", b"", True, 0.0, 0.0, peek(node_record(CA, key_of("peer")), NodeRecord))}
        self.spread = Spread(
            self.gossip,
            self.links,
            self.effects.append,
            lambda value, _: self.learned.append(value),
            lambda _: None,
            lambda stream: stream != "ignored",
        )

    def sent(self):
        messages = [effect.message for effect in self.effects if isinstance(effect, Send)]
        self.effects[:] = [effect for effect in self.effects if not isinstance(effect, Send)]
        return messages


def exchange(one, two, now_s=0.0):
    """Carry messages between two nodes until both are silent; returns how many there were."""
    count = 0
    while True:
        moved = [(two, one.sent()), (one, two.sent())]
        if not any(messages for _, messages in moved):
            return count
        for receiver, messages in moved:
            for message in messages:
                count += 1
                receiver.spread.receive(receiver.links[0], decode_message(encode_message(message)), now_s)


def random_objects(chance):
    """Stream records, node records, versions with some parts missing."""
    said = [Publisher(stream=f"s{number}").record() for number in range(3)]
    for number in range(20):
        said += [(ObjectKind.NODE, node_record(CA, key_of(number), serial=serial)) for serial in (1, 2)]
    for number in range(3):
        publisher = Publisher(stream=f"s{number}")
        for version in range(1, 5):
            made = publisher.version(version, node=NODE)
            said += [*made.begin(), *made.end()]
    return said


@pytest.mark.parametrize("seed", range(8))
def test_anti_entropy_makes_two_nodes_hold_the_same(seed):
    chance = random.Random(seed)
    one, two = Node(), Node()
    said = random_objects(chance)
    share = [chance.randrange(3) for _ in said]  # everything is somewhere
    for number, node in enumerate((one, two)):
        for _ in range(2):
            learn(node.gossip, [each for each, whose in zip(said, share, strict=True) if whose in (number, 2)])
    bodies = set(one.gossip.transitions) | set(two.gossip.transitions)
    for second in range(4):
        one.spread.tick(float(3 * second))
        two.spread.tick(float(3 * second))
        exchange(one, two, 3.0 * second)
    assert one.gossip.summary() == two.gossip.summary()
    assert set(one.gossip.transitions) == set(two.gossip.transitions) == bodies


def test_equal_sets_cost_one_digest_each():
    one, two = Node(), Node()
    for node in (one, two):
        learn(node.gossip, random_objects(random.Random(1)))
        node.spread.tick(0.0)
    assert exchange(one, two) == 2


def with_links(count):
    """A node with so many links."""
    node = Node()
    record = node.links[0].record
    for number in range(1, count):
        node.links[number] = Link(number, b"", b"", True, 0.0, 0.0, record)
    return node


def compared(node, second):
    """The links that a node compares sets with in one turn."""
    node.spread.tick(float(second))
    links = [each.link for each in node.effects if isinstance(each, Send) and isinstance(each.message, Summary)]
    node.effects.clear()
    return links


def test_with_few_links_every_one_is_compared_each_second():
    node = with_links(COMPARED_EACH_TURN)
    assert compared(node, 1) == compared(node, 2) == list(range(COMPARED_EACH_TURN))


@pytest.mark.parametrize("count", [9, 50, 400])
def test_with_many_links_a_part_is_compared_each_second_and_all_within_a_few(count):
    node = with_links(count)
    turns = [compared(node, second) for second in range(COMPARED_EVERY)]
    assert {link for turn in turns for link in turn} == set(range(count))
    assert all(
        COMPARED_EACH_TURN <= len(turn) <= max(2 * COMPARED_EACH_TURN, count / COMPARED_EVERY + 1) for turn in turns
    )


@pytest.mark.parametrize("word", [Summary(bytes(32)), Buckets(bytes(2048))], ids=["digest", "buckets"])
def test_where_sets_differed_the_next_second_compares_again_and_then_no_more(word):
    node, link = with_links(50), 0  # its own turn is the eighth
    assert link not in compared(node, 1)
    node.spread.receive(node.links[link], word, 1.5)
    assert link in compared(node, 2)
    assert link not in compared(node, 3)


def test_a_nodes_own_record_reaches_every_peer_without_a_comparison():
    node = with_links(50)
    node.spread.publish(ObjectKind.NODE, node_record(CA, key_of("n")), 0.0)
    told = [each.link for each in node.effects if isinstance(each, Send) and isinstance(each.message, Object)]
    assert sorted(told) == list(range(50))


def test_the_record_in_a_peers_hello_is_not_pushed_on_to_the_others():
    node = with_links(50)
    node.spread.introduce(node.links[3], node_record(CA, key_of("n")), 0.0)
    assert len(node.gossip.nodes) == 1
    assert not node.sent()


def test_a_node_that_knows_nothing_learns_all_in_one_round():
    one, two = Node(), Node()
    learn(two.gossip, random_objects(random.Random(1)))
    one.spread.greet(one.links[0])
    exchange(one, two)
    assert one.gossip.summary() == two.gossip.summary()
    assert set(one.gossip.transitions) == set(two.gossip.transitions)


def test_a_large_set_reaches_a_newcomer_second_by_second_without_flooding_its_connection(monkeypatch):
    monkeypatch.setattr("patchswarm.protocol.spread.GIVE_BYTES", 3000)
    one, two = Node(), Node()
    learn(two.gossip, random_objects(random.Random(1)))
    for second in range(100):
        one.spread.tick(float(second))
        two.spread.tick(float(second))
        before = sum(len(data) for _, _, data in one.gossip.durable())
        exchange(one, two, float(second))
        assert sum(len(data) for _, _, data in one.gossip.durable()) - before < 3000 + 1500
        if set(one.gossip.transitions) == set(two.gossip.transitions):
            break
    assert 3 <= second < 99
    assert one.gossip.summary() == two.gossip.summary()


def test_junk_that_waited_for_a_stream_record_blames_nobody():
    node = Node()
    node.spread._take(node.links[0], *announce(1, FOREIGN), 0.0)
    node.spread._take(node.links[0], *announce(2), 0.0)
    node.spread._take(node.links[0], *Publisher().record(), 0.0)
    assert [each.version for each in node.gossip.headers("qwen")] == [2]


def test_bodies_of_streams_that_nobody_follows_are_not_pulled():
    node = Node()
    publisher = Publisher(stream="ignored")
    made = publisher.version(1, node=NODE)
    for kind, data in [publisher.record(), *made.end()[:2]]:
        node.spread._take(node.links[0], kind, data, 0.0)
    node.spread.tick(10.0)
    assert not [message for message in node.sent() if isinstance(message, Pull)]


def test_what_is_learned_is_made_durable_and_what_it_replaces_is_forgotten():
    node = Node()
    records = [node_record(CA, key_of("n"), serial=serial) for serial in (1, 2)]
    for record in records:
        node.spread.publish(ObjectKind.NODE, record, 0.0)
    names = [object_digest(record, NodeRecord) for record in records]
    assert [effect for effect in node.effects if not isinstance(effect, Send)] == [
        Persist(ObjectKind.NODE, names[0], records[0]),
        Persist(ObjectKind.NODE, names[1], records[1]),
        Forget((names[0],)),
    ]


def test_a_body_that_does_not_come_is_asked_of_another():
    node = Node()
    other = Link(1, b"", b"x", True, 0.0, 0.0, node.links[0].record)
    publisher = Publisher()
    made = publisher.version(1, node=NODE)
    for kind, data in [publisher.record(), made.end()[0]]:
        node.spread._take(node.links[0], kind, data, 0.0)
    node.links[1] = other
    node.effects.clear()
    node.spread.tick(1.0)
    assert not [each for each in node.effects if isinstance(each, Send) and isinstance(each.message, Pull)]
    node.spread.tick(2.5)
    assert [each.link for each in node.effects if isinstance(each, Send) and isinstance(each.message, Pull)] == [1]


def test_a_body_asked_for_before_it_is_here_is_sent_when_it_comes():
    node = Node()
    publisher = Publisher()
    made = publisher.version(1, node=NODE)
    for kind, data in [publisher.record(), made.end()[0]]:
        node.spread.publish(kind, data, 0.0)
    node.sent()
    node.spread.receive(node.links[0], Pull((made.digest,)), 0.0)
    assert node.sent() == []
    node.spread._take(node.links[0], *made.end()[2], 0.0)
    assert [message.data for message in node.sent()] == [made.end()[2][1]]
