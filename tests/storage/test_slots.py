"""Alternating slots: what a node has is always exactly one of the trainer's versions."""

import shutil
import threading

import msgspec
import numpy as np
import pytest
from support.streams import Stream, manifest_of, model, read_tree, resharded, safetensors_bytes, transition, write_tree

from patchswarm.protocol.errors import BaseMismatchError, CodecError
from patchswarm.storage.base import verify_base
from patchswarm.storage.checkpoint import scan
from patchswarm.storage.errors import (
    BaseDiffersError,
    HomeError,
    LeaseGoneError,
    NoSpaceError,
    NotNewerError,
    SlotGoneError,
    SlotsBusyError,
    StorageError,
    UnknownLeaseError,
)
from patchswarm.storage.files import Files
from patchswarm.storage.slots import StreamSlots
from patchswarm.storage.state import encode_state, read_state
from patchswarm.storage.verify import block_digests


@pytest.fixture
def stream(tmp_path):
    made = Stream(tmp_path)
    for version in range(1, 8):
        made.add(version, model(1, steps=version - 1))
    return made


def names(stream):
    return sorted(path.name for path in stream.slots.directory.iterdir())


def test_a_full_transition_makes_the_first_slot(stream):
    slot = stream.commit(None, 1)
    assert stream.holds(slot, 1)
    assert slot.path == stream.slots.directory / "v1"
    assert stream.slots.current() == slot
    assert (slot.epoch, slot.version, slot.manifest, slot.label, slot.proven) == (1, 1, manifest_of(1), "step 1", True)


def test_steps_alternate_between_two_directories(stream):
    stream.commit(None, 1)
    for version in range(2, 6):
        assert stream.holds(stream.commit(version - 1, version), version)
        assert names(stream) == [f"v{version - 1}", f"v{version}"]
        assert stream.holds(stream.slots.find(manifest_of(version - 1)), version - 1)


def inodes(slot):
    return {path.name: path.stat().st_ino for path in slot.path.rglob("*.safetensors")}


def mapped(slot):
    """The slot's weights as a reader has them mapped: their inodes live on, whatever becomes of the names."""
    return [np.memmap(path, np.uint8, "r") for path in sorted(slot.path.rglob("*.safetensors"))]


