"""Leases of an engine that is spread over several hosts: all of them have the version, or nobody loads it."""

import pytest
from daemon.single import member_of, until
from support.streams import model, read_tree, write_tree

from patchswarm.daemon.local.aio_client import AsyncClient
from patchswarm.daemon.local.errors import InvalidRequestError, VersionNotReadyError

STREAM = "qwen"


def knows(single, other, version):
    """Whether a node has heard that another one has committed this version."""
    record = single.fleet.swarm.gossip.nodes.get(other.fleet.node)
    return record is not None and any(each.version == version for each in record.heads)


async def test_a_group_moves_together_or_not_at_all(head, root):
    async with member_of(head, root, "one") as one, member_of(head, root, "two") as two:
        await head.publish(STREAM, write_tree(root / "trainer" / "1", model(1, 0)))
        for each in (one, two):
            await each.committed(STREAM, 1)
        await until(lambda: knows(one, two, 1))
        held = await two.node.service.lease(STREAM, 1, 60)
        spare = await two.node.service.lease(STREAM, None, 60)
        group = [two.fleet.node.hex()]
        async with AsyncClient(one.config.local.socket) as client:
            async with client.lease(STREAM, group=[group[0][:10]]) as lease:
                assert read_tree(lease.path) == model(1, 0)

            two.node.replicas[STREAM]._min_interval_s = 3600  # the second host falls behind
            two.node.replicas[STREAM]._rested_at_s = float("inf")
            await head.publish(STREAM, write_tree(root / "trainer" / "2", model(1, 1)))
            await one.committed(STREAM, 2)
            with pytest.raises(VersionNotReadyError, match=r"not on all hosts of the group: \w+ has version 1"):
                async with client.lease(STREAM, 2, group=group):
                    pytest.fail("the group has not moved")
            assert one.node.replicas[STREAM].slots.lease_count() == 0  # what was refused holds nothing

            two.node.replicas[STREAM]._rested_at_s = 0.0
            two.node.replicas[STREAM].slot_freed()
            await two.node.service.release(STREAM, held.lease)
            await two.node.service.release(STREAM, spare.lease)
            await two.committed(STREAM, 2)
            await until(lambda: knows(one, two, 2))
            async with client.lease(STREAM, 2, group=group) as lease:
                assert read_tree(lease.path) == model(1, 1)


async def test_a_host_that_nobody_knows_is_one_clear_error(head, root):
    await head.publish(STREAM, write_tree(root / "trainer", model(1)))
    async with AsyncClient(head.config.local.socket) as client:
        with pytest.raises(InvalidRequestError, match="names no node that is known here"):
            await client.lease(STREAM, group=["00000000"]).__aenter__()
        with pytest.raises(InvalidRequestError, match="group"):
            await client.lease(STREAM, group=["xyz"]).__aenter__()
