"""One hostile member does at once all that scripts/chaos_hostile times: no one is left out, no wrong byte passes."""

import shutil
import tempfile
from pathlib import Path

import pytest
from wanlab.attacker import ATTACKS
from wanlab.hostile import MOST_MEMORY_MIB, Way, siege_of

MIB = 2**20
MEMORY = Path("/dev/shm")

pytestmark = pytest.mark.timeout(300)  # seven daemons on whatever machine this is


@pytest.fixture
def siege():
    root = Path(tempfile.mkdtemp(prefix="hostile-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        with siege_of(root, 1, 4 * MIB) as siege:
            yield siege
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_every_honest_host_completes_whatever_one_member_does(siege):
    siege.round(Way("the first version", daemon=False))
    found = siege.round(Way("all at once", "other have", tuple(ATTACKS)))
    assert found.complete == len(siege.honest)
    assert found.wrong_senders == 0
    assert found.memory_bytes < MOST_MEMORY_MIB * MIB
    assert found.hung_up > 0, "it was hostile enough to be noticed"