def test_with_a_twin_a_step_is_written_in_place(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    twin = stream.twin(1, 2)
    assert twin.twin
    assert names(stream) == [".twin-2", "v2"]
    assert stream.holds(twin, 2)
    before = inodes(twin)
    slot = stream.commit(2, 3)
    assert inodes(slot) == before
    assert stream.holds(slot, 3)
    assert names(stream) == ["v2", "v3"]


def test_the_slot_behind_is_brought_up_in_place(stream):
    stream.commit(None, 1)
    before = inodes(stream.slots.current())
    stream.commit(1, 2)
    assert inodes(stream.twin(1, 2)) == before


def test_a_route_of_several_legs_ends_in_one_commit(stream):
    stream.commit(None, 1)
    building = stream.slots.begin(stream.source(2).layout, stream.slots.current())
    for version in (2, 3, 4):
        building.advance(stream.source(version).layout)
        for chunk in transition(stream.source(version - 1), stream.source(version)):
            building.apply(chunk)
    slot = building.commit(1, 4, manifest_of(4), "", proven=False)
    assert stream.holds(slot, 4)
    assert not slot.proven


def test_chunks_apply_in_parallel(stream):
    stream.commit(None, 1)
    building = stream.slots.begin(stream.source(2).layout, stream.slots.current())
    chunks = transition(stream.source(1), stream.source(2))
    threads = [threading.Thread(target=building.apply, args=(chunk,)) for chunk in chunks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stream.holds(building.commit(1, 2, manifest_of(2), "", proven=True), 2)


def test_a_new_layout_copies_what_is_the_same(stream):
    stream.commit(None, 1)
    stream.add(8, resharded(1, 1))
    sent = sum(map(len, stream.chunks(1, 8)))
    assert sent < 20_000
    assert stream.holds(stream.commit(1, 8), 8)
    stream.add(9, model(1, steps=2))
    assert stream.holds(stream.commit(8, 9), 9)


def test_a_route_crosses_a_change_of_layout(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    stream.add(8, resharded(1, 2))
    stream.add(9, model(1, steps=3))
    building = stream.slots.begin(stream.source(8).layout, stream.slots.current())
    for old, new in ((2, 8), (8, 9)):
        building.advance(stream.source(new).layout)
        for chunk in transition(stream.source(old), stream.source(new)):
            building.apply(chunk)
    assert stream.holds(building.commit(1, 9, manifest_of(9), "", proven=True), 9)


def test_a_side_file_of_another_size_leaves_the_weights_in_place(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    before = inodes(stream.twin(1, 2))
    stream.add(8, {**model(1, steps=2), "config.json": b"{}"})
    slot = stream.commit(2, 8)
    assert inodes(slot) == before
    assert stream.holds(slot, 8)


def test_tensors_of_one_name_in_two_files_follow_the_layouts_own_matching(stream):
    def tree(first, second, config):
        return {
            "a.safetensors": safetensors_bytes({"w": ("U8", (50_000,), first * 50_000)}),
            "b.safetensors": safetensors_bytes({"w": ("U8", (50_000,), second * 50_000)}),
            "config.json": config,
        }

    stream.add(8, tree(b"x", b"y", b"{}"))
    stream.add(9, tree(b"X", b"Y", b"{ }"))
    stream.commit(None, 8)
    assert stream.holds(stream.commit(8, 9), 9)


@pytest.mark.parametrize("touched", [0, 1, 3])
def test_an_aborted_building_becomes_the_twin_it_was(stream, touched):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    building = stream.slots.begin(stream.source(3).layout, stream.slots.current())
    for chunk in transition(stream.source(2), stream.source(3))[:touched]:
        building.apply(chunk)
    building.abort()
    building.abort()
    assert names(stream) == [".twin-2", "v2"]
    assert read_tree(stream.slots.directory / ".twin-2") == stream.trees[2]
    assert stream.holds(stream.commit(2, 3), 3)


def test_an_aborted_change_of_layout_becomes_the_twin_it_was(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    stream.add(8, resharded(1, 3))
    stream.build(2, 8).abort()
    assert read_tree(stream.slots.directory / ".twin-2") == stream.trees[2]
    assert stream.holds(stream.commit(2, 3), 3)


def test_a_building_whose_old_bytes_are_nowhere_else_is_dropped_when_aborted(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.build(1, 2).abort()
    assert names(stream) == ["v2"]


def test_a_chunk_against_another_base_leaves_only_abort(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    building = stream.slots.begin(stream.source(3).layout, stream.slots.current())
    chunk = stream.chunks(4, 5)[0]
    with pytest.raises(BaseMismatchError):
        building.apply(chunk)
    with pytest.raises(StorageError, match="only be aborted"):
        building.commit(1, 3, manifest_of(3), "", proven=True)
    building.abort()
    assert stream.holds(stream.commit(2, 3), 3)


def test_garbage_for_a_chunk_is_a_codec_error(stream):
    stream.commit(None, 1)
    building = stream.slots.begin(stream.source(2).layout, stream.slots.current())
    with pytest.raises(CodecError):
        building.apply(b"no chunk at all")
    building.abort()


def test_a_chunk_for_regions_that_the_layout_lacks_is_refused(stream, tmp_path):
    large = scan(write_tree(tmp_path / "large", {"a": b"x" * 100, "b": b"y" * 100, "c": b"z" * 100}))
    small = scan(write_tree(tmp_path / "small", {"a": b"x" * 50}))
    building = stream.slots.begin(small.layout, None)
    [chunk] = transition(None, large)
    with pytest.raises(CodecError, match="region"):
        building.apply(chunk)
    building.abort()


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_never_goes_backwards(stream, version):
    stream.commit(None, 2)
    building = stream.build(None, version)
    with pytest.raises(NotNewerError):
        building.commit(1, version, manifest_of(9), "", proven=True)
    building.abort()
    assert stream.holds(stream.slots.current(), 2)


def test_an_epoch_outranks_every_version_of_the_one_before(stream):
    stream.commit(None, 5)
    slot = stream.build(5, 1).commit(2, 1, manifest_of(1), "", proven=True)
    assert stream.slots.current() == slot


def test_a_new_epoch_takes_the_name_of_an_unread_version_but_not_of_a_read_one(stream):
    stream.commit(None, 2)
    lease = stream.slots.lease(None, 60, 0)
    building = stream.build(2, 3)
    with pytest.raises(SlotsBusyError):
        building.commit(2, 2, manifest_of(3), "", proven=True)
    stream.slots.release(lease.id)
    slot = building.commit(2, 2, manifest_of(3), "", proven=True)
    assert stream.holds(slot, 3)
    assert names(stream) == ["v2"]


def test_one_version_is_built_at_a_time(stream):
    stream.commit(None, 1)
    building = stream.slots.begin(stream.source(2).layout, stream.slots.current())
    with pytest.raises(SlotsBusyError, match="building"):
        stream.slots.begin(stream.source(2).layout, stream.slots.current())
    building.abort()
    stream.commit(1, 2)


def test_digests_are_those_of_the_trainers_files(stream):
    building = stream.build(None, 1)
    assert building.digests() == block_digests(stream.source(1), 1)
    building.abort()


def test_views_show_what_was_written_and_cannot_be_written(stream):
    building = stream.build(None, 1)
    data = stream.trees[1]["config.json"]
    shown = building.view(0, 2, 5)
    assert bytes(shown) == data[2:7]
    with pytest.raises(ValueError, match="read-only"):
        shown[0] = 0
    with pytest.raises(ValueError, match="outside"):
        building.view(0, 2, len(data))
    building.abort()


# leases


def test_a_leased_slot_is_never_written(stream):
    stream.commit(None, 1)
    lease = stream.slots.lease(None, 60, 0)
    assert lease.path == stream.slots.directory / "v1"
    stream.commit(1, 2)
    with pytest.raises(SlotsBusyError, match="in use"):
        stream.slots.begin(stream.source(3).layout, stream.slots.current())
    assert stream.holds(stream.slots.find(manifest_of(1)), 1)
    stream.slots.release(lease.id)
    stream.commit(2, 3)
    assert names(stream) == ["v2", "v3"]


def test_a_lease_that_runs_out_retires_its_slot_without_touching_its_bytes(stream):
    stream.commit(None, 1)
    lease = stream.slots.lease(None, 60, now=100)
    seen = mapped(stream.slots.current())
    before = [bytes(each) for each in seen]
    stream.commit(1, 2)
    stream.slots.expire(now=159)
    assert names(stream) == ["v1", "v2"]
    stream.slots.expire(now=161)
    assert names(stream) == ["v2"]
    for version in (3, 4, 5):
        stream.commit(version - 1, version)
    assert [bytes(each) for each in seen] == before
    with pytest.raises(LeaseGoneError):
        stream.slots.release(lease.id)
    with pytest.raises(LeaseGoneError):
        stream.slots.renew(lease.id, 60, 162)


def test_the_current_version_is_retired_only_once_it_is_not_current(stream):
    stream.commit(None, 1)
    lease = stream.slots.lease(None, 60, now=100)
    seen = mapped(stream.slots.current())
    before = [bytes(each) for each in seen]
    stream.slots.expire(now=200)
    assert stream.holds(stream.slots.current(), 1)
    stream.commit(1, 2)
    assert names(stream) == ["v2"]
    stream.commit(2, 3)
    assert [bytes(each) for each in seen] == before
    with pytest.raises(LeaseGoneError):
        stream.slots.release(lease.id)


def test_a_renewed_lease_holds_on(stream):
    stream.commit(None, 1)
    lease = stream.slots.lease(None, 60, now=100)
    assert stream.slots.renew(lease.id, 60, now=150).expires_at == 210
    stream.slots.expire(now=200)
    stream.slots.release(lease.id)


def test_a_lease_may_ask_for_an_older_version(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    assert stream.slots.lease(1, 60, 0).version == 1
    with pytest.raises(SlotGoneError):
        stream.slots.lease(7, 60, 0)


def test_an_unknown_lease_is_said_to_be_unknown(stream):
    with pytest.raises(UnknownLeaseError):
        stream.slots.release("nothing")


def test_leases_survive_a_restart_unless_they_were_the_daemons_own(stream):
    stream.commit(None, 1)
    lease = stream.slots.lease(None, 60, 0)
    own = stream.slots.lease(None, 60, 0, durable=False)
    slots = stream.reopen()
    stream.commit(1, 2)
    with pytest.raises(SlotsBusyError):
        slots.begin(stream.source(3).layout, slots.current())
    with pytest.raises(UnknownLeaseError):
        slots.release(own.id)
    slots.release(lease.id)
    stream.commit(2, 3)


def test_a_retired_slot_stays_retired_after_a_restart(stream):
    stream.commit(None, 1)
    stream.slots.lease(None, 60, now=0)
    stream.slots.expire(now=100)
    seen = mapped(stream.slots.current())
    before = [bytes(each) for each in seen]
    stream.reopen()
    stream.commit(1, 2)
    stream.commit(2, 3)
    assert [bytes(each) for each in seen] == before


def test_a_held_slot_is_not_written(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    with stream.slots.hold(stream.slots.find(manifest_of(1))) as shown:
        with pytest.raises(SlotsBusyError):
            stream.slots.begin(stream.source(3).layout, stream.slots.current())
        assert block_digests(shown, 1) == block_digests(stream.source(1), 1)
    stream.commit(2, 3)


def test_three_slots_keep_a_pinned_version(stream, tmp_path):
    head = Stream(tmp_path / "head", count=3)
    for version in range(1, 6):
        head.add(version, model(1, steps=version - 1))
    frozen = head.commit(None, 1)
    head.slots.pin(frozen)
    for version in range(2, 6):
        head.commit(version - 1, version)
    assert names(head) == ["v1", "v4", "v5"]
    assert head.holds(frozen, 1)
    head.slots.unpin(frozen)


# withdrawal and proof


def test_a_version_is_withdrawn_though_the_catalog_cannot_be_written(stream, monkeypatch):
    slot = stream.commit(None, 1)
    lease = stream.slots.lease(None, 60, 0)

    def full(*_):
        raise NoSpaceError("no room")

    monkeypatch.setattr(stream.slots._book._catalog, "put_lease", full)
    stream.slots.withdraw(slot)
    assert stream.slots.current() is None
    with pytest.raises(LeaseGoneError, match="voided"):
        stream.slots.renew(lease.id, 60, 0)


def test_files_that_are_gone_are_made_anew_to_be_mended(stream):
    slot = stream.commit(None, 1)
    (slot.path / slot.layout.files[0].path).unlink()
    with pytest.raises(StorageError, match="being served"):
        stream.slots.refit(slot)
    slot = stream.slots.withdraw(slot)
    stream.slots.refit(slot)
    assert (slot.path / slot.layout.files[0].path).stat().st_size == slot.layout.files[0].size


def test_a_withdrawn_version_is_not_served_until_proven(stream):
    slot = stream.commit(None, 1)
    lease = stream.slots.lease(None, 60, 0)
    stream.slots.withdraw(slot)
    assert stream.slots.current() is None
    with pytest.raises(SlotGoneError):
        stream.slots.lease(None, 60, 0)
    with pytest.raises(LeaseGoneError, match="voided"):
        stream.slots.release(lease.id)
    assert stream.slots.mark_proven(stream.slots.slots()[0]).proven
    assert stream.slots.current() is not None


def test_verification_names_the_bad_blocks(stream):
    slot = stream.commit(None, 1)
    digests = block_digests(stream.source(1), 1)
    assert stream.slots.verify_slot(slot, digests) == []
    path = slot.path / "model-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    assert stream.slots.verify_slot(slot, digests) == [2]
    with pytest.raises(StorageError, match="does not fit"):
        stream.slots.verify_slot(slot, digests[:-32])


# opening


def test_slots_are_there_after_a_restart(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    before = stream.slots.slots()
    assert stream.reopen().slots() == before
    assert stream.holds(stream.commit(2, 3), 3)


def test_a_restart_in_the_middle_of_a_building_restores_the_twin(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    stream.build(2, 3)
    assert names(stream) == [".building", "v2"]
    stream.reopen()
    assert names(stream) == [".twin-2", "v2"]
    assert read_tree(stream.slots.directory / ".twin-2") == stream.trees[2]


class LaterBoot(Files):
    def boot_id(self):
        return b"another boot id."


def test_after_a_reboot_nothing_is_served_before_it_was_verified(stream):
    stream.commit(None, 1)
    stream.slots.lease(None, 60, 0)
    stream.files = LaterBoot()
    slots = stream.reopen()
    assert slots.current() is None
    [slot] = slots.slots()
    assert slot.suspect
    assert slots.find(manifest_of(1)) is None
    assert slots.verify_slot(slot, block_digests(stream.source(1), 1)) == []
    assert slots.mark_proven(slot).proven
    assert slots.current().version == 1
    stream.reopen()
    assert stream.slots.current().version == 1


def test_a_slot_older_than_what_was_committed_here_is_not_served(stream):
    stream.commit(None, 1)
    stream.catalog.raise_mark("qwen", 1, 2, manifest_of(2))
    stream.reopen()
    assert stream.slots.current() is None
    assert stream.holds(stream.commit(1, 2), 2)
    assert stream.slots.current().version == 2


def test_a_torn_state_file_drops_the_slot(stream):
    slot = stream.commit(None, 1)
    path = slot.path / ".patchswarm-slot"
    path.write_bytes(path.read_bytes()[:-5])
    assert stream.reopen().slots() == []
    assert names(stream) == []


@pytest.mark.parametrize("name", ["v1", "v12"])
def test_a_foreign_directory_is_said_and_left_alone(stream, name):
    write_tree(stream.slots.directory / name, {"precious": b"data"})
    with pytest.raises(HomeError, match="not a slot of ours"):
        stream.reopen()
    assert (stream.slots.directory / name / "precious").exists()


def test_a_slot_of_another_stream_is_said(stream):
    stream.commit(None, 1)
    stream.slots.directory.rename(stream.root / "slots" / "llama")
    (stream.root / "slots" / "llama").rename(stream.slots.directory)
    path = stream.slots.directory / "v1" / ".patchswarm-slot"
    state = msgspec.structs.replace(read_state(Files(), path.parent), stream="llama")
    path.write_bytes(encode_state(state))
    with pytest.raises(HomeError, match="llama"):
        stream.reopen()


class Full(Files):
    def free_bytes(self, path):
        return 1000


def test_no_space_is_said_before_anything_is_touched(stream):
    stream.commit(None, 1)
    stream.files = Full()
    stream.reopen()
    with pytest.raises(NoSpaceError, match="1000 bytes free"):
        stream.slots.begin(stream.source(2).layout, stream.slots.current())
    assert names(stream) == ["v1"]
    assert stream.holds(stream.slots.current(), 1)


# bases


def test_a_local_base_saves_the_first_transfer(stream, tmp_path):
    base = write_tree(tmp_path / "base", {**model(1), "README.md": b"not part of the version"})
    source = stream.source(1)
    digests = block_digests(source, 1)
    with verify_base(base, source.layout, digests, manifest_of(1)) as found:
        building = stream.slots.begin(stream.source(2).layout, found)
        for chunk in transition(source, stream.source(2)):
            building.apply(chunk)
        assert stream.holds(building.commit(1, 2, manifest_of(2), "", proven=True), 2)
    assert read_tree(base)["README.md"] == b"not part of the version"


def test_a_base_that_differs_is_refused_by_name(stream, tmp_path):
    source = stream.source(1)
    digests = block_digests(source, 1)
    tree = model(1)
    weights = bytearray(tree["model-00002.safetensors"])
    weights[-1] ^= 1
    base = write_tree(tmp_path / "base", {**tree, "model-00002.safetensors": bytes(weights)})
    with pytest.raises(BaseDiffersError, match="model-00002"):
        verify_base(base, source.layout, digests, manifest_of(1))
    (base / "config.json").unlink()
    with pytest.raises(BaseDiffersError, match=r"config\.json"):
        verify_base(base, source.layout, digests, manifest_of(1))


def test_a_renamed_slot_is_said_and_left_alone(stream):
    slot = stream.commit(None, 1)
    slot.path.rename(slot.path.with_name("v7"))
    with pytest.raises(HomeError, match="rename it back to v1"):
        stream.reopen()
    assert read_tree(slot.path.with_name("v7")) == stream.trees[1]


def test_slots_that_vanish_under_a_running_daemon_are_forgotten_and_made_again(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    lease = stream.slots.lease(None, 60, 0)
    assert stream.slots.forget_vanished() == []
    shutil.rmtree(stream.slots.directory)
    assert [slot.version for slot in stream.slots.forget_vanished()] == [1, 2]
    assert stream.slots.current() is None
    with pytest.raises(LeaseGoneError):
        stream.slots.release(lease.id)
    assert stream.holds(stream.commit(None, 3), 3)


class FullCatalog(Files):
    full = False

    def commit(self, database):
        if self.full:
            raise NoSpaceError("no space left to write the catalog: free some")
        super().commit(database)


def test_a_commit_stands_even_when_the_catalog_cannot_be_written_and_its_mark_follows(tmp_path):
    files = FullCatalog()
    stream = Stream(tmp_path, files=files)
    stream.add(1, model(1))
    building = stream.build(None, 1)
    files.full = True
    slot = building.commit(1, 1, manifest_of(1), "", proven=True)
    assert stream.slots.current() == slot
    assert stream.catalog.mark("qwen") is None
    with pytest.raises(NoSpaceError):
        stream.slots.expire(0)
    files.full = False
    stream.slots.expire(0)
    assert stream.catalog.mark("qwen") == (1, 1, manifest_of(1))


def test_after_a_restart_the_version_is_served_before_the_spare_is_brought_back(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    stream.build(2, 3)
    slots = StreamSlots(stream.slots.directory, "qwen", stream.catalog, threads=2)
    slots.open()
    assert names(stream) == [".building", "v2"]
    assert stream.holds(slots.current(), 2)
    with stream.source(3) as source:
        building = slots.begin(source.layout, slots.current())
    for chunk in stream.chunks(2, 3):
        building.apply(chunk)
    assert stream.holds(building.commit(1, 3, manifest_of(3), "", proven=True), 3)
    assert names(stream) == ["v2", "v3"]


def test_readers_are_served_while_a_long_abort_copies(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    copying, go_on = threading.Event(), threading.Event()

    class Slow(Files):
        def pwrite(self, fd, data, offset):
            if threading.current_thread() is not threading.main_thread() and len(data) > 1000:
                copying.set()
                go_on.wait(30)
            return super().pwrite(fd, data, offset)

    stream.files = Slow()
    stream.reopen()
    building = stream.build(2, 3)
    aborting = threading.Thread(target=building.abort)
    aborting.start()
    assert copying.wait(30)
    lease = stream.slots.lease(None, 60, 0)
    assert lease.version == 2
    with pytest.raises(SlotsBusyError):
        stream.slots.begin(stream.source(3).layout, stream.slots.current())
    stream.slots.release(lease.id)
    go_on.set()
    aborting.join()
    assert read_tree(stream.slots.directory / ".twin-2") == stream.trees[2]


class Stuck(Files):
    """Refuses to rename while it is `stuck`."""

    stuck = False

    def rename(self, source, target):
        if self.stuck:
            raise OSError(5, "Input/output error", str(source))
        super().rename(source, target)


def test_a_spare_that_cannot_be_given_back_now_is_brought_back_by_the_next_building(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    stream.files = files = Stuck()
    stream.reopen()
    spare = inodes_in(stream.slots.directory / ".twin-2")
    building = stream.build(2, 3)
    files.stuck = True
    with pytest.raises(OSError, match="Input/output"):
        building.abort()
    with pytest.raises(OSError, match="Input/output"):
        stream.build(2, 3)
    files.stuck = False
    assert stream.holds(stream.commit(2, 3), 3)
    assert inodes_in(stream.slots.directory / "v3") == spare


def inodes_in(directory):
    return {path.stat().st_ino for path in directory.rglob("*.safetensors")}


def test_a_spare_that_waits_to_be_brought_back_is_room_for_the_next_version(stream):
    stream.commit(None, 1)
    stream.commit(1, 2)
    stream.twin(1, 2)
    stream.build(2, 3)
    slots = StreamSlots(stream.slots.directory, "qwen", stream.catalog, files=Full(), threads=2)
    slots.open()
    assert names(stream) == [".building", "v2"]
    slots.set_aside(10**9)
