"""docs/operations.md's ways back from a loss are ways back: what it says is typed, and the fleet goes on publishing."""

import shutil

import numpy as np
import pytest
from local_fleet import free_port
from support.checkpoints import files_of, model, stepped, write

from patchswarm.daemon.local.client import Client

from .machines import Machine
from .markdown import Block, Page
from .plan import Run, plan_of

PAGE = Page("docs/operations.md")
TO_RUN = [block for block in PAGE.blocks if block.language == "sh" and isinstance(plan_of(block), Run)]
WAIT_S = 60


class Tale:
    """A head and a rollout host, and the page's blocks that were run on them."""

    def __init__(self, root):
        addresses = {name: f"127.0.0.1:{free_port()}" for name in ("head", "rollout")}
        said: dict[str, str] = {}
        self._root = root
        self._machines = {name: Machine(root, name, addresses, said=said) for name in addresses}
        self._tensors = model(1)
        self.told = []

    def close(self):
        for machine in self._machines.values():
            machine.close()

    def type(self, name, *lines):
        """Type lines on a machine."""
        self._machines[name].shell(Block("the test", 0, "sh", "\n".join(lines) + "\n"))

    def tell(self, start):
        """Run the page's block that begins so."""
        (block,) = (block for block in TO_RUN if block.text.startswith(start))
        self._machines[plan_of(block).on].shell(block)
        self.told.append(block)

    def stop(self, name):
        self._machines[name].close()

    def lose(self, name):
        """Stop a machine's daemon, and empty its home."""
        self.stop(name)
        shutil.rmtree(self._machines[name].home)
        self._machines[name].home.mkdir(mode=0o700)

    def publish(self, name, number):
        """Publish the next version on a machine; its files."""
        directory = write(self._root / "checkpoints" / str(number), self._tensors)
        self._tensors = stepped(self._tensors, np.random.default_rng(number))
        self.type(name, f"patchswarm publish /checkpoints/{number} --stream qwen")
        return files_of(directory)

    def has(self, name, version, truth):
        """Whether a machine comes to serve that version, with these bytes."""
        client = Client(self._machines[name].home / "patchswarm.sock")
        assert client.wait("qwen", version, WAIT_S) is not None, f"{name} has no version {version}"
        with client.lease("qwen", version) as lease:
            return files_of(lease.path) == truth

    def epoch(self, name):
        """The epoch of what a machine serves."""
        return Client(self._machines[name].home / "patchswarm.sock").version("qwen").epoch


@pytest.mark.timeout(240)
def test_a_fleet_comes_back_from_what_the_page_says_it_comes_back_from(root):
    tale = Tale(root)
    try:
        for name in ("head", "rollout"):
            tale.type(name, "export PATCHSWARM_HOME=/var/lib/patchswarm")
        tale.type("head", "patchswarm init --site a --listen 10.0.0.5:7340", "patchswarm daemon &", "patchswarm invite")
        tale.type("rollout", "patchswarm join TOKEN --site b --listen 0.0.0.0:7340", "patchswarm daemon &")
        assert tale.has("rollout", 1, tale.publish("head", 1))

        tale.tell("install -d")
        tale.tell("tar -C /var/lib/patchswarm -czf")
        second = tale.publish("head", 2)
        assert tale.has("rollout", 2, second)
        tale.lose("head")
        tale.tell("tar -C /var/lib/patchswarm -xzf")
        assert tale.has("head", 2, second)
        third = tale.publish("head", 3)
        assert tale.has("rollout", 3, third)

        tale.lose("head")
        tale.stop("rollout")
        tale.tell("patchswarm publisher adopt")
        tale.type("rollout", "patchswarm daemon &")
        assert tale.has("rollout", 3, third)
        fourth = tale.publish("rollout", 4)
        assert tale.has("rollout", 4, fourth)
        assert tale.epoch("rollout") == 2

        tale.stop("rollout")
        tale.tell("patchswarm publisher rotate")
        tale.type("rollout", "patchswarm daemon &", "patchswarm invite")
        assert tale.has("rollout", 4, fourth)
        assert tale.has("rollout", 5, tale.publish("rollout", 5))
        assert tale.epoch("rollout") == 3
        tale.tell("patchswarm revoke")
    finally:
        tale.close()
    assert tale.told == TO_RUN, "blocks of the page that were not run, or not in its order"
