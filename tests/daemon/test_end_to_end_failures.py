"""Daemons that die, sleep, come late or start from something they have: everyone ends with the trainer's bytes."""

import numpy as np
import pytest
from support.checkpoints import files_of, model, stepped, write

from patchswarm.daemon.local.errors import UnknownStreamError

pytestmark = pytest.mark.timeout(300)  # a shared machine may be ten times slower than an idle one


@pytest.fixture
def random():
    return np.random.default_rng(11)


def size_of(folder):
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_head_dies_after_one_copy_is_out_and_the_others_finish_from_each_other(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    one = fleet.add("one", "us-east/a")
    others = [fleet.add("two", "eu-west/b"), fleet.add("three", "eu-west/b")]
    tensors = model()
    fleet.publish(write(tmp_path / "1", tensors), stream)
    for node in others:
        node.stop()
    directory = write(tmp_path / "2", stepped(tensors, random))
    fleet.publish(directory, stream, on=[one])
    fleet.head.kill()
    for node in others:
        node.start()
    for node in others:
        fleet.check(node, stream, 2, files_of(directory))


def test_a_node_that_joins_late_catches_up(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    tensors = model()
    for number in range(1, 5):
        directory = write(tmp_path / str(number), tensors)
        fleet.publish(directory, stream)
        tensors = stepped(tensors, random)
    fleet.check(fleet.add("late", "eu-west/b"), stream, 4, files_of(directory))


def test_a_node_that_was_off_for_several_versions_chains_the_steps_it_missed(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    sleeper, watcher = fleet.add("sleeper", "us-east/a"), fleet.add("watcher", "eu-west/b")
    tensors = model()
    full = fleet.publish(write(tmp_path / "1", tensors), stream)
    sleeper.stop()
    before = size_of(sleeper.home / "chunks")
    for number in range(2, 6):
        tensors = stepped(tensors, random)
        directory = write(tmp_path / str(number), tensors)
        fleet.publish(directory, stream)
    sleeper.start()
    fleet.check(sleeper, stream, 5, files_of(directory))
    fleet.check(watcher, stream, 5, files_of(directory))
    assert size_of(sleeper.home / "chunks") - before < full["patch_bytes"] / 2, "it fetched the steps, not everything"


def test_a_killed_node_comes_back_with_what_it_had(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    node = fleet.add("node", "eu-west/b")
    tensors = model()
    first = write(tmp_path / "1", tensors)
    fleet.publish(first, stream)
    node.kill()
    fleet.head.stop()
    node.start()
    fleet.check(node, stream, 1, files_of(first))
    fleet.head.start()
    fleet.publish(write(tmp_path / "2", stepped(tensors, random)), stream)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_node_that_goes_down_while_it_fetches_finishes_after_its_restart(own_fleet, stream, tmp_path, random, how):
    fleet = own_fleet
    node = fleet.add("node", "eu-west/b")
    directory = write(tmp_path / "1", model(), side={"big.bin": random.bytes(48 << 20)})
    truth = files_of(directory)
    fleet.head.publish(directory, stream)  # returns when it is out of the head's hands, not when the node has it
    getattr(node, how)()
    node.start()
    fleet.check(node, stream, 1, truth)


def test_a_node_killed_in_the_middle_of_a_fetch_goes_on_from_there(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    node = fleet.add("node", "eu-west/b", start=False)
    config = (node.home / "config.toml").read_text()
    assert '# download = ""' in config
    (node.home / "config.toml").write_text(config.replace('# download = ""', 'download = "64Mbit/s"'))
    node.start()
    directory = write(tmp_path / "1", model(), side={"big.bin": random.bytes(40 << 20)})
    full = fleet.head.publish(directory, stream)
    first = progress_of(node, stream, at_least_bytes=8 << 20)
    assert first.done_bytes < first.total_bytes
    node.kill()
    held = size_of(node.home / "chunks")
    assert 4 << 20 < held < full["patch_bytes"]
    node.start()
    again = progress_of(node, stream, at_least_bytes=1)
    assert again.done_bytes >= held - (4 << 20), "what was there before the kill is not fetched again"
    fleet.check(node, stream, 1, files_of(directory))


def progress_of(node, stream, at_least_bytes):
    """The first progress that `node` reports from so many bytes on. Asked without pause: there is no event for it."""
    while True:
        try:
            progress = node.client.status(stream).progress
        except UnknownStreamError:
            continue
        if progress is not None and progress.done_bytes >= at_least_bytes:
            return progress


def test_a_head_killed_after_a_publish_goes_on_from_there(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    fleet.add("node", "eu-west/b")
    tensors = model()
    for number in range(1, 5):
        directory = write(tmp_path / str(number), tensors)
        result = fleet.head.publish(directory, stream)
        fleet.head.kill()
        fleet.head.start()
        assert result["version"] == number
        for node in fleet.running():
            fleet.check(node, stream, number, files_of(directory))
        tensors = stepped(tensors, random)
    assert [version.version for version in fleet.head.client.versions(stream)] == [4, 3, 2, 1]


def test_a_local_base_saves_the_first_transfer(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    tensors = model()
    base = write(tmp_path / "base", tensors)
    node = fleet.add("node", "eu-west/b", start=False)
    with (node.home / "config.toml").open("a") as config:
        config.write(f'\n[stream.{stream}]\nbase = "{base}"\n')
    node.start()
    full = fleet.publish(base, stream)
    assert size_of(node.home / "chunks") < full["patch_bytes"] / 10
    fleet.publish(write(tmp_path / "2", stepped(tensors, random)), stream)
    assert files_of(base) == files_of(tmp_path / "base"), "the base itself is only read"


def test_a_local_base_with_other_bytes_is_passed_over(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    tensors = model()
    base = write(tmp_path / "base", stepped(tensors, random))
    node = fleet.add("node", "eu-west/b", start=False)
    with (node.home / "config.toml").open("a") as config:
        config.write(f'\n[stream.{stream}]\nbase = "{base}"\n')
    node.start()
    fleet.publish(write(tmp_path / "1", tensors), stream)


def test_bytes_registered_as_base_are_not_sent(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    tensors = model()
    base = write(tmp_path / "base", tensors)
    node = fleet.add("node", "eu-west/b", start=False)
    with (node.home / "config.toml").open("a") as config:
        config.write(f'\n[stream.{stream}]\nbase = "{base}"\n')
    node.start()
    registered = fleet.publish(base, stream, "--base")
    assert registered["version"] == 1
    assert registered["patch_bytes"] == 0
    step = fleet.publish(write(tmp_path / "2", stepped(tensors, random)), stream)
    assert step["version"] == 2
    assert step["changed_fraction"] < 0.05
