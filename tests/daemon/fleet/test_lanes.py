"""Lanes between two whole daemons: what may come over them, and that damage on the path blames nobody."""

import asyncio
import contextlib
import socket
from types import SimpleNamespace

import pytest
from daemon.single import member_of, until
from support.streams import model, read_tree, write_tree

from patchswarm.daemon.fleet import lanes as lanes_module
from patchswarm.daemon.fleet import peer as peers
from patchswarm.daemon.fleet.lane import Lane
from patchswarm.daemon.fleet.lanes import FIRST_BUFFER_BYTES, LaneDesk, LaneWatch
from patchswarm.protocol.ids import digest
from patchswarm.protocol.lane import LaneCodec, encode_preamble

STREAM = "qwen"


@pytest.fixture
async def member(head, root):
    async with member_of(head, root) as running:
        await until(lambda: lanes_of(running) and lanes_of(head))
        yield running


def lanes_of(single):
    return [lane for peer in single.fleet.peers.values() for lane in peer.lanes]


def link_of(single):
    (link,) = single.fleet.swarm.connected()
    return link


async def travels(head, member, root, steps=0):
    """A version gets from the head to the member, byte for byte."""
    tree = model(1, steps)
    made = await head.publish(STREAM, write_tree(root / "trainer" / str(steps), tree))
    slot = await member.committed(STREAM, made.slot.version)
    assert read_tree(slot.path) == tree
    return made


def noting_ways(monkeypatch, head):
    """Notes for each chunk of the head's whether it left over a lane or over TLS."""
    ways = []
    over_tls = peers.Peer._over_tls

    async def noted(self, request, sealed):
        ways.append("tls")
        await over_tls(self, request, sealed)

    monkeypatch.setattr(peers.Peer, "_over_tls", noted)
    return ways


async def test_chunks_go_over_lanes(head, member, root, monkeypatch):
    ways = noting_ways(monkeypatch, head)
    await travels(head, member, root)
    assert ways == []
    assert head.fleet.lane_count(0) >= 1


async def test_a_body_damaged_on_the_way_is_asked_again_over_tls_and_blames_nobody(head, member, root, monkeypatch):
    ways = noting_ways(monkeypatch, head)
    send, damaged = Lane.send, []

    async def damaging(self, name, sealed):
        if len(damaged) < 2:
            damaged.append(name)
            sealed = sealed[:-1] + bytes([sealed[-1] ^ 1])
        return await send(self, name, sealed)

    monkeypatch.setattr(Lane, "send", damaging)
    await travels(head, member, root)
    assert damaged
    assert "tls" in ways
    assert link_of(member).strikes == 0
    assert link_of(member).damaged == set()


async def test_a_header_with_a_bad_mac_closes_the_lane_and_what_it_carried_is_asked_again(
    head, member, root, monkeypatch
):
    header, spoiled = LaneCodec.header, []

    def spoiling(self, name, size):
        data = header(self, name, size)
        if not spoiled:
            spoiled.append(name)
            data = data[:-1] + bytes([data[-1] ^ 1])
        return data

    before = lanes_of(member)
    monkeypatch.setattr(LaneCodec, "header", spoiling)
    await travels(head, member, root)
    assert spoiled
    assert not set(before) <= set(lanes_of(member)), "the lane was closed"
    assert link_of(member).strikes == 0


async def test_a_chunk_that_nobody_asked_for_closes_the_lane_and_is_not_kept(head, member, root):
    sealed = b"nobody asked for this chunk"
    (lane, *_) = lanes_of(head)
    await lane.send(digest(sealed), sealed)
    await until(lambda: lane not in lanes_of(head))
    assert not member.store.has(digest(sealed))
    await travels(head, member, root)


async def test_a_chunk_of_another_size_than_was_asked_for_closes_the_lane(head, member, root, monkeypatch):
    send, cut = Lane.send, []

    async def cutting(self, name, sealed):
        if not cut:
            cut.append(name)
            sealed = sealed[:-1]
        return await send(self, name, sealed)

    monkeypatch.setattr(Lane, "send", cutting)
    await travels(head, member, root)
    assert cut


async def test_where_no_lane_can_be_dialled_chunks_go_over_tls(head, root, monkeypatch):
    async def blocked(self, peer, offer):
        return None

    monkeypatch.setattr(LaneDesk, "dial", blocked)
    monkeypatch.setattr(peers, "LANE_WAIT_S", 0.05)
    ways = noting_ways(monkeypatch, head)
    async with member_of(head, root) as member:
        await travels(head, member, root)
        assert ways
        assert lanes_of(member) == []


