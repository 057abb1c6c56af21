"""Small worlds that run in about a second each."""

from dataclasses import replace

from simulator.places import MBIT, Host, Lie, Map, Patch, map_of_sites
from simulator.trust import remembered_signatures
from simulator.world import Options, World

PATCH = Patch(2_000_000, 24)


def small_map(seed: int, *members: int, labels: bool = True, loss: float = 0.0) -> Map:
    """Sites on 100 Mbit/s links with hosts on 400 Mbit/s ones."""
    return map_of_sites(members, wan=100 * MBIT, access=400 * MBIT, seed=seed, labels=labels, loss=loss)


def thin_map(seed: int, *members: int) -> Map:
    """Sites on 40 Mbit/s links with hosts on 200 Mbit/s ones."""
    return map_of_sites(members, wan=40 * MBIT, access=200 * MBIT, seed=seed)


def with_host(map_: Map, number: int, **changes: object) -> Map:
    """The map with one host changed."""
    hosts = list(map_.hosts)
    hosts[number] = replace(hosts[number], **changes)
    return replace(map_, hosts=tuple(hosts))


def with_hosts(map_: Map, **changes: object) -> Map:
    """The map with all hosts but the head changed."""
    head, *others = map_.hosts
    return replace(map_, hosts=(head, *(replace(host, **changes) for host in others)))


def liars(map_: Map, lie: Lie, *numbers: int) -> Map:
    """The map with some hosts lying."""
    for number in numbers:
        map_ = with_host(map_, number, lie=lie)
    return map_


def make(map_: Map, seed: int, patch: Patch = PATCH, **options: object) -> World:
    """A world that has not run. Call within `remembered_signatures`."""
    return World(map_, patch, Options(seed=seed, **{"warm_up_s": 6.0, "give_up_s": 120.0, **options}))


def run(map_: Map, seed: int, patch: Patch = PATCH, **options: object) -> World:
    """A world that has run."""
    with remembered_signatures():
        world = make(map_, seed, patch, **options)
        world.run()
    return world


def check(world: World) -> None:
    """What must hold in every world: everyone gets there, and no invariant was broken on the way."""
    where = f"seed {world.options.seed}"
    assert world.violations == [], where
    assert world.complaints == [], where
    assert [node.number for node in world.unfinished()] == [], where
    names = {name for name, _ in world.releases[-1].chunks}
    for node in world.nodes:
        if node.alive and not node.host.lie:
            assert node.version == world.releases[-1].version, where
            assert names <= node.store, where


__all__ = ["PATCH", "Host", "check", "liars", "make", "run", "small_map", "with_host", "with_hosts"]
