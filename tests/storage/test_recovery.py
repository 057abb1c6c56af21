"""A damaged catalog is rebuilt: marks do not fall, leases are not forgotten, what could be read is kept."""

import pytest
from support.streams import Stream, manifest_of, model

from patchswarm.protocol.ids import digest
from patchswarm.protocol.messages import ObjectKind
from patchswarm.storage.catalog import Catalog, Mark
from patchswarm.storage.errors import CatalogError, SlotsBusyError
from patchswarm.storage.recovery import open_catalog
from patchswarm.storage.slot_dir import open_slot_dir
from patchswarm.storage.slots import StreamSlots


@pytest.fixture
def stream(tmp_path):
    made = Stream(tmp_path)
    for version in (1, 2, 3):
        made.add(version, model(1, steps=version - 1, elements=2000))
    open_slot_dir(tmp_path / "slots", made.catalog)
    made.commit(None, 1)
    made.commit(1, 2)
    made.catalog.put_objects([(ObjectKind.NODE, digest(b"%d" % n), b"%d" % n * 400) for n in range(300)])
    yield made
    made.catalog.close()


def reopen(stream):
    stream.catalog.close()
    catalog, rebuilt = open_catalog(stream.root / "home" / "catalog.sqlite", stream.root / "slots")
    stream.catalog = catalog
    stream.slots = StreamSlots(stream.root / "slots" / "qwen", "qwen", catalog, threads=2)
    stream.slots.open()
    return rebuilt


def overwrite(path, start, end):
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xa5" * (end - start))


def test_a_whole_catalog_is_opened_as_it_is(stream):
    assert reopen(stream) is None


@pytest.mark.parametrize("damage", ["nothing readable", "emptied", "a page in the middle", "the first page"])
def test_after_damage_the_node_serves_what_it_served_and_goes_on(stream, damage):
    path = stream.catalog.path
    home = stream.catalog.get("home_id")
    stream.catalog.close()
    match damage:
        case "nothing readable":
            overwrite(path, 0, path.stat().st_size)
        case "emptied":
            path.write_bytes(b"not a database")
        case "a page in the middle":
            overwrite(path, 40_000, 44_096)
        case "the first page":
            overwrite(path, 0, 4096)
    rebuilt = reopen(stream)
    assert rebuilt is not None
    assert rebuilt.kept_as.exists()
    assert stream.catalog.mark("qwen") == Mark(1, 2, manifest_of(2))
    assert stream.catalog.get("home_id") == home
    assert stream.holds(stream.slots.current(), 2)
    assert stream.holds(stream.commit(2, 3), 3)


def test_objects_that_can_be_read_are_kept(stream):
    stream.catalog.close()
    size = stream.catalog.path.stat().st_size
    overwrite(stream.catalog.path, size // 2 // 4096 * 4096, size // 2 // 4096 * 4096 + 4096)
    rebuilt = reopen(stream)
    assert rebuilt is not None
    assert 100 < rebuilt.objects <= 300
    assert all(digest(data[: len(data) // 400]) == name for _, name, data in stream.catalog.objects())


def test_leases_that_can_be_read_still_hold(stream):
    lease = stream.slots.lease(1, 1e10, 0)
    stream.catalog.close()
    overwrite(stream.catalog.path, 60_000, 70_000)
    rebuilt = reopen(stream)
    assert rebuilt is not None
    if rebuilt.leases_lost:
        pytest.skip("this layout of pages put the leases where the damage is")
    with pytest.raises(SlotsBusyError):
        stream.commit(2, 3)
    stream.slots.release(lease.id)
    stream.commit(2, 3)


def test_when_leases_are_lost_no_slot_is_written_that_a_reader_may_have(stream):
    held = stream.slots.directory / "v1" / "model-00001.safetensors"
    with held.open("rb") as seen:
        before = seen.read()
        stream.slots.lease(1, 1e10, 0)
        stream.catalog.close()
        overwrite(stream.catalog.path, 0, stream.catalog.path.stat().st_size)
        rebuilt = reopen(stream)
        assert rebuilt.leases_lost
        assert stream.holds(stream.commit(2, 3), 3)
        seen.seek(0)
        assert seen.read() == before


def test_a_catalog_of_a_later_version_is_not_taken_for_a_damaged_one(stream):
    stream.catalog._database.execute("PRAGMA user_version = 99")
    stream.catalog.close()
    with pytest.raises(CatalogError, match="upgrade"):
        open_catalog(stream.catalog.path, stream.root / "slots")
    assert stream.catalog.path.exists()
    stream.catalog = Catalog(stream.root / "another")


def test_each_damaged_catalog_is_kept(stream):
    kept = set()
    for _ in range(3):
        stream.catalog.close()
        stream.catalog.path.write_bytes(b"damage" * 1000)
        kept.add(reopen(stream).kept_as)
    assert len(kept) == 3
    assert all(path.exists() for path in kept)
