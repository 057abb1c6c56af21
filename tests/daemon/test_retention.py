"""Retention: what goes, what stays."""

import pytest
from msgspec.structs import replace
from support.versions import Publisher

from patchswarm.daemon.retention import delete_chunks, entry_routes, surplus
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import Route
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.retention import Limits

NODE = digest(b"head")


@pytest.fixture
def versions():
    """A full version and five steps from it."""
    publisher, made = Publisher(), []
    for number in range(1, 7):
        source = made[-1].digest if made else b""
        made.append(publisher.version(number, node=NODE, source=source, chunks=3, size=1000 if made else 50_000))
    return made


def gone(versions, limits, pinned=(), since=None, now=100.0):
    transitions = [each.transition for each in versions]
    since = {versions[number].attempt: at for number, at in (since or {}).items()}
    pinned = {versions[number].attempt for number in pinned}
    return [each.version for each in surplus(transitions, limits, pinned=pinned, since=since, now=now)]


def test_the_newest_versions_stay_and_older_ones_go_oldest_first(versions):
    assert gone(versions, Limits(count=2)) == [1, 2, 3, 4]
    assert gone(versions, Limits(count=6)) == []
    assert gone(versions, Limits(count=100)) == []
    assert gone(versions, Limits()) == []


def test_what_a_route_or_the_work_under_way_needs_stays_whatever_the_limits(versions):
    assert gone(versions, Limits(count=1), pinned=[0, 3]) == [2, 3, 5]
    assert gone(versions, Limits(count=1, size_bytes=0), pinned=range(6)) == []


def test_bytes_are_limited_too(versions):
    assert gone(versions, Limits(size_bytes=9_500)) == [1, 2, 3]
    assert gone(versions, Limits(size_bytes=15_000)) == [1]


def test_what_came_long_ago_goes(versions):
    since = {number: 10.0 * number for number in range(6)}
    assert gone(versions, Limits(age_s=65), since=since) == [1, 2, 3, 4]


def test_two_transitions_to_one_version_count_as_one_version(versions):
    skip = Publisher(seed=9).version(6, node=NODE, source=versions[0].digest, kind=Route.SKIP)
    assert gone([*versions, skip], Limits(count=1)) == [1, 2, 3, 4, 5]


def test_the_lists_of_a_registered_base_stay(versions):
    base = Publisher(seed=9).version(1, node=NODE, kind=Route.BASE, chunks=0)
    assert gone([base, *versions[1:]], Limits(count=1)) == [2, 3, 4, 5]


def test_the_ways_in_are_the_cheapest_from_nothing_and_from_each_base(versions):
    transitions = [each.transition for each in versions]
    head = versions[-1].digest
    assert entry_routes(transitions, head) == {each.attempt for each in versions}
    full = Publisher(seed=9).version(6, node=NODE, chunks=1, size=100)
    shortcut = full.transition.__class__("qwen", 1, 6, Route.FULL, b"", head, full.attempt, full.transition.parts)
    assert entry_routes([*transitions, shortcut], head) == {full.attempt}


# -- deleting ------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path, versions):
    made = ChunkStore(tmp_path / "chunks")
    for each in versions:
        for name, sealed in (each.chunks | each.lists).items():
            made.put(name, sealed)
    return made


def test_chunks_and_lists_of_what_goes_are_deleted_and_nothing_else(store, versions):
    old, new = versions[:2], versions[2:]
    count = delete_chunks(store, [each.transition for each in old], [each.transition for each in new])
    assert count == sum(len(each.chunks) + len(each.lists) for each in old)
    assert set(store.names()) == {name for each in new for name in (*each.chunks, *each.lists)}


def test_a_list_that_a_kept_transition_shares_stays(store, versions):
    one = versions[0].transition
    layout = one.parts[0].layout
    two = replace(versions[1].transition, parts=(replace(versions[1].transition.parts[0], layout=layout),))
    delete_chunks(store, [one], [two])
    assert all(store.has(name) for name, _ in layout.chunks)
    assert not any(store.has(name) for name in versions[0].chunks)


def test_a_transition_whose_index_is_not_here_is_no_obstacle(store, versions):
    index = versions[0].transition.parts[0].index
    store.remove(index.chunks[0][0])
    delete_chunks(store, [versions[0].transition, versions[1].transition], [])
    assert not any(store.has(name) for name in (*versions[1].chunks, *versions[0].lists))


def test_what_only_pages_named_goes_with_its_transition(store, versions):
    old, new = versions[0], versions[1]
    store.remove(old.transition.parts[0].index.chunks[0][0])
    count = delete_chunks(store, [old.transition], [new.transition], old.chunks)
    assert count == len(old.chunks) + len(old.lists) - 1
    assert all(store.has(name) for name in new.chunks)


def test_deleting_twice_deletes_once(store, versions):
    transitions = [versions[0].transition]
    assert delete_chunks(store, transitions, []) > 0
    assert delete_chunks(store, transitions, []) == 0
