"""Who is a member and breaks the rules costs itself the link, wastes what is bounded, and stops nobody else."""

import asyncio
import resource
import time

import msgpack
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from daemon.single import until
from support.raw_member import RawMember
from support.versions import Publisher, key_of, node_record

from patchswarm.daemon.fleet import doors
from patchswarm.daemon.fleet import peer as peers
from patchswarm.daemon.fleet.shun import FORGIVEN_S, Shunned
from patchswarm.protocol import allowance, census, gossip, spread
from patchswarm.protocol.framing import MAX_FRAME_BYTES, FrameDecoder, encode_frame
from patchswarm.protocol.manifest import Header, Subject
from patchswarm.protocol.messages import (
    BlockReject,
    BlockRequest,
    Claim,
    Have,
    Headers,
    Hello,
    Inventory,
    Lane,
    Lossy,
    Object,
    ObjectKind,
    Page,
    Piece,
    Ping,
    Pong,
    Pull,
    Reject,
    Renewed,
    Request,
    Widen,
    encode_message,
)
from patchswarm.protocol.series import MAX_CHUNKS
from patchswarm.protocol.signed import sign

pytestmark = pytest.mark.timeout(90)
NAME, ATTEMPT = bytes(32), bytes(16)


@pytest.fixture
async def hostile(head, root):
    """A raw member that is connected and has said nothing."""
    member = await RawMember(head, root / "hostile").dial()
    yield member
    await member.close()


def again_as(member):
    """Another connection of the same member."""
    other = RawMember.__new__(RawMember)
    other.__dict__ |= member.__dict__ | {"heard": [], "decoder": FrameDecoder()}
    return other


async def lives_on(head, fleet, checkpoints):
    """Whether the daemon still serves honest members."""
    honest = await fleet("honest")
    made = await head.publish("qwen", next(checkpoints))
    return (await honest.committed("qwen", made.slot.version)).manifest == made.slot.manifest


# -- frames and messages -------------------------------------------------------------------------------------


def deep(depth):
    return b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        bytes(4),
        encode_frame(deep(60_000)),
        encode_frame(b"\xdd\xff\xff\xff\xff"),
        encode_frame(b"\xdb\xff\xff\xff\xff"),
        encode_frame(b"\xdf\xff\xff\xff\xff"),
        encode_frame(b"\xc9\xff\xff\xff\xff\x01"),
        encode_frame(msgpack.packb([99, 1])),
        encode_frame(msgpack.packb([1, -1])),
        encode_frame(msgpack.packb([0, 1, "text for bytes" * 20])),
        encode_frame(encode_message(Ping(1))[:-1]),
    ],
    ids=[
        "frame bomb",
        "frame over the limit",
        "empty frame",
        "nesting bomb",
        "array bomb",
        "string bomb",
        "map bomb",
        "extension bomb",
        "unknown message",
        "number out of range",
        "text for bytes",
        "cut message",
    ],
)
@pytest.mark.parametrize("greeted", [True, False], ids=["after hello", "as the first word"])
async def test_malformed_message_costs_its_sender_the_link(head, hostile, data, greeted):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if greeted:
        await hostile.greet()
    hostile.raw(data)
    assert await hostile.hung_up()
    await until(lambda: not head.fleet.peers)
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < 64 * 1024 * 1024, "no length is believed before it is checked"


@pytest.mark.parametrize(
    "message",
    [Ping(1), Pull((NAME,)), Request(0, NAME), Have(ATTEMPT, ((0, 1),)), Widen(), Lossy(), Lane(ATTEMPT, NAME)],
    ids=lambda message: type(message).__name__,
)
async def test_message_before_hello_costs_its_sender_the_link(head, hostile, message):
    hostile.say(message)
    assert await hostile.hung_up()


async def test_hello_of_another_node_is_refused(head, hostile):
    hostile.say(Hello(1, head.fleet._record.sign()))
    assert await hostile.hung_up()


async def test_hello_with_another_nodes_membership_is_refused(head, hostile):
    hostile.say(Hello(1, node_record(head.identity.ca_key, hostile.own.node_key, member=head.identity.membership)))
    assert await hostile.hung_up()
    assert hostile.own.node_id not in head.fleet.swarm.gossip.nodes


async def test_second_hello_is_refused(head, hostile):
    await hostile.greet()
    hostile.say(Hello(1, hostile.record()))
    assert await hostile.hung_up()


