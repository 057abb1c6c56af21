"""What tests of slime's folders share."""

import numpy as np
import pytest
from support.checkpoints import model, stepped, write
from support.trainer_head import head, loop_factory, staging

__all__ = ["head", "loop_factory", "staging"]


@pytest.fixture
def random():
    return np.random.default_rng(8)


class Run:
    """A training run: checkpoints on disk, each a step on from the one before, and their tensors as bytes."""

    def __init__(self, root, random, **options):
        self.root = root
        self.random = random
        self.options = options
        self.tensors = model(layers=2, width=64)
        self.number = 0
        self.base = self.write()

    def write(self, **options):
        return write(self.root / f"checkpoint-{self.number}", self.tensors, **self.options, **options)

    def step(self, fraction=0.01, **options):
        """The next checkpoint's folder."""
        self.number += 1
        self.tensors = stepped(self.tensors, self.random, fraction)
        return self.write(**options)

    def bytes(self):
        return {name: tensor.data.tobytes() for name, tensor in self.tensors.items()}


@pytest.fixture(params=[1, 3])
def run(request, tmp_path, random):
    return Run(tmp_path / "run", random, shards=request.param)
