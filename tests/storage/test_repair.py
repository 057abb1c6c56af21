"""A wrong block is found, withdrawn and mended, and no reader sees its files change on the way."""

import numpy as np
import pytest
from support.streams import Stream, manifest_of, model

from patchswarm.storage.errors import LeaseGoneError, SlotsBusyError, StorageError
from patchswarm.storage.files import Files
from patchswarm.storage.verify import block_digests


@pytest.fixture
def stream(tmp_path):
    made = Stream(tmp_path)
    for version in (1, 2, 3):
        made.add(version, model(1, steps=version - 1))
    made.commit(None, 1)
    made.commit(1, 2)
    return made


def digests(stream, version):
    with stream.source(version) as source:
        return block_digests(source, 1)


def flip(slot, name="model-00001.safetensors", at=2000):
    with (slot.path / name).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def flipped(stream):
    slot = stream.slots.current()
    flip(slot)
    bad = stream.slots.verify_slot(slot, digests(stream, 2))
    assert bad == [1]
    return stream.slots.withdraw(slot), bad


def test_a_wrong_block_is_mended_from_the_twin(stream):
    stream.twin(1, 2)
    slot, bad = flipped(stream)
    assert stream.slots.current() is None
    assert stream.slots.repair(slot, bad, digests(stream, 2)) == []
    assert stream.slots.verify_slot(slot, digests(stream, 2)) == []
    stream.slots.mark_proven(slot)
    assert stream.holds(stream.slots.current(), 2)


def test_a_wrong_block_is_mended_from_what_a_peer_gives(stream):
    slot, bad = flipped(stream)
    with stream.source(2) as source:
        blocks = list(source.layout.blocks())
        left = stream.slots.repair(slot, bad, digests(stream, 2), lambda number: source.read(*blocks[number]).tobytes())
    assert left == []
    assert stream.holds(stream.slots.mark_proven(slot), 2)


@pytest.mark.parametrize("given", [None, b"a lie", b""])
def test_bytes_that_do_not_hash_to_the_table_are_never_written(stream, given):
    slot, bad = flipped(stream)
    before = (slot.path / "model-00001.safetensors").read_bytes()
    assert stream.slots.repair(slot, bad, digests(stream, 2), lambda _: given) == bad
    assert (slot.path / "model-00001.safetensors").read_bytes() == before


def test_a_twin_with_the_same_damage_does_not_count(stream):
    twin = stream.twin(1, 2)
    slot, bad = flipped(stream)
    flip(twin)
    assert stream.slots.repair(slot, bad, digests(stream, 2)) == bad


def test_the_twin_is_mended_from_the_committed_slot(stream):
    twin = stream.twin(1, 2)
    flip(twin)
    bad = stream.slots.verify_slot(twin, digests(stream, 2))
    assert stream.slots.repair(twin, bad, digests(stream, 2)) == []
    assert stream.holds(twin, 2)


def test_a_reader_of_the_withdrawn_version_keeps_what_it_has_mapped(stream):
    stream.twin(1, 2)
    slot = stream.slots.current()
    flip(slot)
    lease = stream.slots.lease(None, 60, 0)
    seen = np.memmap(slot.path / "model-00001.safetensors", np.uint8, "r")
    before = bytes(seen)
    bad = stream.slots.verify_slot(slot, digests(stream, 2))
    slot = stream.slots.withdraw(slot)
    assert stream.slots.repair(slot, bad, digests(stream, 2)) == []
    assert bytes(seen) == before
    assert stream.holds(stream.slots.mark_proven(slot), 2)
    with pytest.raises(LeaseGoneError):
        stream.slots.release(lease.id)


def test_a_version_that_is_served_is_not_repaired(stream):
    with pytest.raises(StorageError, match="withdraw"):
        stream.slots.repair(stream.slots.current(), [0], digests(stream, 2))


def test_a_slot_being_read_by_the_daemon_is_not_repaired(stream):
    slot, bad = flipped(stream)
    with stream.slots.hold(slot), pytest.raises(SlotsBusyError):
        stream.slots.repair(slot, bad, digests(stream, 2))


def test_a_withdrawn_version_stays_withdrawn_over_a_restart(stream):
    flipped(stream)
    slots = stream.reopen()
    assert slots.current() is None
    assert slots.slots()[-1].withdrawn


def test_a_step_never_starts_from_a_withdrawn_version(stream):
    flipped(stream)
    assert stream.slots.find(manifest_of(2)) is None
    assert stream.holds(stream.build(None, 3).commit(1, 3, manifest_of(3), "", proven=True), 3)
    assert stream.slots.current().version == 3


# one slot


@pytest.fixture
def single(tmp_path):
    made = Stream(tmp_path / "single", count=1)
    for version in (1, 2, 3):
        made.add(version, model(1, steps=version - 1))
    made.commit(None, 1)
    return made


def names(stream):
    return sorted(path.name for path in stream.slots.directory.iterdir())


