"""Whoever is put out is out: at once, everywhere, with open connections and lanes, and after a restart."""

import asyncio

import pytest
from daemon.single import Single, until

from patchswarm.daemon.fleet import governing
from patchswarm.daemon.local import governing as local
from patchswarm.daemon.local.errors import InvalidRequestError
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import Revocation
from patchswarm.protocol.signed import sign

pytestmark = pytest.mark.timeout(120)
WITHIN_S = 5.0
"""How soon a revocation is obeyed, on a busy machine."""


def linked(one, two):
    return any(link.node == two.identity.node_id for link in one.fleet.swarm.connected())


def lanes_to(one, two):
    peers = (peer for number, peer in one.fleet.peers.items() if one.fleet.swarm.links[number].node == two.fleet.node)
    return [lane for peer in peers for lane in peer.lanes]


async def revoke(head, node, ca_dir=None):
    data = governing.revocation(head.identity, node, ca_dir)
    return await asyncio.to_thread(local.spread, head.config.local.socket, "revocation", data)


async def test_revoked_member_is_cut_off_with_its_lanes_within_seconds(head, fleet, checkpoints):
    thief, honest = await fleet("thief"), await fleet("honest")
    await head.publish("qwen", next(checkpoints))
    await asyncio.gather(thief.committed("qwen", 1), honest.committed("qwen", 1))
    await until(lambda: lanes_to(head, thief))
    (lane, *_) = lanes_to(head, thief)
    assert await revoke(head, thief.fleet.node)
    async with asyncio.timeout(WITHIN_S):
        await lane.gone.wait()
    await until(lambda: not linked(head, thief), WITHIN_S)
    await until(lambda: honest.fleet.swarm.gossip.members.is_revoked(thief.fleet.node), WITHIN_S)
    assert thief.fleet.node not in honest.fleet.swarm.gossip.nodes
    assert thief.fleet.node not in head.fleet.swarm.gossip.lively(), "no roster counts on it"
    await until(lambda: any("was revoked" in each for each in thief.fleet.standing.problems()), WITHIN_S)
    await head.publish("qwen", next(checkpoints))
    await honest.committed("qwen", 2)
    assert thief.node.replicas["qwen"].current().version == 1
    assert not linked(head, thief)


async def test_revocation_survives_restarts_and_reaches_who_was_away(head, fleet, root, checkpoints):
    thief = await fleet("thief")
    await until(lambda: linked(head, thief))
    await revoke(head, thief.fleet.node)
    late = await fleet("late")
    await until(lambda: late.fleet.swarm.gossip.members.is_revoked(thief.fleet.node))
    await late.stop()
    again = Single(late.home, late.config)
    again.fleet._restore()
    assert again.fleet.swarm.gossip.members.is_revoked(thief.fleet.node), "it is in the catalog"
    again.catalog.close()


async def test_nobody_revokes_without_a_key_that_may(head, fleet):
    member = await fleet()
    await until(lambda: linked(head, member))
    forged = sign(Revocation(head.fleet.node, 1, b""), member.identity.node_key)
    with pytest.raises(InvalidRequestError, match="not signed by the key"):
        await asyncio.to_thread(local.spread, member.config.local.socket, "revocation", forged)
    assert linked(head, member)
    assert not member.fleet.swarm.gossip.members.is_revoked(head.fleet.node)


async def test_a_revocation_is_spread_once(head, fleet):
    member = await fleet()
    await until(lambda: linked(head, member))
    name = digest(b"some node that was lost")
    assert await revoke(head, name)
    assert not await revoke(head, name), "it is revoked already"
