"""A daemon that is told to stop in the middle of transfers: it hands over, and whoever fetched from it goes on."""

import asyncio
import time

import numpy as np
import pytest
from daemon.nodes import free_port
from daemon.single import head_of, member_of, short_path, until
from support.checkpoints import files_of, model, write

from patchswarm.daemon.config import Limits
from patchswarm.daemon.fleet import leaving
from patchswarm.protocol.messages import Bye

pytestmark = pytest.mark.timeout(120)
STREAM = "qwen"
MIB = 1 << 20


@pytest.fixture
def root():
    with short_path() as made:
        yield made


def listen():
    return f"127.0.0.1:{free_port()}"


def note_messages(node):
    """Every control message that comes to a node from now on."""
    heard, take = [], node.fleet.message

    def message(peer, said):
        heard.append(said)
        take(peer, said)

    node.fleet.message = message
    return heard


async def test_who_fetches_from_a_relay_that_stops_goes_on_within_a_second_and_fetches_nothing_twice(root, tmp_path):
    directory = write(tmp_path / "1", model(), side={"big.bin": np.random.default_rng(5).bytes(96 * MIB)})
    async with head_of(root) as head, member_of(head, root, "relay", site="b", listen=listen()) as relay:
        published = await head.publish(STREAM, directory)
        await relay.committed(STREAM, 1)
        head.fleet.set_limits(Limits(upload=32 * MIB))
        relay.fleet.set_limits(Limits(upload=8 * MIB))
        async with member_of(head, root, "receiver", site="b", listen=listen()) as receiver:
            got, heard = receiver.fleet.tally.received_bytes, note_messages(receiver)
            await until(lambda: got["site"] > 2 * MIB)
            began_s = time.monotonic()
            stopping = asyncio.create_task(relay.stop())
            await until(lambda: Bye("stopping") in heard)
            parted, parted_s = dict(got), time.monotonic()
            await until(lambda: sum(got.values()) > sum(parted.values()))
            went_on_s = time.monotonic()
            await stopping
            stopped_s = time.monotonic()
            slot = await receiver.committed(STREAM, 1)
            assert went_on_s - parted_s < 1.0
            assert stopped_s - began_s < 5.0
            assert sum(got.values()) <= published.patch_bytes + MIB, "what was on its way arrived"
            assert files_of(slot.path) == files_of(directory)


async def test_a_node_with_nothing_under_way_parts_at_once(root):
    async with head_of(root) as head, member_of(head, root) as member:
        await until(lambda: head.fleet.peers and member.fleet.peers)
        heard = note_messages(head)
        began_s = time.monotonic()
        await member.stop()
        assert time.monotonic() - began_s < leaving.LEAVE_S
        await until(lambda: Bye("stopping") in heard)
        assert not head.fleet.peers


async def test_a_peer_that_takes_nothing_does_not_hold_up_a_stop(root, tmp_path, monkeypatch):
    monkeypatch.setattr(leaving, "LEAVE_S", 0.3)
    directory = write(tmp_path / "1", model(), side={"big.bin": np.random.default_rng(5).bytes(64 * MIB)})
    async with head_of(root) as head, member_of(head, root) as member:
        member.fleet.set_limits(Limits(download=64 * 1024))  # reads next to nothing
        await head.publish(STREAM, directory)
        await until(lambda: sum(head.fleet.tally.sent_bytes.values()) > 0)
        began_s = time.monotonic()
        await head.stop()
        assert time.monotonic() - began_s < 5.0


async def test_a_node_that_leaves_dials_nobody_and_lets_nobody_in(root):
    async with head_of(root) as head, member_of(head, root) as member:
        await until(lambda: head.fleet.peers and member.fleet.peers)
        await head.fleet.leave()
        await until(lambda: not member.fleet.peers)
        async with asyncio.timeout(10):
            await member.fleet.doors.dial(head.config.node.listen)  # returns when the connection has ended
        assert not head.fleet.peers
        assert not member.fleet.peers
