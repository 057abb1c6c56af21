"""World: a fleet of watched members in the WAN lab, a trainer, and what can go wrong with them."""

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from support.checkpoints import files_of, model, stepped, write
from wanlab.lab import running
from wanlab.swarm import STREAM, Swarm
from wanlab.witness import Witnesses

from .history import History

MEMORY = Path("/dev/shm")


class World:
    """Honest members and liars. `publish` and the faults may be mixed at will; `settle` ends with peace."""

    def __init__(self, lab, root, liars, random):
        self.lab = lab
        self.witnesses = Witnesses(root, liars)
        self.swarm = Swarm(lab, root, self.witnesses.prepare)
        self.history = History()
        self.version = 0
        self._root = root
        self._liars = liars
        self._random = random
        self._names = {}
        self._tensors = model(int(random.integers(1000)), layers=6)

    def begin(self, names):
        """Start everyone."""
        self.swarm.start(names)
        self._names = {self.swarm.id_of(name): name for name in self.swarm.nodes}
        for name in self.honest:
            self.history.follow(self.swarm.nodes[name])

    @property
    def honest(self):
        """Members that do not lie."""
        return [name for name in self.swarm.nodes if name not in self._liars]

    def publish(self, fraction=0.02):
        """Train a step and publish it."""
        self._tensors = stepped(self._tensors, self._random, fraction)
        directory = write(self._root / "trainer" / str(self.version + 1), self._tensors)
        self.version += 1
        self.history.truth[self.version] = files_of(directory)
        announced = self.swarm.publish(directory)
        assert announced.version == self.version
        shutil.rmtree(directory)

    def kill(self, name):
        """No chance to tidy up."""
        self.swarm.nodes[name].kill()

    def set_clock(self, name, seconds):
        """Let the wall clock of a member jump."""
        self.witnesses.set_clock(name, seconds)

    def slow_down(self, name, share):
        """Let a host's own link have this share of its rate."""
        host = self.lab.plan.host(name)
        self.lab.set_rate(f"{name} up", host.up * share)
        self.lab.set_rate(f"{name} down", host.down * share)

    def make_peace(self):
        """End every fault, and start whoever was killed."""
        self.lab.heal()
        self.lab.set_loss(self.lab.plan.loss)
        for name, node in self.swarm.nodes.items():
            self.slow_down(name, 1.0)
            self.set_clock(name, 0.0)
            if not node.running:
                self.swarm.restart(name)

    def settle(self, within_s=60.0, names=None):
        """Wait until every honest member, or these, have the newest version; check what all have seen until now."""
        names = [name for name in names or self.honest if self.swarm.nodes[name].running]
        for name in names:
            node = self.swarm.nodes[name]
            current = node.client.wait(STREAM, self.version, within_s)
            assert current is not None, f"{name} has no version {self.version} after {within_s:.0f} s"
            with node.client.lease(STREAM, self.version) as lease:
                assert files_of(lease.path) == self.history.truth[self.version], name
        self.check()

    def check(self):
        """No reader saw what may not be, and no honest member ever sent a byte that it had not verified."""
        assert self.history.wrong == []
        blamed = {self._names[node] for name in self.honest for node in self.witnesses.wrong_senders(name)}
        assert blamed <= set(self._liars)


@contextmanager
def world_of(request, plan, liars, seed):
    """A world on every host of the plan. `liars` maps hosts to their lies, see `wanlab.member`.

    What the members logged is shown when a test of theirs failed.
    """
    print(f"seed {seed}; lies: {liars}")
    failed = request.session.testsfailed
    root = Path(tempfile.mkdtemp(prefix="chaos-", dir=MEMORY if MEMORY.is_dir() else None))
    begun = False
    try:
        with running(plan) as lab:
            world = World(lab, root, liars, np.random.default_rng(seed))
            with world.swarm:
                try:
                    world.begin([host.name for host in plan.hosts])
                    begun = True
                    yield world
                finally:
                    world.history.close()
    finally:
        if request.session.testsfailed > failed or not begun:
            for log in sorted(root.glob("*.log")):
                print(f"==== {log.name}\n{log.read_text()[-4000:]}")
        shutil.rmtree(root, ignore_errors=True)
