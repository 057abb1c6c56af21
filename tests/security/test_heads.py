"""Heads that a hostile member or a stolen key could fake: rolled back, frozen, run ahead, two for one number."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from daemon.single import Single, until
from support.versions import Publisher, key_of, raw

from patchswarm.daemon import watch
from patchswarm.daemon.beacons import Beacons
from patchswarm.protocol.alarms import alarms
from patchswarm.protocol.errors import SignatureError
from patchswarm.protocol.gossip import BEACON_AHEAD_S, Gossip
from patchswarm.protocol.manifest import Beacon, Header, Subject
from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.signed import sign
from patchswarm.storage.errors import CatalogError

pytestmark = pytest.mark.timeout(120)
NOW = 1_800_000_000
NAME = bytes(32)


def beacon(at, *, key=None, epoch=1, version=1, stream="qwen"):
    return ObjectKind.BEACON, sign(Beacon(stream, epoch, version, NAME, at), key or key_of(f"publisher {epoch}"))


def problems(node):
    return " ".join(node.node.service.node().problems)


@pytest.fixture
def gossip():
    made = Gossip(raw(key_of("ca")))
    made.learn(*Publisher().record())
    made.tell_time(NOW)
    return made


# -- beacons -------------------------------------------------------------------------------------------------


def test_beacon_by_another_key_is_refused(gossip):
    with pytest.raises(SignatureError):
        gossip.learn(*beacon(NOW, key=key_of("nobody")))


def test_old_beacon_replayed_makes_no_head_young(gossip):
    assert gossip.learn(*beacon(NOW)) is not None
    assert gossip.learn(*beacon(NOW)) is None
    assert gossip.learn(*beacon(NOW - 5)) is None
    assert gossip.beacons["qwen"][0].at == NOW


def test_beacon_from_the_future_freezes_no_head(gossip):
    assert gossip.learn(*beacon(NOW + BEACON_AHEAD_S + 1)) is None
    assert gossip.learn(*beacon(NOW + 10)) is not None


def test_beacon_of_a_key_that_was_rotated_away_counts_no_more(gossip):
    gossip.learn(*Publisher(epoch=2).record())
    assert gossip.learn(*beacon(NOW)) is None
    assert gossip.learn(*beacon(NOW, epoch=2)) is not None


async def test_frozen_head_is_seen_by_its_age(head, fleet, checkpoints, monkeypatch):
    await head.publish("qwen", next(checkpoints))
    member = await fleet()
    await member.committed("qwen", 1)
    Beacons(head.node.publisher, head.fleet, head.identity.publisher_key).say(int(time.time()))
    await until(lambda: member.node.service.status("qwen").head_age_s is not None)
    assert member.node.service.status("qwen").head_age_s < 30
    assert problems(member) == ""
    await head.stop()  # or the path to it is cut, or somebody holds its words back
    later = time.time() + watch.FROZEN_S + 5
    monkeypatch.setattr(watch, "time", SimpleNamespace(time=lambda: later, monotonic=time.monotonic))
    assert member.node.service.status("qwen").head_age_s > watch.FROZEN_S
    assert "its publisher was last heard" in problems(member)


async def test_version_that_is_held_back_is_missed(head, fleet, checkpoints):
    await head.publish("qwen", next(checkpoints))
    member = await fleet()
    await member.committed("qwen", 1)
    member.fleet.publish(*beacon(int(time.time()) + 5, key=head.identity.publisher_key, version=7))
    assert "its publisher has version 7, but nobody tells this node more of it" in problems(member)


# -- what only a stolen key says -----------------------------------------------------------------------------


def header(version, tag=0, epoch=1):
    return Header(Subject.MANIFEST, "qwen", epoch, version, bytes([tag] * 32))


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([header(1), header(2, 1), header(3, 2)], []),
        ([header(1), header(2, 1), header(2, 2)], ["version 2 was signed 2 times"]),
        ([header(1), header(2**63 - 1, 1)], [f"the versions jump to {2**63 - 1}"]),
        ([header(2**63 - 1)], [f"the versions jump to {2**63 - 1}"]),
        ([header(1_700_000_000), header(1_700_000_060, 1)], []),
        ([header(2**63 - 1), header(4, 1, epoch=2)], []),
    ],
    ids=["rising", "equivocation", "fast-forward", "fast-forward, the rest forgotten", "a clock", "rotated away"],
)
def test_alarms(headers, said):
    epoch = max(each.epoch for each in headers)
    found = alarms(headers, epoch)
    assert len(found) == len(said)
    assert all(each.startswith(start) for each, start in zip(found, said, strict=True))


async def test_foreign_version_under_the_own_key_is_noticed_by_its_owner_and_equivocation_by_all(
    head, fleet, checkpoints
):
    await head.publish("qwen", next(checkpoints))
    member = await fleet()
    await member.committed("qwen", 1)
    key = head.identity.publisher_key
    member.fleet.publish(ObjectKind.HEADER, sign(Header(Subject.MANIFEST, "qwen", 1, 1, NAME), key))
    await until(lambda: "version 1 was signed 2 times" in problems(head))
    assert "version 1 was signed 2 times" in problems(member)
    member.fleet.publish(ObjectKind.HEADER, sign(Header(Subject.MANIFEST, "qwen", 1, 2, NAME), key))
    await until(lambda: "signed with this node's publisher key, and not by this node" in problems(head))
    before = member.fleet.swarm.gossip.beacons.get("qwen")
    Beacons(head.node.publisher, head.fleet, key).say(int(time.time()) + 20)
    assert head.fleet.swarm.gossip.beacons.get("qwen") == before, "it is not confirmed by a beacon"


# -- rollback ------------------------------------------------------------------------------------------------


async def test_rolled_back_head_is_not_taken_even_after_a_restart(head, fleet, checkpoints):
    for _ in range(2):
        await head.publish("qwen", next(checkpoints))
    member = await fleet()
    await member.committed("qwen", 2)
    old = [
        (kind, data)
        for kind, _, data in member.catalog.objects()
        if kind in (ObjectKind.HEADER, ObjectKind.MANIFEST, ObjectKind.STREAM)
    ]
    await head.stop()
    await member.stop()
    async with Single(member.home, member.config).running() as again:
        for kind, data in old:
            again.fleet.publish(kind, data)
        await again.committed("qwen", 2)
        await asyncio.sleep(0)
        assert again.node.replicas["qwen"].current().version == 2
        assert again.catalog.mark("qwen").version == 2


async def test_a_catalog_that_cannot_be_read_ends_no_daemon(head, checkpoints, monkeypatch):
    await head.publish("qwen", next(checkpoints))

    def unreadable(_):
        raise CatalogError("disk I/O error")

    monkeypatch.setattr(head.node.publisher, "newest_made", unreadable)
    saying = asyncio.create_task(Beacons(head.node.publisher, head.fleet, head.identity.publisher_key).run())
    await asyncio.sleep(0.1)
    assert not saying.done()
    saying.cancel()
