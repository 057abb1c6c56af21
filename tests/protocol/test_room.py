"""Room is asked for before the first request, for all that is still to come; without it nothing is asked for."""

import pytest
from support.swarm_world import World


class Disk:
    """Room for so many bytes in all; what was asked, in order."""

    def __init__(self, free):
        self.free = free
        self.asked = []
        self.aside = {}

    def ask(self, stream, size, version):
        self.asked.append((size, version))
        self.aside.pop(stream, None)
        fits = sum(self.aside.values()) + size <= self.free
        if fits:
            self.aside[stream] = size
        return fits


@pytest.fixture
def world():
    return World()


def watched(world, disk):
    """A head and a member; at every request of the member, what was set aside for it."""
    head, member = world.fleet(b=1)
    member.swarm.fetch.routing.room = disk.ask
    world.run(5)
    covered = []
    send = world.send

    def sending(host, wire, message):
        if host is member and type(message).__name__ == "Request":
            covered.append(disk.aside.get(world.publisher.stream, 0))
        send(host, wire, message)

    world.send = sending
    return head, member, covered


def received(world, version, member):
    return sum(world.received[member.name, name] for name in version.chunks)


def test_all_of_a_version_is_set_aside_before_its_first_chunk_is_asked_for(world):
    disk = Disk(10**9)
    head, member, covered = watched(world, disk)
    version = world.draft(head, chunks=24)
    head.begin(version)
    head.finish(version)
    world.until(lambda: member.has(version), 10)
    whole = sum(map(len, version.chunks.values()))
    assert covered[0] >= whole
    assert all(size > 0 for size in covered)
    assert {version for _, version in disk.asked if version} == {100 * whole}


def test_nothing_is_asked_for_without_room_and_all_comes_once_there_is(world):
    disk = Disk(0)
    head, member, covered = watched(world, disk)
    version = world.publish(head, chunks=8)
    world.run(20)
    assert covered == []
    assert received(world, version, member) == 0
    disk.free = 10**9
    world.until(lambda: member.has(version), 5)


def test_what_is_set_aside_shrinks_as_chunks_come_and_ends_with_the_last(world):
    disk = Disk(10**9)
    head, member, _ = watched(world, disk)
    head.uplink = 200_000.0
    version = world.publish(head, chunks=40)
    world.until(lambda: received(world, version, member) >= 20, 60)
    world.run(1.5)
    missing = sum(len(data) for name, data in version.chunks.items() if name not in member.store)
    assert 0 < disk.aside[world.publisher.stream] < sum(map(len, version.chunks.values()))
    assert disk.aside[world.publisher.stream] >= missing
    world.until(lambda: member.has(version), 60)
    world.run(1.5)
    assert disk.aside[world.publisher.stream] == 0


def test_a_version_in_the_making_is_set_aside_by_the_step_before_it(world):
    disk = Disk(10**9)
    head, member, covered = watched(world, disk)
    first = world.publish(head, chunks=8)
    world.until(lambda: member.has(first), 10)
    step = world.publish(head, chunks=8)
    world.until(lambda: member.has(step), 10)
    version = world.draft(head, chunks=8)
    del covered[:]
    head.begin(version)
    head.seed_pages(version, 1)
    world.run(2)
    assert covered
    assert covered[0] >= sum(map(len, step.chunks.values()))


def test_a_disk_that_fills_in_mid_download_stops_it_and_it_goes_on_later(world):
    disk = Disk(10**9)
    head, member, covered = watched(world, disk)
    head.uplink = 200_000.0
    version = world.publish(head, chunks=40)
    world.until(lambda: received(world, version, member) >= 5, 60)
    disk.free = 0
    world.run(3)
    here, asked = received(world, version, member), len(covered)
    world.run(10)
    assert len(covered) == asked
    assert here <= received(world, version, member) < 40
    disk.free = 10**9
    world.until(lambda: member.has(version), 60)
