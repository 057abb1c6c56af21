"""Versions in blocks: a node into which no transition leads takes a version's files from the slots of others."""

import numpy as np
import pytest
from support.checkpoints import files_of, model, stepped, write


@pytest.fixture
def random():
    return np.random.default_rng(9)


def test_a_joiner_without_the_base_takes_blocks_of_several_peers(own_fleet, stream, tmp_path, random):
    fleet, tensors = own_fleet, model()
    base = write(tmp_path / "base", tensors, side={"big.bin": random.bytes(24 << 20)})
    holder = fleet.add("holder", "eu-west/b", start=False)
    with (holder.home / "config.toml").open("a") as config:
        config.write(f'\n[stream.{stream}]\nbase = "{base}"\n')
    holder.start()
    fleet.publish(base, stream, "--base")
    late = fleet.add("late", "eu-west/b")
    fleet.check(late, stream, 1, files_of(base))
    assert late.client.status(stream).proven
    assert '"how":"blocks"' in late.log.read_text()
    tensors = stepped(tensors, random)
    side = {"big.bin": (base / "big.bin").read_bytes()}
    fleet.publish(write(tmp_path / "2", tensors, side=side), stream)
