"""What tests of the trainer side share."""

import numpy as np
import pytest
from support.local_service import STREAM
from support.trainer_head import head, loop_factory, staging

from patchswarm.daemon.local.trainer.publisher import Publisher

__all__ = ["head", "loop_factory", "staging"]


@pytest.fixture
def publisher(head, staging):
    return Publisher(STREAM, client=head.client, staging=staging)


@pytest.fixture
def random():
    return np.random.default_rng(6)