async def test_lanes_that_broke_come_back(head, member, root, monkeypatch):
    monkeypatch.setattr(peers, "GROWTH_S", 0.02)
    monkeypatch.setattr(peers, "LANE_RETRY_S", 0.05)
    for lane in lanes_of(head):
        lane.close()
    await until(lambda: lanes_of(head) == [] or not set(lanes_of(head)))
    await until(lambda: lanes_of(head) and lanes_of(member))
    await travels(head, member, root)


async def refused(head, preamble):
    """Whether the head hangs up on a lane with this preamble."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(head.config.node.listen.rpartition(":")[2]))
    writer.write(preamble)
    async with asyncio.timeout(10):
        try:
            end = await reader.read()
        except ConnectionResetError:
            end = b""
    writer.close()
    with contextlib.suppress(ConnectionResetError):
        await writer.wait_closed()
    return end == b""


async def test_a_lane_needs_an_offer_and_its_key(head, member):
    assert await refused(head, encode_preamble(bytes(16), bytes(32)))
    desk = head.fleet._desk
    (peer,) = head.fleet.peers.values()
    peer.send = lambda message: None  # the member does not hear of this offer
    desk.offer(peer)
    del peer.send
    ((lane, (_, key, _)),) = [(lane, offer) for lane, offer in desk._offers.items() if offer[0] is peer][-1:]
    assert await refused(head, encode_preamble(lane, bytes(32)))
    assert lane in desk._offers, "a wrong key does not spend the offer"
    count = len(peer.lanes)
    _, writer = await asyncio.open_connection("127.0.0.1", int(head.config.node.listen.rpartition(":")[2]))
    writer.write(encode_preamble(lane, key))
    await until(lambda: len(peer.lanes) == count + 1)
    assert await refused(head, encode_preamble(lane, key)), "an offer is good for one lane"
    writer.close()
    await until(lambda: len(peer.lanes) == count)


async def test_a_peer_has_no_more_lanes_than_the_limit(head, member):
    (peer,) = head.fleet.peers.values()
    for _ in range(20):
        head.fleet._desk.offer(peer)
    await until(lambda: len(peer.lanes) == head.config.limits.lanes)
    assert len(lanes_of(member)) <= head.config.limits.lanes


async def test_a_gossiped_address_that_is_none_hurts_nobody(head, member, root):
    for address in ("nonsense", "a..b:1", "x" * 70 + ":1", "host\0:1", "[::1:7", "\ud7ff:99", "127.0.0.1:1"):
        head.fleet._spawn(head.fleet.doors.dial(address))
    await asyncio.sleep(0)
    await travels(head, member, root)


async def test_the_memory_of_chunks_in_flight_is_bounded_and_lanes_wait(head, member, root, monkeypatch):
    traffic = member.fleet._traffic
    traffic._memory_limit = 100_000
    gate, keep, most = asyncio.Event(), traffic.keep, []

    async def slow(name, body):
        most.append(traffic._pending_bytes)
        await gate.wait()
        return await keep(name, body)

    monkeypatch.setattr(traffic, "keep", slow)
    task = asyncio.create_task(travels(head, member, root))
    await until(lambda: most and max(most) > 25_000)
    assert not any(lane._transport.is_reading() for lane in lanes_of(member))
    gate.set()
    await task
    await until(lambda: all(lane._transport.is_reading() for lane in lanes_of(member)))
    assert max(most) < 1_000_000
    assert traffic._pending_bytes == 0


async def test_on_a_path_that_loses_packets_a_lane_changes_its_congestion_control(head, member, root):
    (peer,) = head.fleet.peers.values()
    changed = []
    peer.congestion.choose = lambda connection: changed.append(connection) or True
    await travels(head, member, root)
    assert changed == []
    peer.congestion.uplink.bear_loss()
    await travels(head, member, root, steps=1)
    await until(lambda: changed)
    assert len(changed) == len(peer.lanes), "once each"


async def test_a_lane_begins_with_a_buffer_for_long_paths_that_the_kernel_may_widen(head, member):
    for lane in (*lanes_of(head), *lanes_of(member)):
        connection = lane._transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= FIRST_BUFFER_BYTES
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


async def test_lanes_are_watched_as_long_as_anything_leaves_and_not_for_ever(monkeypatch):
    monkeypatch.setattr(lanes_module, "LOOK_S", 0.001)
    looks = []
    watch = LaneWatch(lambda: [SimpleNamespace(watch=lambda: looks.append(1) or len(looks) % 5 != 0)])
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0.02)
    assert looks == []
    watch.sent()
    await until(lambda: len(looks) == 5)
    await asyncio.sleep(0.02)
    assert len(looks) == 5
    watch.sent()
    await until(lambda: len(looks) == 10)
    running.cancel()
