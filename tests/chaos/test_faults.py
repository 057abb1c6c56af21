"""A small fleet over a WAN, with a liar of each kind in it: every fault on its own, one after the other."""

import pytest
from wanlab.plan import MBIT, Host, Plan, Site

from .world import world_of

pytestmark = pytest.mark.timeout(300)  # seven daemons on whatever machine this is

SEED = 7
WAN = 100 * MBIT
ACCESS = 400 * MBIT
HOSTS = {"head": "a", "a1": "a", "a2": "a", "b1": "b", "b2": "b", "b3": "b", "b4": "b"}
LIARS = {"a2": "wrong", "b2": "have", "b3": "have silent"}


@pytest.fixture(scope="module")
def fleet(request):
    plan = Plan(
        (Site("a", WAN, WAN), Site("b", WAN, WAN)),
        tuple(Host(name, site, ACCESS, ACCESS) for name, site in HOSTS.items()),
        {("a", "b"): 0.02},
        seed=SEED,
    )
    with world_of(request, plan, LIARS, SEED) as world:
        yield world


@pytest.fixture
def world(fleet):
    """The fleet, at peace before and after each test."""
    yield fleet
    fleet.make_peace()


def test_liars_waste_bandwidth_and_nothing_else(world):
    world.publish()
    world.settle()
    world.publish()
    world.settle()


def test_a_parted_site_has_the_newest_version_after_the_cut(world):
    world.lab.cut("b")
    world.publish()
    world.settle(names=["head", "a1"])
    assert world.swarm.nodes["b1"].client.version("lab").version < world.version
    world.lab.heal()
    world.settle()


@pytest.mark.slow
def test_a_site_cut_off_in_the_middle_of_a_transfer_completes_it(world):
    world.slow_down("head", 0.05)
    world.publish(fraction=0.5)
    world.lab.cut("b")
    world.settle(names=["a1"])
    world.lab.heal()
    world.slow_down("head", 1.0)
    world.settle()


def test_a_killed_member_keeps_what_it_committed_and_catches_up(world):
    world.kill("b1")
    world.publish()
    world.settle(names=["b4"])
    world.swarm.restart("b1")
    world.settle()


def test_the_head_may_die_once_one_member_has_the_version(world):
    world.lab.cut("b")
    world.publish()
    world.settle(names=["a1"])
    world.kill("head")
    world.lab.heal()
    world.settle()
    world.swarm.restart("head")
    world.settle()


def test_a_slow_host_holds_up_nobody(world):
    world.slow_down("a1", 0.01)
    world.publish(fraction=0.2)
    world.settle(names=["b1", "b4"], within_s=30.0)
    world.slow_down("a1", 1.0)
    world.settle()


def test_wall_clocks_may_jump(world):
    world.set_clock("head", 3600.0)
    world.set_clock("b1", -86400.0)
    world.publish()
    world.settle()
    world.set_clock("b1", 86400.0)
    world.publish()
    world.settle()


@pytest.mark.slow
def test_packets_may_be_lost(world):
    world.lab.set_loss(0.03)
    world.publish(fraction=0.1)
    world.settle()
    world.lab.set_loss(0.0)
