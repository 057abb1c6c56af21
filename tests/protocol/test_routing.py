"""Which way leads to the head when parts of it are not to be had any more."""

import pytest
from msgspec import structs
from support.swarm_world import World
from support.versions import body, header

from patchswarm.protocol.effects import RouteReady
from patchswarm.protocol.manifest import Route


@pytest.fixture
def world():
    return World()


def skip_to(world, head, start, target, chunks):
    """A transition from `start` to `target` past what lies between, held by the head; its chunks."""
    made = world.publisher.version(3, node=head.node, source=start.digest, chunks=chunks)
    transition = structs.replace(made.transition, target=target.digest, kind=Route.SKIP)
    head.store |= made.chunks | made.lists
    head.say([header(transition, made.key), body(transition, made.key)])
    return made


@pytest.mark.parametrize("kept", [0, 4], ids=["all", "most"])
def test_a_step_whose_chunks_were_deleted_everywhere_is_gone_round_though_its_lists_are_offered(world, kept):
    head = world.add("head", seeds=())
    head.say([world.publisher.record()])
    first, second, third = (world.publish(head) for _ in range(3))
    skip = skip_to(world, head, first, third, chunks=30)
    for name in list(second.chunks)[kept:]:
        del head.store[name]
    head.swarm.fetch.deleted(second.attempt)
    late = world.add("late", "b")
    late.store |= first.chunks | first.lists
    late.hold(first.digest)
    world.until(lambda: late.has(third) or skip.chunks.keys() <= late.store.keys(), 30, strict=False)
    assert skip.chunks.keys() <= late.store.keys()


def test_chunks_that_a_peer_offered_and_has_not_any_more_are_gone_round_too(world):
    head = world.add("head", seeds=())
    head.say([world.publisher.record()])
    first, second, third = (world.publish(head) for _ in range(3))
    skip = skip_to(world, head, first, third, chunks=30)
    for name in second.chunks:
        del head.store[name]  # behind the core's back: it goes on to offer them
    late = world.add("late", "b")
    late.store |= first.chunks | first.lists
    late.hold(first.digest)
    world.until(lambda: skip.chunks.keys() <= late.store.keys(), 30, strict=False)
    assert skip.chunks.keys() <= late.store.keys()


def test_a_longer_way_within_the_site_is_gone_rather_than_a_shorter_one_across_sites(world):
    head = world.add("head", seeds=(), uplink=2e5)
    head.say([world.publisher.record()])
    first, second, third = (world.publish(head) for _ in range(3))
    mate = world.add("mate", "b")
    world.until(lambda: mate.has(third), 30)
    skip = skip_to(world, head, first, third, chunks=18)
    late = world.add("late", "b")
    late.store |= first.chunks | first.lists
    late.hold(first.digest)
    world.until(lambda: third.digest in late.held, 30)
    assert second.chunks.keys() | third.chunks.keys() <= late.store.keys(), "though the head was met first"
    assert not skip.chunks.keys() <= late.store.keys()


def test_a_route_is_handed_over_again_when_its_start_is_back(world):
    """A slot was withdrawn and mended: nothing is missing of the way from it, and nothing would come any more."""
    head = world.add("head", seeds=())
    head.say([world.publisher.record()])
    first, second = (world.publish(head) for _ in range(2))
    late = world.add("late", "b")
    late.store |= first.chunks | first.lists
    late.hold(first.digest)
    world.until(lambda: second.digest in late.held, 30)
    late.held, fetch, handed = frozenset(), late.swarm.fetch, []
    for name in first.chunks:
        del late.store[name]
    fetch.deleted(first.attempt)
    for held in ({first.digest}, set(), {first.digest}):
        fetch.hold("qwen", frozenset(held), lists_first=False, now_s=world.now_s)
        handed += [effect.route for effect in late.swarm.effects() if isinstance(effect, RouteReady) and effect.route]
    assert [route[0].source for route in handed] == [first.digest, first.digest]
