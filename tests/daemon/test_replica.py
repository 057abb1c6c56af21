"""A replica in a whole daemon: what keeps it from a version, and what it makes of damage, leases and lies."""

import asyncio

import pytest
from daemon.single import Single, head_of, member_of, until
from support.streams import model, read_tree, write_tree
from support.versions import Publisher

from patchswarm.daemon import making, node, rebuilding, replica
from patchswarm.daemon.fleet.record import OwnRecord
from patchswarm.protocol.effects import Dropped, StreamKnown
from patchswarm.storage.errors import CatalogError, SlotsBusyError
from patchswarm.storage.slots import StreamSlots
from patchswarm.storage.trust import Parent

STREAM = "qwen"


@pytest.fixture
async def member(head, root, monkeypatch):
    monkeypatch.setattr(replica, "FAILURE_RETRY_S", 0.2)
    monkeypatch.setattr(replica, "BUSY_RETRY_S", 0.2)
    async with member_of(head, root) as running:
        yield running


async def travels(head, member, root, steps):
    """A version gets from the head to the member, byte for byte."""
    made = await published(head, root, steps)
    slot = await member.committed(STREAM, made.slot.version)
    assert read_tree(slot.path) == model(1, steps)
    return slot


async def published(head, root, steps):
    return await head.publish(STREAM, write_tree(root / "trainer" / str(steps), model(1, steps)))


def slots_of(single, version):
    return [slot for slot in single.node.replicas[STREAM].slots.slots() if slot.version == version]


async def twin_made(single, version):
    await until(lambda: any(slot.twin for slot in slots_of(single, version)))


def spoil(path):
    """Change every byte of a slot's first shard behind its header."""
    data = bytearray(path.read_bytes())
    data[1000:] = bytes(byte ^ 255 for byte in data[1000:])
    with path.open("r+b") as file:
        file.write(data)


async def test_after_a_commit_the_slot_behind_becomes_a_twin_and_the_version_is_proven(head, member, root):
    await travels(head, member, root, 0)
    await travels(head, member, root, 1)
    await twin_made(member, 2)
    await until(lambda: member.node.replicas[STREAM].current().proven)
    (twin,) = [slot for slot in slots_of(member, 2) if slot.twin]
    assert read_tree(twin.path) == model(1, 1)


async def test_what_a_slot_held_before_it_was_written_is_no_way_to_the_head_any_more(head, member, root):
    await travels(head, member, root, 0)
    await twin_made(member, 1)
    (first,) = member.fleet.swarm.gossip.routes(STREAM)
    await travels(head, member, root, 1)
    await twin_made(member, 2)
    of = member.node.replicas[STREAM]
    await until(lambda: member.fleet.swarm.fetch.routing.following[STREAM].held == {of.current().manifest})
    (step,) = [each for each in member.fleet.swarm.gossip.routes(STREAM) if each.source]
    assert of._can_follow((first,))
    assert not of._can_follow((step,)), "its start was overwritten by the twin"


async def test_after_many_steps_in_one_go_the_slot_behind_is_copied(head, root, monkeypatch):
    async with member_of(head, root) as member:
        await travels(head, member, root, 0)
        await twin_made(member, 1)
        home, config = member.home, member.config
    for steps in range(1, rebuilding.APPLIED_LEGS + 3):
        made = await published(head, root, steps)
    applied, apply = [], rebuilding.Rebuilder._apply

    def spy(self, route, *onto):
        applied.append([leg.version for leg in route])
        return apply(self, route, *onto)

    monkeypatch.setattr(rebuilding.Rebuilder, "_apply", spy)
    async with Single(home, config).running() as again:
        await again.committed(STREAM, made.slot.version)
        await twin_made(again, made.slot.version)
        (twin,) = [slot for slot in slots_of(again, made.slot.version) if slot.twin]
        assert read_tree(twin.path) == model(1, rebuilding.APPLIED_LEGS + 2)
    (own,) = [versions for versions in applied if len(versions) > 1]  # the head brings its own slots on step by step
    assert own == list(range(2, made.slot.version + 1)), "all in one go, and once"


async def test_a_damaged_spare_is_found_out_and_the_version_built_without_it(head, member, root):
    await travels(head, member, root, 0)
    await twin_made(member, 1)
    (twin,) = [slot for slot in slots_of(member, 1) if slot.twin]
    spoil(twin.path / "model-00001.safetensors")
    await travels(head, member, root, 1)
    following = member.fleet.swarm.fetch.routing.following[STREAM]
    assert following.bad == set(), "the transition was not at fault"


async def test_a_transition_that_contradicts_a_whole_base_is_marked_bad_and_not_tried_again(
    head, member, root, monkeypatch
):
    await travels(head, member, root, 0)
    await twin_made(head, 1)
    (parent,) = [slot for slot in slots_of(head, 1) if not slot.twin]
    spoil(parent.path / "model-00001.safetensors")
    # A head that does not check its parent.
    monkeypatch.setattr(making, "Parent", lambda files, digests, checks: Parent(files, b""))
    rebuilds, rebuild = [], rebuilding.Rebuilder.rebuild
    monkeypatch.setattr(
        rebuilding.Rebuilder, "rebuild", lambda self, *legs: (rebuilds.append(legs), rebuild(self, *legs))[1]
    )
    made = await published(head, root, 1)
    following = member.fleet.swarm.fetch.routing.following[STREAM]
    await until(lambda: following.bad)
    (attempt,) = following.bad
    (step,) = [each for each in member.fleet.swarm.gossip.routes(STREAM) if each.attempt == attempt]
    assert step.target == made.slot.manifest
    tried = len([legs for legs in rebuilds if legs[0][0].attempt == attempt])
    member.node.replicas[STREAM].slot_freed()
    await asyncio.sleep(0.5)  # twice what it waits before it tries again
    assert len([legs for legs in rebuilds if legs[0][0].attempt == attempt]) == tried
    assert not any(slot.withdrawn for slot in slots_of(member, 1))


