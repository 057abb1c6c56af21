"""Skips and full transitions are made in the background: late joiners get in cheaply, and no publish waits."""

import json
import time

import numpy as np
import pytest
from support.checkpoints import files_of, model, stepped, write


@pytest.fixture
def random():
    return np.random.default_rng(8)


def configured(node, stream, **keys):
    """Set keys of a stream's table, and restart the node."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    with (node.home / "config.toml").open("a") as config:
        config.write("\n".join(["", f"[stream.{stream}]", *lines, ""]))
    if node.running:
        node.stop()
    node.start()


def logged(node, message, count):
    """Wait until `node` logged a message so often; the records."""
    while True:
        lines = [json.loads(line) for line in node.log.read_text().splitlines() if line.startswith("{")]
        found = [line for line in lines if line["message"] == message]
        if len(found) >= count:
            return found
        time.sleep(0.05)  # a log tells nobody when it grows; the test's own time limit ends this


def published(fleet, stream, tmp_path, random, versions, tensors, **options):
    """Publish steps; the last directory and its tensors."""
    for number in versions:
        directory = write(tmp_path / str(number), tensors)
        fleet.publish(directory, stream, **options)
        tensors = stepped(tensors, random)
    return directory, tensors


def test_a_joiner_with_the_base_takes_the_skip(own_fleet, stream, tmp_path, random):
    fleet, tensors = own_fleet, model()
    configured(fleet.head, stream, anchor_every=4)
    base = write(tmp_path / "base", tensors)
    fleet.publish(base, stream, "--base")
    directory, _ = published(fleet, stream, tmp_path, random, range(2, 6), stepped(tensors, random))
    made = logged(fleet.head, "anchor made", 1)[0]
    assert (made["kind"], made["version"]) == ("skip", 5)
    late = fleet.add("late", "eu-west/b", start=False)
    configured(late, stream, base=str(base))
    fleet.check(late, stream, 5, files_of(directory))


def test_every_few_versions_a_skip_leads_from_the_last_anchor_to_the_newest(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    configured(fleet.head, stream, anchor_every=2)
    sleeper = fleet.add("sleeper", "eu-west/b")
    _, tensors = published(fleet, stream, tmp_path, random, [1], model())
    sleeper.stop()
    for number in (2, 3):
        directory, tensors = published(fleet, stream, tmp_path, random, [number], tensors)
    skip = logged(fleet.head, "anchor made", 1)[0]
    assert (skip["kind"], skip["version"]) == ("skip", 3)
    sleeper.start()
    fleet.check(sleeper, stream, 3, files_of(directory))


def test_a_full_transition_is_made_as_often_as_asked(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    configured(fleet.head, stream, anchor_every=0, full_every=3)
    directory, tensors = published(fleet, stream, tmp_path, random, range(1, 5), model())
    full = logged(fleet.head, "anchor made", 1)[0]
    assert (full["kind"], full["version"]) == ("full", 4)
    late = fleet.add("late", "eu-west/b")
    fleet.check(late, stream, 4, files_of(directory))
    fleet.publish(write(tmp_path / "5", tensors), stream)


def test_the_ways_in_outlive_the_retention_of_everything_else(own_fleet, stream, tmp_path, random):
    fleet = own_fleet
    config = fleet.head.home / "config.toml"
    config.write_text(config.read_text().replace("# retain_versions = 16", "retain_versions = 1"))
    configured(fleet.head, stream, anchor_every=2)
    directory, _ = published(fleet, stream, tmp_path, random, range(1, 7), model())
    logged(fleet.head, "old chunks deleted", 1)
    late = fleet.add("late", "eu-west/b")
    fleet.check(late, stream, 6, files_of(directory))


def test_no_publish_waits_for_an_anchor(own_fleet, stream, tmp_path, random):
    """Every version makes a full transition and a skip due, of a model on which that takes as long as a publish."""
    fleet = own_fleet
    side = {"big.bin": random.bytes(32 << 20)}

    def seconds(name, first):
        tensors, took = model(), []
        for number in range(first, first + 6):
            tensors = stepped(tensors, random)
            directory = write(tmp_path / f"{name}-{number}", tensors, side=side)
            took.append(fleet.head.publish(directory, name)["seconds"]["total"])
        return np.median(took[1:])

    configured(fleet.head, f"{stream}-without", anchor_every=0)
    alone = seconds(f"{stream}-without", 1)
    configured(fleet.head, f"{stream}-with", anchor_every=1, full_every=1)
    beside = seconds(f"{stream}-with", 1)
    assert beside < 3 * alone + 1.0, f"{beside:.2f} s beside anchors, {alone:.2f} s without"
    logged(fleet.head, "anchor made", 1)
