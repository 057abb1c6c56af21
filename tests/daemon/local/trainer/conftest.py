"""What tests of the trainer side share."""

import numpy as np
import pytest
import uvloop
from support.local_service import STREAM
from support.trainer_head import TrainerHead

from patchswarm.daemon.local.trainer.publisher import Publisher


@pytest.fixture
def loop_factory():
    """These tests are about what is published; the API itself is tested under both event loops."""
    return uvloop.new_event_loop


@pytest.fixture
def head(api):
    return TrainerHead(api)


@pytest.fixture
def staging(tmp_path):
    return tmp_path / "staging"


@pytest.fixture
def publisher(head, staging):
    return Publisher(STREAM, client=head.client, staging=staging)


@pytest.fixture
def random():
    return np.random.default_rng(6)
