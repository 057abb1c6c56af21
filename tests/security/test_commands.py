"""The commands that speak for the CA, as an operator runs them, with daemons that run and the CA on a stick."""

import json
import shutil
import time

import numpy as np
import pytest
from local_fleet import LocalFleet, Node
from support.checkpoints import files_of, model, stepped, write

pytestmark = pytest.mark.timeout(300)


def peers_of(node):
    return {peer["node"]: peer["connected"] for peer in json.loads(node.command("peers", "--json").stdout)["peers"]}


def within(seconds, condition):
    """Wait for what another process comes to know."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def same(node, stream, version, directory):
    assert node.client.wait(stream, version, 120) is not None, node.log.read_text()[-3000:]
    with node.client.lease(stream, version) as lease:
        return files_of(lease.path) == files_of(directory)


def test_a_cluster_with_its_ca_on_a_stick_from_init_over_revoke_to_adopt(root, tmp_path):
    stick, tensors, random = root / "stick", model(layers=1, width=64), np.random.default_rng(1)
    first = write(tmp_path / "1", tensors)
    second = write(tmp_path / "2", stepped(tensors, random))
    with LocalFleet(root) as fleet:
        head = fleet.nodes["head"] = Node(root, "head", "a")
        head.command("init", "--site", "a", "--listen", head.address, "--ca-dir", stick)
        head.command("publisher", "adopt", "qwen", "--ca-dir", stick)
        shutil.move(stick, tmp_path / "safe")
        head.start()
        heir, thief = fleet.add("heir", "b"), fleet.add("thief", "b")
        head.publish(first, "qwen")
        assert same(heir, "qwen", 1, first)
        assert same(thief, "qwen", 1, first)

        name = thief.client.node().node
        within(20, lambda: peers_of(heir).get(name))
        began = time.monotonic()
        assert json.loads(head.command("revoke", name[:12], "--json").stdout) == {"node": name, "daemon_told": True}
        within(20, lambda: name not in peers_of(heir) and name not in peers_of(head))
        assert time.monotonic() - began < 15, "seconds, two commands and a busy machine included"
        within(20, lambda: "was revoked" in thief.command("status").stdout)

        head.kill()  # and lost
        heir.stop()
        heir.command("publisher", "adopt", "qwen", "--ca-dir", tmp_path / "safe")
        heir.start()
        published = heir.publish(second, "qwen")
        assert (published["epoch"], published["version"]) == (2, 2)
        assert same(heir, "qwen", 2, second)
        assert thief.client.version("qwen").version == 1