def test_one_slot_changes_in_place(single):
    inode = (single.slots.current().path / "model-00001.safetensors").stat().st_ino
    assert single.holds(single.commit(1, 2), 2)
    assert single.holds(single.commit(2, 3), 3)
    assert (single.slots.current().path / "model-00001.safetensors").stat().st_ino == inode
    assert names(single) == ["v3"]


@pytest.mark.parametrize("touched", [0, 1, 9])
def test_giving_up_in_one_slot_writes_the_old_bytes_back(single, touched):
    with single.source(2) as source:
        building = single.slots.begin(source.layout, single.slots.current())
    for chunk in single.chunks(1, 2)[:touched]:
        building.apply(chunk)
    building.abort()
    assert single.holds(single.slots.current(), 1)


def test_a_restart_in_the_middle_writes_the_old_bytes_back(single):
    single.build(1, 2)
    assert single.holds(single.reopen().current(), 1)


def test_a_route_of_several_legs_is_undone_as_one(single):
    building = single.build(1, 2)
    with single.source(3) as source:
        building.advance(source.layout)
    for chunk in single.chunks(2, 3):
        building.apply(chunk)
    building.abort()
    assert single.holds(single.slots.current(), 1)


def test_the_undo_file_holds_changes_and_not_the_model(single):
    building = single.build(1, 2)
    model_bytes = sum(map(len, single.trees[1].values()))
    assert building.journal.path.stat().st_size < 0.2 * model_bytes
    building.abort()


def test_a_read_slot_is_not_changed_but_under_the_readers_own_exclusive_lease(single):
    lease = single.slots.lease(None, 60, 0)
    with single.source(2) as source:
        layout = source.layout
    with pytest.raises(SlotsBusyError, match="the only slot"):
        single.slots.begin(layout, single.slots.current())
    building = single.slots.begin(layout, single.slots.current(), exclusive=lease.id)
    for chunk in single.chunks(1, 2):
        building.apply(chunk)
    building.commit(1, 2, manifest_of(2), "", proven=True)
    renewed = single.slots.renew(lease.id, 60, 0)
    assert (renewed.version, renewed.path) == (2, single.slots.directory / "v2")
    other = single.slots.lease(None, 60, 0)
    with pytest.raises(SlotsBusyError):
        single.slots.begin(layout, single.slots.current(), exclusive=lease.id)
    single.slots.release(other.id)
    single.slots.release(lease.id)


def test_a_reader_that_lost_its_lease_on_the_only_slot_keeps_what_it_has_mapped(single):
    single.slots.lease(None, 60, 0)
    seen = np.memmap(single.slots.current().path / "model-00001.safetensors", np.uint8, "r")
    before = bytes(seen)
    single.slots.expire(100)
    assert single.holds(single.commit(1, 2), 2)
    assert single.holds(single.commit(2, 3), 3)
    assert bytes(seen) == before


def test_a_new_layout_in_one_slot_stands_beside_the_old_one_until_it_is_committed(single):
    single.add(4, {**model(1, steps=3), "added.json": b"{}"})
    building = single.build(1, 4)
    assert names(single) == [".building", "v1"]
    building.commit(1, 4, manifest_of(4), "", proven=True)
    assert names(single) == ["v4"]
    assert single.holds(single.slots.current(), 4)


class LaterBoot(Files):
    def boot_id(self):
        return b"another boot id."


def test_after_a_reboot_in_the_middle_the_only_slot_is_undone_and_verified(single):
    single.build(1, 2)
    single.files = LaterBoot()
    slots = single.reopen()
    [slot] = slots.slots()
    assert slot.suspect
    assert slots.verify_slot(slot, digests(single, 1)) == []
    assert single.holds(slots.mark_proven(slot), 1)


def test_a_route_through_a_change_of_layout_goes_on_beside_the_only_slot(single):
    single.add(4, {**model(1, steps=3), "added.json": b"{}"})
    for end in ("abort", "commit"):
        building = single.build(1, 2)
        with single.source(4) as source:
            building.advance(source.layout)
        assert single.holds(single.slots.current(), 1)
        for chunk in single.chunks(2, 4):
            building.apply(chunk)
        if end == "abort":
            building.abort()
            assert single.holds(single.slots.current(), 1)
            assert names(single) == ["v1"]
    building.commit(1, 4, manifest_of(4), "", proven=True)
    assert single.holds(single.slots.current(), 4)
    assert names(single) == ["v4"]


def test_with_one_slot_a_version_comes_from_nothing_beside_the_one_that_is_served(single):
    building = single.build(None, 2)
    assert single.holds(single.slots.current(), 1)
    assert single.holds(building.commit(1, 2, manifest_of(2), "", proven=True), 2)
    assert names(single) == ["v2"]


def test_a_withdrawn_version_that_nobody_mends_makes_way(single, stream):
    for each, start in ((single, 1), (stream, 2)):
        held = each.slots.slots()[0] if each is stream else None
        if held:
            each.slots.pin(held)
        each.slots.withdraw(each.slots.current())
        assert each.holds(
            each.build(None, start + 1).commit(1, start + 1, manifest_of(start + 1), "", proven=True), start + 1
        )
        assert each.slots.current().version == start + 1
