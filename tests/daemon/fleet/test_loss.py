"""A lossy path, as whole daemons at both ends of it hear of it."""

import pytest
from daemon.single import head_of, member_of, short_path, until

from patchswarm.daemon.fleet.congestion import Path

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def head():
    with short_path() as root:
        async with head_of(root) as head:
            yield head


async def test_loss_that_one_host_sees_is_known_at_both_ends_of_the_path_and_nowhere_else(head):
    with short_path() as root:
        async with (
            member_of(head, root, "there", site="there") as there,
            member_of(head, root, "beside", site=head.config.node.site) as beside,
            member_of(head, root, "elsewhere", site="elsewhere") as elsewhere,
        ):
            await until(lambda: len(list(head.fleet.swarm.connected())) == 3)
            head.fleet.uplink.tell(Path("there"))
            assert not head.fleet.uplink.is_lossy
            await until(lambda: there.fleet.uplink.is_lossy and beside.fleet.uplink.is_lossy)
            assert not elsewhere.fleet.uplink.is_lossy