@pytest.mark.parametrize(
    "message",
    [
        Have(ATTEMPT, ((0, MAX_CHUNKS),)),
        Have(ATTEMPT, ((2**32 - 2, 2**32 - 1),)),
        Claim(ATTEMPT, 0, ((0, MAX_CHUNKS),)),
        Lane(ATTEMPT, NAME),
        Object(ObjectKind.STREAM, bytes(100)),
        Object(ObjectKind.NODE, bytes(100)),
        Object(ObjectKind.REVOCATION, bytes(100)),
        Object(ObjectKind.BEACON, bytes(100)),
        Page(bytes(100)),
        Headers((bytes(100),)),
        Inventory(0, (NAME,) * 1850),
    ],
    ids=[
        "bitfield too long",
        "bitfield beyond everything",
        "claim too long",
        "lane from the side that dialled",
        "forged stream record",
        "forged node record",
        "forged revocation",
        "forged beacon",
        "forged page",
        "forged header",
        "inventory too long",
    ],
)
async def test_what_no_member_may_say_costs_its_sender_the_link(head, hostile, message):
    await hostile.greet()
    hostile.say(message)
    assert await hostile.hung_up()


async def test_forged_manifest_header_costs_its_sender_the_link_and_changes_nothing(head, hostile, checkpoints):
    await head.publish("qwen", next(checkpoints))
    before = head.fleet.swarm.gossip.head_header("qwen")
    await hostile.greet()
    hostile.say(Headers((sign(Header(Subject.MANIFEST, "qwen", 1, 9, NAME), hostile.own.node_key),)))
    assert await hostile.hung_up()
    assert head.fleet.swarm.gossip.head_header("qwen") == before


async def test_headers_of_streams_that_do_not_exist_fill_a_bounded_room(head, hostile, monkeypatch):
    monkeypatch.setattr(gossip, "MAX_EARLY", 50)
    await hostile.greet()
    key = key_of("nobody")
    for number in range(20):
        made_up = (Header(Subject.MANIFEST, f"x{number}", 1, each, NAME) for each in range(10))
        hostile.say(Headers(tuple(sign(header, key) for header in made_up)))
    hostile.say(Ping(7))
    assert (await hostile.hear(Pong)).stamp == 7, "who passes on what it cannot judge is not at fault"
    assert len(head.fleet.swarm.gossip._early) == 50


async def test_who_broke_a_rule_comes_back_only_after_a_while(head, fleet, hostile, checkpoints):
    await hostile.greet()
    hostile.raw(bytes(4))
    assert await hostile.hung_up()
    await until(lambda: head.fleet.doors.shunned.is_shunned(hostile.own.node_public_key, time.monotonic()))
    again = again_as(hostile)
    await again.dial()
    assert await again.hear(Hello) is None, "it is not even greeted"
    await until(lambda: not head.fleet.doors.shunned.is_shunned(hostile.own.node_public_key, time.monotonic()))
    later = again_as(hostile)
    await later.dial()
    assert await later.greet()
    assert await lives_on(head, fleet, checkpoints)
    for each in (again, later):
        await each.close()


def test_each_offence_is_longer_remembered_and_the_last_forgiven():
    shunned, key = Shunned(), bytes(32)
    for count, wait_s in enumerate((1, 2, 4, 8, 16, 32, 60, 60)):
        at_s = 100.0 * count
        shunned.offended(key, at_s)
        assert shunned.is_shunned(key, at_s + wait_s - 0.1)
        assert not shunned.is_shunned(key, at_s + wait_s + 0.1)
    assert not shunned.is_shunned(bytes([1] * 32), 700.0), "nobody else"
    shunned.offended(key, 700.0 + FORGIVEN_S + 1)
    assert not shunned.is_shunned(key, 700.0 + FORGIVEN_S + 2.5), "it begins anew"


# -- floods --------------------------------------------------------------------------------------------------


async def test_request_flood_is_answered_and_bounded(head, fleet, hostile, checkpoints):
    """What fits the allowance is answered at once, the rest as the allowance fills up: it costs a bounded time."""
    await hostile.greet()
    at_once = int(allowance.BURST / allowance.REFUSAL)
    asked, began_s = at_once + 300, time.monotonic()
    for number in range(asked):
        hostile.say(Request(number, NAME))
    for _ in range(asked):
        assert await hostile.hear(Reject, 30) is not None
    assert time.monotonic() - began_s > 200 / (allowance.RATE / allowance.REFUSAL)
    assert sum(peer._over_lanes.qsize() + peer._secure.qsize() for peer in head.fleet.peers.values()) == 0
    assert await lives_on(head, fleet, checkpoints)


async def test_member_that_reads_nothing_is_dropped_and_not_fed(head, fleet, hostile, checkpoints, monkeypatch):
    monkeypatch.setattr(peers, "MAX_QUEUED_BYTES", 64 * 1024)
    monkeypatch.setattr(allowance, "PING", 0.0)
    await hostile.greet()
    hostile.reader._transport.pause_reading()
    for number in range(200_000):
        if not head.fleet.peers:
            break
        hostile.say(Ping(number))
        if number % 2000 == 0:
            await asyncio.sleep(0)
    await until(lambda: not head.fleet.peers)
    assert await lives_on(head, fleet, checkpoints)


