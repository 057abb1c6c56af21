"""Fleets of real daemons on loopback."""

import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from local_fleet import LocalFleet
from support.checkpoints import files_of

WAIT_S = 120


class Fleet(LocalFleet):
    """A fleet whose every version is compared on every node."""

    def publish(self, directory, stream, *arguments, on=None):
        """Publish on the head, wait until `on` (all running nodes) have it, compare every file; what `publish` said."""
        truth = files_of(directory)
        result = self.head.publish(directory, stream, *arguments)
        for node in on or self.running():
            self.check(node, stream, result["version"], truth)
        return result

    def check(self, node, stream, version, truth):
        """Wait until `node` has the version, and compare its files."""
        current = node.client.wait(stream, version, WAIT_S)
        assert current is not None, f"{node.name} has no version {version} of {stream}: {node.log.read_text()[-3000:]}"
        with node.client.lease(stream, version) as lease:
            assert files_of(lease.path) == truth, node.name

    def running(self):
        """Nodes whose daemons run."""
        return [node for node in self.nodes.values() if node.running]


@contextmanager
def fleet_of(request, rollouts):
    """A head and these rollout nodes, by name and site. What they logged is shown when a test of theirs failed."""
    root = Path(tempfile.mkdtemp(prefix="patchswarm-"))  # short: a socket's path has at most 107 bytes
    failed = request.session.testsfailed
    try:
        with Fleet(root) as fleet:
            fleet.add_head("us-east/a")
            for name, site in rollouts.items():
                fleet.add(name, site)
            yield fleet
    finally:
        if request.session.testsfailed > failed:
            for log in sorted(root.glob("*.log")):
                print(f"==== {log.name}\n{log.read_text()[-6000:]}")
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def fleet(request):
    """A head and a rollout node in each of two sites, shared by all tests that leave it running."""
    with fleet_of(request, {"east": "us-east/a", "west": "eu-west/b"}) as shared:
        yield shared


@pytest.fixture
def own_fleet(request):
    """A head, for tests that stop, kill or add nodes."""
    with fleet_of(request, {}) as own:
        yield own


@pytest.fixture
def stream(request):
    """A stream that no other test uses."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[-60:].strip("-")
