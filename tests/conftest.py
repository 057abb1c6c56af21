"""What every test shares: hypothesis judges results, never the speed of a shared machine; whole daemons in one loop."""

import pytest
from daemon.single import head_of, member_of, short_path
from hypothesis import settings

settings.register_profile("patchswarm", deadline=None, print_blob=True)
settings.load_profile("patchswarm")


@pytest.fixture
def root():
    """A short folder: a socket's path has at most 107 bytes."""
    with short_path() as path:
        yield path


@pytest.fixture
async def head(root):
    """A running head."""
    async with head_of(root) as running:
        yield running


@pytest.fixture
async def member(head, root):
    """A running member of the head's cluster."""
    async with member_of(head, root) as running:
        yield running
