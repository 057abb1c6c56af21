"""Flipped bits: they are found, the version is withdrawn and mended, and nobody else is harmed."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import files_of, model, stepped, write

from patchswarm.daemon.exits import Exit
from patchswarm.daemon.local.connection import DaemonAddress, read_json, stream_path
from patchswarm.daemon.local.errors import LeaseGoneError
from patchswarm.daemon.local.model import LeaseInfo, LeaseRequest


@pytest.fixture
def random():
    return np.random.default_rng(5)


def slots_of(node, stream):
    """Paths of the slots, by "v3" for a version and "twin-3" or the like for a twin."""
    return {path.name: path for path in (node.home / "slots" / stream).iterdir() if path.is_dir()}


def flip(path, at=-1000):
    """Flip one bit of a file in place, as bad memory does."""
    with path.open("r+b") as file:
        file.seek(at, 2)
        byte = file.read(1)[0]
        file.seek(at, 2)
        file.write(bytes((byte ^ 4,)))


def take_lease(node, stream, version, ttl_s):
    """A lease that nothing renews; its id."""
    body = LeaseRequest(version=version, ttl_s=ttl_s)
    address = DaemonAddress(node.home / "patchswarm.sock", "")
    with address.exchange("POST", stream_path(stream, "leases"), body=body, timeout_s=30) as response:
        return read_json(response, LeaseInfo).lease


def release(node, stream, lease):
    """End a lease. Raises LeaseGoneError."""
    address = DaemonAddress(node.home / "patchswarm.sock", "")
    with address.exchange("DELETE", stream_path(stream, "leases", lease), timeout_s=30) as response:
        response.read()


def verified(node, stream, *options, expect=0):
    """What `patchswarm verify --json` says of each slot."""
    return json.loads(node.command("verify", "--stream", stream, *options, "--json", expect=expect).stdout)["slots"]


def twin_of(node, stream, version):
    """Wait until the twin of a version is made, as the next verification shows; its path."""
    while True:
        changed = [slot for slot in verified(node, stream) if slot["version"] == version and slot["twin"]]
        if changed:
            return Path(changed[0]["path"])


def test_verify_tells_of_each_slot_that_its_blocks_are_right(fleet, stream, tmp_path):
    fleet.publish(write(tmp_path / "1", model()), stream)
    slots = verified(fleet.nodes["west"], stream)
    assert [slot["bad"] for slot in slots] == [0] * len(slots)
    assert all(slot["blocks"] >= 1 and not slot["problem"] for slot in slots)
    assert "VERSION" in fleet.nodes["west"].command("verify", "--stream", stream).stdout


def test_a_flipped_bit_in_the_heads_slot_does_not_reach_anyone(fleet, stream, tmp_path, random):
    tensors = model()
    fleet.publish(write(tmp_path / "1", tensors), stream)
    for number in range(2, 6):
        tensors = stepped(tensors, random)
        for path in slots_of(fleet.head, stream).values():
            flip(path / "model.safetensors", -(1000 * number))
        fleet.publish(write(tmp_path / str(number), tensors), stream)


def test_a_flipped_bit_in_a_replicas_slot_is_mended_from_its_twin(fleet, stream, tmp_path, random):
    node, tensors = fleet.nodes["west"], model()
    directory = write(tmp_path / "1", tensors)
    fleet.publish(directory, stream)
    twin_of(node, stream, 1)
    flip(slots_of(node, stream)["v1"] / "model.safetensors")
    slots = verified(node, stream, "--repair")
    assert [(slot["bad"], slot["left"]) for slot in slots if not slot["twin"]] == [(1, 0)]
    fleet.check(node, stream, 1, files_of(directory))
    assert "mended" in node.client.status(stream).last_error.detail
    fleet.publish(write(tmp_path / "2", stepped(tensors, random)), stream)


def test_verify_without_repair_tells_of_the_damage_and_the_daemon_mends_it(fleet, stream, tmp_path):
    node = fleet.nodes["east"]
    directory = write(tmp_path / "1", model())
    fleet.publish(directory, stream)
    twin_of(node, stream, 1)
    flip(slots_of(node, stream)["v1"] / "model.safetensors")
    slots = verified(node, stream, expect=Exit.DAMAGED)
    assert sum(slot["left"] for slot in slots) == 1
    fleet.check(node, stream, 1, files_of(directory))


def test_a_damaged_spare_does_not_become_a_version_when_all_is_verified_first(own_fleet, stream, tmp_path, random):
    fleet, tensors = own_fleet, model()
    node = fleet.add("node", "eu-west/b", start=False)
    config = node.home / "config.toml"
    config.write_text(config.read_text().replace('# verify = "background"', 'verify = "full"'))
    node.start()
    fleet.publish(write(tmp_path / "1", tensors), stream)
    for number in range(2, 4):
        flip(twin_of(node, stream, number - 1) / "model.safetensors")
        tensors = stepped(tensors, random, fraction=1e-5)
        fleet.publish(write(tmp_path / str(number), tensors), stream)
        assert node.client.status(stream).proven


def flip_all_copies(node, stream):
    """Flip the same bit in the version and in its twin, so that neither mends the other."""
    for path in (twin_of(node, stream, 1), slots_of(node, stream)["v1"]):
        flip(path / "model.safetensors")


def test_what_no_slot_here_can_mend_comes_in_blocks_from_another_node(own_fleet, stream, tmp_path):
    fleet = own_fleet
    node = fleet.add("node", "eu-west/b")
    directory = write(tmp_path / "1", model())
    fleet.publish(directory, stream)
    flip_all_copies(node, stream)
    slots = verified(node, stream, "--repair")
    assert [(slot["bad"], slot["left"]) for slot in slots if not slot["twin"]] == [(1, 0)]
    fleet.check(node, stream, 1, files_of(directory))


def test_a_version_that_nobody_can_mend_is_built_anew(own_fleet, stream, tmp_path):
    fleet = own_fleet
    node = fleet.add("node", "eu-west/b")
    directory = write(tmp_path / "1", model())
    fleet.publish(directory, stream)
    twin_of(node, stream, 1)
    fleet.head.stop()
    flip_all_copies(node, stream)
    assert sum(slot["left"] for slot in verified(node, stream, "--repair", expect=Exit.DAMAGED)) >= 1
    fleet.check(node, stream, 1, files_of(directory))


def test_a_withdrawn_version_takes_its_leases_along(fleet, stream, tmp_path):
    node = fleet.nodes["west"]
    fleet.publish(write(tmp_path / "1", model()), stream)
    twin_of(node, stream, 1)
    lease = take_lease(node, stream, 1, ttl_s=120)
    flip(slots_of(node, stream)["v1"] / "model.safetensors")
    verified(node, stream, "--repair")
    with pytest.raises(LeaseGoneError):
        release(node, stream, lease)
    with node.client.lease(stream, 1) as again:
        assert files_of(again.path) == files_of(tmp_path / "1")


def test_a_leased_version_is_never_rewritten(fleet, stream, tmp_path, random):
    node, tensors = fleet.nodes["west"], model()
    first = write(tmp_path / "1", tensors)
    truth = files_of(first)
    fleet.publish(first, stream)
    wrong, stop = [], threading.Event()

    def read(path):
        while not stop.is_set():
            if files_of(path) != truth:
                wrong.append(path)

    with node.client.lease(stream, 1, ttl_s=120) as lease:
        reader = threading.Thread(target=read, args=(lease.path,))
        reader.start()
        try:
            for number in range(2, 6):
                tensors = stepped(tensors, random)
                directory = write(tmp_path / str(number), tensors)
                fleet.head.publish(directory, stream)
            assert node.client.wait(stream, 2, 60) is not None
        finally:
            stop.set()
            reader.join()
        assert not wrong
    fleet.check(node, stream, 5, files_of(directory))


def test_a_lease_that_runs_out_retires_its_slot(fleet, stream, tmp_path, random):
    node, tensors = fleet.nodes["west"], model()
    fleet.publish(write(tmp_path / "1", tensors), stream)
    lease = take_lease(node, stream, 1, ttl_s=1.0)
    with (slots_of(node, stream)["v1"] / "model.safetensors").open("rb") as open_file:
        truth = open_file.read()
        for number in range(2, 5):
            tensors = stepped(tensors, random)
            fleet.publish(write(tmp_path / str(number), tensors), stream)
        open_file.seek(0)
        assert open_file.read() == truth, "the reader's own inode never changed"
    with pytest.raises(LeaseGoneError):
        release(node, stream, lease)


def test_with_every_slot_leased_steps_gather_and_are_taken_in_one_go(fleet, stream, tmp_path, random):
    node, tensors = fleet.nodes["west"], model()
    fleet.publish(write(tmp_path / "1", tensors), stream)
    tensors = stepped(tensors, random)
    with node.client.lease(stream, 1, ttl_s=120):
        fleet.publish(write(tmp_path / "2", tensors), stream)
        with node.client.lease(stream, 2, ttl_s=120):
            for number in range(3, 7):
                tensors = stepped(tensors, random)
                directory = write(tmp_path / str(number), tensors)
                fleet.publish(directory, stream, on=[fleet.nodes["east"]])
            assert node.client.version(stream).version == 2
    fleet.check(node, stream, 6, files_of(directory))
    lines = node.log.read_text().splitlines()
    committed = [line for line in lines if '"message":"committed"' in line and stream in line]
    assert len(committed) == 3, "versions 1, 2 and 6: what lay between came along"


def test_one_slot_changes_in_place(own_fleet, stream, tmp_path, random):
    fleet, tensors = own_fleet, model()
    node = fleet.add("node", "eu-west/b", start=False)
    config = node.home / "config.toml"
    config.write_text(config.read_text().replace("# slots = 2", "slots = 1"))
    node.start()
    for number in range(1, 4):
        fleet.publish(write(tmp_path / str(number), tensors), stream)
        assert list(slots_of(node, stream)) == [f"v{number}"]
        tensors = stepped(tensors, random)
    with node.client.lease(stream, 3, ttl_s=120) as lease:
        truth = files_of(lease.path)
        directory = write(tmp_path / "4", tensors)
        fleet.head.publish(directory, stream)
        assert files_of(lease.path) == truth
    fleet.check(node, stream, 4, files_of(directory))
