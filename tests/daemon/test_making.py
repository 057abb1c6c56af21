"""Making a version: exact whatever has flipped, and nothing left of what came to nothing."""

import asyncio
import threading

import msgspec
import pytest
from daemon.nodes import make_head
from daemon.single import Single, head_of, member_of, until
from support.streams import model, read_tree, write_tree

from patchswarm.daemon.errors import NotRisingError, RefusedError
from patchswarm.protocol.errors import MessageError
from patchswarm.protocol.manifest import Route
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.errors import NoSpaceError, NotACheckpointError, SlotsBusyError
from patchswarm.storage.slots import StreamSlots

STREAM = "qwen"


def trained(root, steps):
    """The trainer's directory after so many steps, and what is in it."""
    tree = model(1, steps)
    return write_tree(root / "trainer" / f"{steps}-{len(list(root.iterdir()))}", tree), tree


async def publish(head, root, steps, **options):
    directory, tree = trained(root, steps)
    made = await head.publish(STREAM, directory, **options)
    assert read_tree(made.slot.path) == tree
    return made


def known(head):
    gossip = head.fleet.swarm.gossip
    return {(each.epoch, each.version) for each in gossip.manifests.values()}


def held(head):
    """Names in the store that no known transition accounts for."""
    series = head.fleet.swarm.fetch.stock.series.values()
    named = {name for each in series for name, _ in [*each.meta, *each.chunks.values()]}
    return set(head.store.names()) - named


async def twin_made(head):
    """Wait until the slot behind is a copy of the head."""
    replica = head.node.replicas[STREAM]
    async with asyncio.timeout(20):
        while not any(slot.twin and slot.manifest == replica.current().manifest for slot in replica.slots.slots()):
            await replica.changes().wait()


def flip(path, offset=5000):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


async def test_versions_rise_and_each_is_the_trainers_bytes(head, root):
    first = await publish(head, root, 0)
    second = await publish(head, root, 1)
    assert (first.slot.version, second.slot.version) == (1, 2)
    kinds = [each.kind for each in head.fleet.swarm.gossip.routes(STREAM)]
    assert sorted(kinds)[:2] == [Route.STEP, Route.FULL]
    assert second.patch_bytes < first.patch_bytes / 5
    assert held(head) == set()


async def test_a_version_that_does_not_rise_is_refused_and_named(head, root):
    await publish(head, root, 0, version=7)
    for asked in (7, 3):
        with pytest.raises(NotRisingError, match=f"version {asked} of qwen does not rise: the newest is 7"):
            await publish(head, root, 1, version=asked)
    assert (await publish(head, root, 1)).slot.version == 8


async def test_a_stream_name_that_could_be_no_folder_is_refused(head, root):
    with pytest.raises(MessageError, match="is not allowed"):
        await head.publish("../x", trained(root, 0)[0])


async def test_a_directory_that_is_no_checkpoint_leaves_no_stream_behind(head, root):
    (root / "empty").mkdir()
    with pytest.raises(NotACheckpointError):
        await head.publish(STREAM, root / "empty")
    assert head.fleet.swarm.gossip.streams == {}


async def test_a_registered_base_sends_nothing(head, root):
    made = await publish(head, root, 0, register_only=True)
    assert (made.patch_bytes, made.chunks) == (0, 0)
    (transition,) = head.fleet.swarm.gossip.routes(STREAM)
    assert transition.kind is Route.BASE
    assert transition.source == transition.target == made.slot.manifest
    step = await publish(head, root, 1)
    assert step.patch_bytes > 0
    assert held(head) == set()


@pytest.mark.parametrize("damaged", ["parent", "spare"])
async def test_a_flipped_bit_on_the_head_is_published_exactly(head, root, damaged):
    async with member_of(head, root) as member:
        await publish(head, root, 0)
        await member.committed(STREAM, 1)
        await twin_made(head)
        slots = head.node.replicas[STREAM].slots.slots()
        (slot,) = [slot for slot in slots if slot.twin is (damaged == "spare")]
        flip(slot.path / "model-00001.safetensors")
        made = await publish(head, root, 1)
        there = await member.committed(STREAM, 2)
        assert read_tree(there.path) == read_tree(made.slot.path)
        assert member.node.replicas[STREAM].failure is None


# -- what came to nothing ------------------------------------------------------------------------------------


class Gate:
    """Lets a thread wait at a point until the test says go on."""

    def __init__(self):
        self.reached = threading.Event()
        self.open = threading.Event()

    def wait(self):
        self.reached.set()
        assert self.open.wait(20)

    async def until_reached(self):
        assert await asyncio.to_thread(self.reached.wait, 20)


def gated(monkeypatch, owner, name, *, after=False):
    """Hold calls of a method at a gate, before or after they did their work."""
    gate, original = Gate(), getattr(owner, name)

    def held_up(*arguments, **options):
        if not after:
            gate.wait()
        result = original(*arguments, **options)
        if after:
            gate.wait()
        return result

    monkeypatch.setattr(owner, name, held_up)
    return gate