async def test_a_version_waits_for_a_slot_and_goes_on_when_the_reader_lets_go(head, member, root):
    await travels(head, member, root, 0)
    lease = await member.node.service.lease(STREAM, 1, 600.0)
    await travels(head, member, root, 1)
    held = await member.node.service.lease(STREAM, 2, 600.0)
    made = await published(head, root, 2)
    of = member.node.replicas[STREAM]
    await until(lambda: of.failure is not None)
    assert "slots of qwen are in use" in of.failure.detail
    assert of.current().version == 2
    await member.node.service.release(STREAM, lease.lease)
    slot = await member.committed(STREAM, made.slot.version)
    assert read_tree(slot.path) == model(1, 2)
    await until(lambda: of.failure is None)
    await member.node.service.release(STREAM, held.lease)


async def test_a_withdrawn_version_is_not_served_and_its_readers_are_cut_off(head, member, root):
    await travels(head, member, root, 0)
    of = member.node.replicas[STREAM]
    async with member.node.service.open_version(STREAM, 1) as opened:
        (slot,) = [slot for slot in slots_of(member, 1) if not slot.twin]
        await asyncio.to_thread(of.withdraw, slot)
        await until(opened.voided.is_set)
    assert of.current() is None or of.current().proven


async def test_a_reader_that_leaves_while_it_takes_its_lease_holds_nothing(head, member, root, monkeypatch):
    await travels(head, member, root, 0)
    slots, lease = member.node.replicas[STREAM].slots, StreamSlots.lease
    entered, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(self, *arguments, **options):
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
        return lease(self, *arguments, **options)

    monkeypatch.setattr(StreamSlots, "try_lease", lambda *_arguments, **_options: None)  # a thread is at work
    monkeypatch.setattr(StreamSlots, "lease", slow)

    async def read():
        async with member.node.service.open_version(STREAM, 1):
            pass

    reader = asyncio.create_task(read())
    await entered.wait()
    reader.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert not slots._book.is_held(1, 1)


# -- what must not end the daemon ----------------------------------------------------------------------------


async def test_a_catalog_that_fails_for_a_moment_does_not_end_the_daemon(head, root, monkeypatch):
    monkeypatch.setattr(node, "LEASE_CHECK_S", 0.01)
    monkeypatch.setattr(node, "RETENTION_S", 0.01)
    await published(head, root, 0)
    failures = []

    def failing(*_arguments, **_options):
        failures.append(1)
        raise CatalogError("the catalog cannot be used: disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(StreamSlots, "expire", failing)
        patch.setattr("patchswarm.daemon.retention.delete_chunks", failing)
        await until(lambda: len(failures) > 3)
    made = await published(head, root, 1)
    assert made.slot.version == 2


async def test_chunks_that_cannot_be_deleted_do_not_end_the_daemon(head, root, monkeypatch):
    tried = []

    def failing(name):
        tried.append(name)
        raise PermissionError("read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(head.store, "remove", failing)
        head.node._take(Dropped(bytes(16), (bytes(32),)))
        await until(lambda: tried)
    assert (await published(head, root, 0)).slot.version == 1


@pytest.mark.parametrize("error", [PermissionError("not yours"), CatalogError("damaged"), SlotsBusyError("busy")])
async def test_a_stream_that_cannot_be_followed_here_leaves_the_others_be(head, root, monkeypatch, error):
    with monkeypatch.context() as patch:
        patch.setattr(StreamSlots, "open", lambda self: (_ for _ in ()).throw(error))
        head.node._take(StreamKnown("elsewhere"))
    assert "elsewhere" not in head.node.replicas
    assert (await published(head, root, 0)).slot.version == 1


async def test_a_catalog_with_thousands_of_objects_is_learned_again_and_what_is_old_forgotten(root, monkeypatch):
    window = 400
    monkeypatch.setattr("patchswarm.protocol.gossip.WINDOW", window)
    async with head_of(root) as head:
        publisher, objects = Publisher(ca=head.identity.ca_key), []
        source = b""
        kind, data = publisher.record()
        head.fleet.publish(kind, data)
        for number in range(1, window + 60):
            made = publisher.version(number, node=head.fleet.node, source=source, chunks=1, size=20)
            source = made.digest
            objects += [*made.begin(), *made.end()]
        for kind, data in objects:
            head.fleet.publish(kind, data)
        await until(lambda: in_catalog(head) == known(head))
        home, config, before = head.home, head.config, head.fleet.swarm.gossip.head(publisher.stream)
    async with Single(home, config).running() as again:
        await until(lambda: again.fleet.swarm.gossip.head(publisher.stream) == before)
        assert len(again.fleet.swarm.gossip.manifests) == window
        assert len(again.fleet.swarm.gossip.routes(publisher.stream)) == window
        await until(lambda: in_catalog(again) == known(again))


def in_catalog(single):
    return {name for _, name, _ in single.catalog.objects()}


def known(single):
    return {name for _, name, _ in single.fleet.swarm.gossip.durable()}


async def test_serials_rise_over_all_lives(root):
    async with head_of(root) as head:
        first = OwnRecord(head.identity, head.catalog, "a", ())
        second = OwnRecord(head.identity, head.catalog, "a", ())
        assert second._serial > first._serial + 1000
        assert second._incarnation != first._incarnation
