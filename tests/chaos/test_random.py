"""Faults at random: a trainer that publishes, a fleet with liars in it, and a schedule that the seed decides.

The seed is printed; PATCHSWARM_CHAOS_SEED runs one again. `-m slow` runs more and longer schedules.
"""

import os

import numpy as np
import pytest
from wanlab.plan import MBIT, Host, Plan, Site

from .world import world_of

WAN = 100 * MBIT
ACCESS = 400 * MBIT
HOSTS = {"a": ("a1", "a2", "head"), "b": ("b1", "b2", "b3"), "c": ("c1", "c2")}
LIES = ("wrong", "have", "have silent", "other", "stall")


def seeds(count):
    """The one that is asked for, or as many as `count`."""
    asked = os.environ.get("PATCHSWARM_CHAOS_SEED")
    return [int(asked)] if asked else list(range(1, count + 1))


def plan_of(seed):
    return Plan(
        tuple(Site(name, WAN, WAN) for name in HOSTS),
        tuple(Host(host, site, ACCESS, ACCESS) for site, hosts in HOSTS.items() for host in hosts),
        {("a", "b"): 0.02, ("a", "c"): 0.04, ("b", "c"): 0.05},
        seed=seed,
    )


def act(world, random):
    """One thing that goes wrong, or right again."""
    members = [name for name in world.honest if name != "head"]
    name = str(random.choice(members))
    node = world.swarm.nodes[name]
    match random.integers(7):
        case 0:
            world.lab.cut(str(random.choice(["b", "c"])))
        case 1:
            world.lab.heal()
        case 2 if node.running:
            world.kill(name)
        case 2 | 3 if not node.running:
            world.swarm.restart(name)
        case 4:
            world.slow_down(name, float(random.choice([0.02, 0.1, 1.0])))
        case 5:
            world.set_clock(name, float(random.choice([-86400.0, -5.0, 5.0, 3600.0])))
        case _:
            world.lab.set_loss(float(random.choice([0.0, 0.01, 0.03])))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds(4))
def test_whatever_happens_everyone_ends_with_the_trainers_bytes(request, seed):
    random = np.random.default_rng(seed)
    candidates = [host for hosts in HOSTS.values() for host in hosts if host not in ("head", "b1")]
    liars = {str(host): str(random.choice(LIES)) for host in random.choice(candidates, 2, replace=False)}
    with world_of(request, plan_of(seed), liars, seed) as world:
        for _ in range(12):
            for _ in range(random.integers(1, 4)):
                act(world, random)
            world.publish(fraction=float(random.choice([0.001, 0.02, 0.3])))
        world.make_peace()
        world.settle(within_s=180.0)
