"""What is asked of a mirror: chunks that nobody offers, in any order, at once where there is nobody."""

from dataclasses import replace

import pytest
from msgspec import structs
from support.swarm_world import World

from patchswarm.protocol import mirrored

STREAM = "qwen"


@pytest.fixture
def world():
    return World()


def taught(member, head, *versions):
    """The member learns these versions as from a mirror's list, which has every chunk of them."""
    gossip = head.swarm.gossip
    attempts = {version.attempt for version in versions}
    bodies = {version.digest for version in versions}
    bodies |= {name for name, each in gossip.transitions.items() if each.attempt in attempts}
    member.say(gossip.words_for(STREAM, bodies))
    member.swarm.fetch.mirrored.holds(STREAM, frozenset(attempts))
    member.act()


def take(world, member, contents, limit_bytes=10**9):
    """Take from the mirror what the member asks for now; what it asked for."""
    orders = member.swarm.fetch.mirrored.orders(limit_bytes, world.now_s)
    for order in orders:
        if order.name in contents:
            member.store[order.name] = contents[order.name]
            member.swarm.fetch.mirrored.close(order, world.now_s, arrived=True)
            member.swarm.fetch.stored(order.name, world.now_s)
        else:
            member.swarm.fetch.mirrored.close(order, world.now_s, arrived=False)
    member.act()
    world.run(0.1)
    return orders


def alone(world, *versions):
    """A head, and a member that reaches nobody."""
    head, member = world.add("head", seeds=()), world.add("member", "b", seeds=())
    head.say([world.publisher.record()])
    made = [world.publish(head) for _ in range(*versions)]
    return head, member, made


def contents_of(*versions):
    return {name: data for version in versions for name, data in (version.chunks | version.lists).items()}


def test_a_node_that_reaches_nobody_gets_a_version_from_a_mirror(world):
    head, member, (version,) = alone(world, 1)
    taught(member, head, version)
    contents = contents_of(version)
    assert {order.name for order in take(world, member, contents)} == set(version.lists)
    assert {order.name for order in take(world, member, contents)} == set(version.chunks)
    world.until(lambda: member.has(version), 5)
    assert take(world, member, contents) == []


def test_the_cheapest_route_counts_though_no_peer_offers_any(world):
    """A full transition of one leg costs more than steps over which less has to come."""
    head, member, versions = alone(world, 3)
    taught(member, head, versions[0])
    contents = contents_of(*versions)
    while take(world, member, contents):
        pass
    assert member.has(versions[0])
    full = world.publisher.version(3, node=head.node, chunks=200)
    head.store |= full.chunks | full.lists
    taught(member, head, *versions)
    asked = set()
    while orders := take(world, member, contents):
        asked |= {order.attempt for order in orders}
    assert member.has(versions[2])
    assert asked == {versions[1].attempt, versions[2].attempt}


def test_nothing_is_asked_of_a_mirror_that_a_peer_offers(world):
    head, member = world.fleet(b=1)
    world.run(3)
    version = world.publish(head)
    member.swarm.fetch.mirrored.holds(STREAM, frozenset((version.attempt,)))
    asked = []
    while not member.has(version):
        world.run(0.05)
        asked += member.swarm.fetch.mirrored.orders(10**9, world.now_s)
    assert asked == []


def test_peers_are_given_a_moment_before_the_mirror_is_asked(world):
    head, member = world.fleet(b=1)
    world.run(3)
    version = world.draft(head)
    head.say(version.begin())
    head.say(version.end())  # a head that lost its chunks
    world.run(1)
    ask = member.swarm.fetch.mirrored
    ask.holds(STREAM, frozenset((version.attempt,)))
    assert ask.orders(10**9, world.now_s) == []
    assert not ask.lacks(STREAM, world.now_s)
    world.run(mirrored.PATIENCE_S + 1)
    assert ask.lacks(STREAM, world.now_s)
    assert {order.name for order in ask.orders(10**9, world.now_s)} == set(version.lists)


def test_no_more_is_asked_for_at_a_time_than_there_is_room_for(world):
    head, member, (version,) = alone(world, 1)
    taught(member, head, version)
    take(world, member, contents_of(version))
    ask = member.swarm.fetch.mirrored
    first = ask.orders(100_000, world.now_s)
    assert len(first) == 2
    second = ask.orders(1, world.now_s)
    assert len(second) == 1
    assert second[0] not in first


def test_a_chunk_that_the_mirror_lacks_is_asked_for_again_after_a_while(world):
    head, member, (version,) = alone(world, 1)
    taught(member, head, version)
    missing = len(version.lists)
    assert len(take(world, member, {})) == missing
    assert take(world, member, {}) == []
    world.run(mirrored.RETRY_S)
    assert len(take(world, member, {})) == missing


def two_ways(world):
    """A member at version 1, linked to a head that has a large full transition to version 2, and an empty step."""
    head, member = world.fleet(b=1)
    world.run(3)
    first = world.publish(head)
    world.until(lambda: member.has(first), 20)
    step = world.draft(head, after=first)
    full = world.publisher.version(2, node=head.node, chunks=40)
    full = replace(full, transition=structs.replace(full.transition, target=step.digest))
    head.store |= full.chunks | full.lists
    head.say([each for each in step.end() if each not in step.begin()])
    head.say(full.end()[1:4:2])
    return head, member, step, full


def test_the_two_ways_are_there(world):
    """Without a mirror the member takes the one that the head offers."""
    _, member, step, _ = two_ways(world)
    world.until(lambda: step.digest in member.held, 30)


@pytest.mark.parametrize("lacks", [True, False], ids=["that lacks a chunk", "that does not answer"])
def test_a_mirror_keeps_nobody_from_a_way_that_peers_offer(world, lacks):
    _, member, step, _ = two_ways(world)
    ask = member.swarm.fetch.mirrored
    ask.holds(STREAM, frozenset((step.attempt,)))
    member.act()
    asked = 0
    for _ in range(2000):
        for order in ask.orders(10**9, world.now_s):
            asked += 1
            ask.close(order, world.now_s, arrived=False, lacks=lacks)
        member.act()
        world.run(0.1)
        if step.digest in member.held:
            break
    assert asked
    assert step.digest in member.held


def test_a_mirror_that_answers_again_is_counted_on_at_once(world):
    head, member, (version,) = alone(world, 1)
    taught(member, head, version)
    ask, counted = member.swarm.fetch.mirrored, member.swarm.fetch.routing.mirrored
    while counted[STREAM]:
        for order in ask.orders(10**9, world.now_s):
            ask.close(order, world.now_s, arrived=False)
        world.run(1)
    world.run(mirrored.RETRY_S)
    take(world, member, contents_of(version))
    assert counted[STREAM] == {version.attempt}


def test_what_the_mirror_is_not_known_to_hold_is_wanted_and_not_asked_for(world):
    head, member, (version,) = alone(world, 1)
    taught(member, head, version)
    ask = member.swarm.fetch.mirrored
    ask.holds(STREAM, frozenset())
    assert ask.lacks(STREAM, world.now_s)
    assert ask.orders(10**9, world.now_s) == []
    assert not ask.lacks("llama", world.now_s)


def test_what_comes_from_the_mirror_is_offered_to_mates(world):
    head, member, (version,) = alone(world, 1)
    mate = world.add("mate", "b", seeds=("member:1",))
    world.run(3)
    head.stop()
    taught(member, head, version)
    contents = contents_of(version)
    for _ in range(100):
        take(world, member, contents)
        if mate.has(version):
            break
    assert mate.has(version)