async def cancelled(head, root, gate, **options):
    """Publish a step, and cancel it at the gate."""
    directory, _ = trained(root, 1)
    task = asyncio.create_task(head.publish(STREAM, directory, **options))
    await gate.until_reached()
    task.cancel()
    await asyncio.sleep(0)
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def nothing_left(head, root, before):
    """A publish that failed has left the stream as it was, and the next one works."""
    await until(lambda: set(head.store.names()) == before)
    assert known(head) == {(1, 1)}
    replica = head.node.replicas[STREAM]
    assert not replica.building_lock.locked()
    assert replica.current().version == 1
    assert (await publish(head, root, 2)).slot.version == 2
    assert held(head) == set()


@pytest.mark.parametrize("moment", ["begin", "encode", "copy"])
async def test_a_publish_that_is_cancelled_leaves_nothing(head, root, monkeypatch, moment):
    await publish(head, root, 0)
    await twin_made(head)
    before = set(head.store.names())
    with monkeypatch.context() as patch:
        match moment:
            case "begin":
                gate = gated(patch, StreamSlots, "begin", after=True)
            case "encode":
                gate = gated(patch, head.fleet._store, "put", after=True)
            case "copy":
                gate = gated(patch, StreamSlots, "begin", after=True)
        await cancelled(head, root, gate, register_only=moment == "copy")
    await nothing_left(head, root, before)


async def test_a_daemon_that_is_stopped_in_mid_publish_leaves_none_of_its_chunks(root, monkeypatch):
    async with head_of(root) as head:
        await publish(head, root, 0)
        before, home = set(head.store.names()), head.home
        gate = gated(monkeypatch, head.fleet._store, "put", after=True)
        directory, _ = trained(root, 1)
        task = asyncio.create_task(head.publish(STREAM, directory))
        await gate.until_reached()
        head.node._tasks._aborting = True  # as a task group is whose node is stopping
        task.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        head.node._tasks._aborting = False
    assert set(ChunkStore(home.chunks).names()) == before


@pytest.mark.parametrize("error", [NoSpaceError("the disk is full"), SlotsBusyError("somebody reads")])
async def test_a_commit_that_fails_leaves_no_version_not_even_after_a_restart(root, monkeypatch, error):
    async with head_of(root) as head:
        await publish(head, root, 0)
        await twin_made(head)
        before = set(head.store.names())

        def failing(*_arguments, **_options):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(StreamSlots, "commit_building", failing)
            with pytest.raises(type(error)):
                await publish(head, root, 1)
        await until(lambda: set(head.store.names()) == before)
        home, config = head.home, head.config
    async with Single(home, config).running() as again:
        await again.committed(STREAM, 1)
        assert known(again) == {(1, 1)}
        assert again.node.replicas[STREAM].current().version == 1
        assert (await publish(again, root, 2)).slot.version == 2


async def test_a_store_that_fails_in_mid_publish_leaves_nothing(head, root, monkeypatch):
    await publish(head, root, 0)
    await twin_made(head)
    before, put, count = set(head.store.names()), head.store.put, iter(range(100))

    def failing(name, sealed, **options):
        if next(count) == 2:
            raise NoSpaceError("the disk is full")
        put(name, sealed, **options)

    with monkeypatch.context() as patch:
        patch.setattr(head.store, "put", failing)
        with pytest.raises(NoSpaceError):
            await publish(head, root, 1)
    await nothing_left(head, root, before)


async def test_peers_drop_what_they_have_of_a_publish_that_failed_with_the_next_one(head, root, monkeypatch):
    async with member_of(head, root) as member:
        await publish(head, root, 0)
        await member.committed(STREAM, 1)
        gate = Gate()

        def full(*_arguments, **_options):
            gate.wait()
            raise NoSpaceError("the disk is full")

        monkeypatch.setattr(StreamSlots, "commit_building", full)
        directory, _ = trained(root, 1)
        task = asyncio.create_task(head.publish(STREAM, directory))
        await gate.until_reached()
        open_series = [each for each in head.fleet.swarm.fetch.stock.series.values() if each.transition is None]
        failed = {name for each in open_series for name, _ in each.chunks.values()}
        assert failed
        await until(lambda: all(member.store.has(name) for name in failed))
        gate.open.set()
        with pytest.raises(NoSpaceError):
            await task
        monkeypatch.undo()
        await publish(head, root, 2)
        await member.committed(STREAM, 2)
        await until(lambda: not any(member.store.has(name) for name in failed))


async def test_only_the_head_publishes(head, root):
    async with member_of(head, root) as member:
        with pytest.raises(RefusedError, match="publish on the head"):
            await member.publish(STREAM, trained(root, 0)[0])


async def test_a_stream_that_the_head_does_not_follow_is_refused(root):
    """Nobody could fetch it: a node offers chunks of what it follows."""
    made = make_head(root / "head")
    streams = msgspec.structs.replace(made.config.streams, follow=("other",))
    async with Single(made.home, msgspec.structs.replace(made.config, streams=streams)).running() as head:
        with pytest.raises(RefusedError, match=r"add it to streams\.follow"):
            await head.publish(STREAM, trained(root, 0)[0])