async def test_object_flood_costs_its_sender_the_link(head, hostile, monkeypatch):
    monkeypatch.setattr(spread, "TAKE_BYTES", 20_000)
    await hostile.greet()
    for _ in range(100):
        hostile.say(Object(ObjectKind.NODE, hostile.record()))
    assert await hostile.hung_up()


async def test_node_that_talks_of_itself_without_end_is_heard_so_often_and_no_more(head, hostile, monkeypatch):
    monkeypatch.setattr(census, "MAX_RECORDS", 5)
    await hostile.greet()
    heard = 0
    learn = head.fleet.swarm.gossip.learn

    def counting(kind, data):
        nonlocal heard
        new = learn(kind, data)
        heard += new is not None
        return new

    head.fleet.swarm.gossip.learn = counting
    head.fleet.swarm.gossip.tell_time(head.fleet.swarm.gossip.members.unix_s)
    for _ in range(60):
        hostile.say(Object(ObjectKind.NODE, hostile.record()))
    hostile.say(Ping(1))
    assert await hostile.hear(Pong) is not None
    assert heard <= 15, "a second may have begun anew, or two"


async def test_one_member_has_few_connections(head, hostile, monkeypatch):
    monkeypatch.setattr(doors, "MAX_LINKS", 2)
    others = []
    for _ in range(5):
        other = again_as(hostile)
        others.append(await other.dial())
    await until(lambda: len(head.fleet.peers) == 2)
    await until(lambda: sum(other.reader.at_eof() for other in others) >= 3)
    for other in others:
        await other.close()


# -- chunks and blocks ---------------------------------------------------------------------------------------


async def test_bytes_that_nobody_asked_for_are_not_kept(head, hostile):
    await hostile.greet()
    hostile.say(Piece(0, 0, 1000, bytes(1000)), Ping(1))
    assert await hostile.hear(Pong) is not None
    assert not list(head.home.chunks.rglob("*.chunk"))


async def test_block_that_is_not_held_is_rejected(head, fleet, hostile, checkpoints):
    await hostile.greet()
    hostile.say(BlockRequest(1, NAME, 0), BlockRequest(2, NAME, 2**32 - 1))
    assert {(await hostile.hear(BlockReject)).request for _ in range(2)} == {1, 2}
    assert await lives_on(head, fleet, checkpoints)


async def test_certificates_that_are_none_end_nothing(head, fleet, hostile, checkpoints):
    """Also such as the library refuses with an error of its own: one message would have ended the daemon."""
    await hostile.greet()
    issued = hostile.own.certificate.public_bytes(Encoding.DER)
    for der in (issued.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01", 1), b"\x30\x82\x00\x01x"):
        hostile.say(Renewed(der, hostile.own.membership))
    hostile.say(Ping(1))
    assert await hostile.hear(Pong) is not None
    assert await lives_on(head, fleet, checkpoints)


async def test_a_mistake_in_a_piece_of_work_costs_that_piece_alone(head, fleet, checkpoints):
    async def mistaken():
        raise OverflowError("int too large to convert to float")

    head.fleet._spawn(mistaken())
    assert await lives_on(head, fleet, checkpoints)


async def test_false_have_and_rejects_without_end_only_delay(head, fleet, hostile, checkpoints):
    """It offers every chunk of the version and brings none: the honest member gets it from the head."""
    await hostile.greet()
    made = await head.publish("qwen", next(checkpoints))
    (transition,) = head.fleet.swarm.gossip.routes("qwen")
    hostile.say(Have(transition.attempt, ((0, 5),)))
    honest = await fleet("honest")
    assert (await honest.committed("qwen", 1)).manifest == made.slot.manifest


async def test_new_epoch_finds_room_beside_headers_of_a_stolen_key(monkeypatch):
    monkeypatch.setattr(gossip, "MAX_HEADERS", 10)
    held = gossip.Gossip(key_of("ca").public_key().public_bytes_raw())
    held.learn(*Publisher().record())
    for number in range(1, 100):
        held.learn(ObjectKind.HEADER, sign(Header(Subject.MANIFEST, "qwen", 1, number, NAME), key_of("publisher 1")))
    held.learn(*Publisher(epoch=2).record())
    new = sign(Header(Subject.MANIFEST, "qwen", 2, 1, bytes([1] * 32)), key_of("publisher 2"))
    assert held.learn(ObjectKind.HEADER, new) is not None
    assert held.head_header("qwen").epoch == 2
