"""Room, and what lies where: full disks, slot directories that are emptied, moved or foreign, a damaged catalog."""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from local_fleet import COMMAND, CommandError, clean_environment
from support.checkpoints import files_of, model, stepped, write

from patchswarm.daemon.exits import Exit
from patchswarm.storage.files import Files
from patchswarm.storage.state import read_state, write_state

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs takes root")


@pytest.fixture
def random():
    return np.random.default_rng(10)


@contextmanager
def tmpfs(place, size_mb):
    """A small tmpfs."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def storage(node, **keys):
    """Set keys of the storage section of a node that does not run yet."""
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    config = node.home / "config.toml"
    config.write_text(config.read_text().replace("[storage]", f"[storage]\n{lines}"))


def fill(path):
    """Take every byte that a file system has left."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))


def until(condition, timeout_s=60):
    """Wait until something can be seen from outside only by looking."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def chunks_in(folder):
    """Every chunk in a store."""
    return [path for path in folder.rglob("*") if path.is_file() and len(path.name) == 64]


def test_a_model_that_will_not_fit_is_told_before_anything_is_made(tmp_path):
    line = [COMMAND, "init", "--home", tmp_path / "new", "--site", "x", "--listen", "127.0.0.1:7399"]
    line += ["--slot-dir", "/dev/shm/x", "--model-size", "900TB"]
    done = subprocess.run(line, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    assert done.returncode == Exit.BAD_INPUT
    assert "/dev/shm/x is a file system of" in done.stderr
    assert "of memory" in done.stderr
    assert not (tmp_path / "new").exists()


@needs_root
def test_a_full_slot_dir_keeps_the_old_version_served_and_goes_on_by_itself(own_fleet, stream, tmp_path, random):
    fleet, tensors = own_fleet, model()
    with tmpfs(tmp_path / "ram", 24) as ram:
        node = fleet.add("node", "eu-west/b", start=False)
        storage(node, slot_dir=str(ram))
        node.start()
        first = write(tmp_path / "1", tensors)
        fleet.publish(first, stream)
        until(lambda: any(path.name.startswith(".twin") for path in (ram / stream).iterdir()))
        fill(ram / "ballast")
        second = write(tmp_path / "2", stepped(tensors, random), side={"big.bin": random.bytes(4 << 20)})
        fleet.head.publish(second, stream)
        until(lambda: node.client.status(stream).last_error is not None)
        assert "bytes free" in node.client.status(stream).last_error.detail
        fleet.check(node, stream, 1, files_of(first))
        (ram / "ballast").unlink()
        fleet.check(node, stream, 2, files_of(second))
        node.stop()


@needs_root
def test_chunks_that_will_not_fit_are_not_fetched_until_they_do(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    node = fleet.add("node", "eu-west/b", start=False)
    with tmpfs(tmp_path / "disk", 40) as disk:
        (node.home / "chunks").symlink_to(disk)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(30 << 20))
        node.start()
        directory = write(tmp_path / "1", model(), side={"big.bin": random.bytes(14 << 20)})
        fleet.head.publish(directory, stream)
        until(lambda: node.client.status(stream).last_error is not None)
        assert "bytes free" in node.client.status(stream).last_error.detail
        assert chunks_in(disk) == []
        ballast.unlink()
        fleet.check(node, stream, 1, files_of(directory))
        node.stop()


@needs_root
def test_two_streams_never_count_on_the_same_bytes(own_fleet, stream, tmp_path, random):
    """Each would fit alone; the second waits until the first needs its chunks no more."""
    fleet, other = own_fleet, f"{stream}-other"
    node = fleet.add("node", "eu-west/b", start=False)
    with tmpfs(tmp_path / "disk", 40) as disk:
        (node.home / "chunks").symlink_to(disk)
        node.start()
        made = {
            name: write(tmp_path / name, model(), side={"big.bin": random.bytes(14 << 20)}) for name in (stream, other)
        }
        for name, directory in made.items():
            fleet.head.publish(directory, name)
        for name, directory in made.items():
            fleet.check(node, name, 1, files_of(directory))
        assert "there is no room" in node.log.read_text()
        assert "chunk not stored" not in node.log.read_text()
        node.stop()


@needs_root
def test_a_version_that_no_slot_has_room_for_is_not_even_fetched(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    node = fleet.add("node", "eu-west/b", start=False)
    with tmpfs(tmp_path / "ram", 24) as ram:
        storage(node, slot_dir=str(ram))
        ballast = ram / "ballast"
        ballast.write_bytes(bytes(16 << 20))
        node.start()
        directory = write(tmp_path / "1", model(), side={"big.bin": random.bytes(14 << 20)})
        fleet.head.publish(directory, stream)
        until(lambda: node.client.status(stream).last_error is not None)
        assert f"{ram / stream} has" in node.client.status(stream).last_error.detail
        assert chunks_in(node.home / "chunks") == []
        ballast.unlink()
        fleet.check(node, stream, 1, files_of(directory))
        node.stop()


def test_steps_on_a_slow_disk_gather_and_are_applied_in_one_go(own_fleet, stream, tmp_path, random):
    fleet, tensors = own_fleet, model()
    node = fleet.add("node", "eu-west/b", start=False)
    storage(node, min_interval_s=8.0)
    node.start()
    for number in range(1, 5):
        directory = write(tmp_path / str(number), tensors)
        fleet.publish(directory, stream, on=[fleet.head] if number > 1 else None)
        tensors = stepped(tensors, random)
    fleet.check(node, stream, 4, files_of(directory))
    committed = [line for line in node.log.read_text().splitlines() if '"message":"committed"' in line]
    assert len(committed) <= 3


def test_an_emptied_slot_dir_is_said_and_filled_again(own_fleet, stream, tmp_path):
    fleet = own_fleet
    node = fleet.add("node", "eu-west/b")
    directory = write(tmp_path / "1", model())
    fleet.publish(directory, stream)
    node.stop()
    shutil.rmtree(node.home / "slots")
    node.start()
    fleet.check(node, stream, 1, files_of(directory))
    assert "slot_dir is empty" in node.log.read_text()


def test_another_homes_slot_dir_is_refused_in_one_line(own_fleet, stream, tmp_path):
    fleet = own_fleet
    node = fleet.add("node", "eu-west/b", start=False)
    storage(node, slot_dir=str(fleet.head.home / "slots"))
    with pytest.raises(CommandError, match="holds the slots of another home"):
        node.start()


def test_a_damaged_catalog_is_made_anew_and_nothing_is_lost(own_fleet, stream, tmp_path, random):
    fleet, tensors = own_fleet, model()
    node = fleet.add("node", "eu-west/b")
    directory = write(tmp_path / "1", tensors)
    fleet.publish(directory, stream)
    for damaged in (node, fleet.head):
        damaged.stop()
        catalog = damaged.home / "catalog.sqlite"
        data = bytearray(catalog.read_bytes())
        data[100 : len(data) // 2] = random.bytes(len(data) // 2 - 100)
        catalog.write_bytes(data)
        for suffix in ("-wal", "-shm"):
            Path(f"{catalog}{suffix}").unlink(missing_ok=True)
        damaged.start()
        assert "the catalog was damaged" in damaged.log.read_text()
        fleet.check(damaged, stream, 1, files_of(directory))
    fleet.publish(write(tmp_path / "2", stepped(tensors, random)), stream)


def test_a_version_from_before_a_reboot_is_verified_before_it_is_served(own_fleet, stream, tmp_path, random):
    fleet, tensors = own_fleet, model()
    node = fleet.add("node", "eu-west/b")
    directory = write(tmp_path / "1", tensors)
    fleet.publish(directory, stream)
    until(lambda: any(path.name.startswith(".twin") for path in (node.home / "slots" / stream).iterdir()))
    node.stop()
    slots = node.home / "slots" / stream
    other_boot(slots)
    with (slots / "v1" / "model.safetensors").open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)[0]
        file.seek(5000)
        file.write(bytes((byte ^ 1,)))
    node.start()
    fleet.check(node, stream, 1, files_of(directory))
    assert "wrong blocks" in node.log.read_text()
    fleet.publish(write(tmp_path / "2", stepped(tensors, random)), stream)


def other_boot(slots):
    """Make every slot look as if it was written before the machine was started anew."""
    for path in slots.iterdir():
        if path.is_dir() and (path / ".patchswarm-slot").exists():
            state = read_state(Files(), path)
            write_state(Files(), path, msgspec.structs.replace(state, boot=bytes(16)))
