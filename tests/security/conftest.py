"""What attacks need: a fleet of whole daemons in the test's own loop, checkpoints, and the key of a cluster's CA."""

import contextlib

import numpy as np
import pytest
from daemon.single import member_of
from support.checkpoints import model, stepped, write


@pytest.fixture
def checkpoints(tmp_path):
    """Directories of a little model, each a step from the one before."""
    random, tensors = np.random.default_rng(3), model(layers=1, width=64)

    def make():
        nonlocal tensors
        for number in range(100):
            yield write(tmp_path / f"checkpoint-{number}", tensors)
            tensors = stepped(tensors, random)

    return make()


@pytest.fixture
async def fleet(head, root):
    """Makes members of the head's cluster; all are stopped at the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def add(name="member", **options):
            return await stack.enter_async_context(member_of(head, root, name, **options))

        yield add
