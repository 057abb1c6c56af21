"""Space that was set aside is not given out twice, and a slot directory says what is wrong with it."""

from pathlib import Path

import pytest
from support.streams import model, write_tree

from patchswarm.storage.catalog import Catalog
from patchswarm.storage.checkpoint import scan
from patchswarm.storage.errors import HomeError, NoSpaceError
from patchswarm.storage.files import Files
from patchswarm.storage.slot_dir import MARKER_NAME, Found, check_fit, home_of, open_slot_dir
from patchswarm.storage.slots import StreamSlots
from patchswarm.storage.space import SetAside, Space


class Disk(Files):
    free = 1000

    def free_bytes(self, path):
        return self.free


def test_two_users_do_not_count_on_the_same_bytes(tmp_path):
    space = Space(Disk(), margin_bytes=100)
    first = space.reserve(tmp_path, 600, "a download")
    with pytest.raises(NoSpaceError, match=r"300 bytes free and a rebuild needs 301"):
        space.reserve(tmp_path, 301, "a rebuild")
    space.reserve(tmp_path, 300, "a rebuild").close()
    first.close()
    first.close()
    with space.reserve(tmp_path, 900, "a rebuild"):
        assert space.free_bytes(tmp_path) == 0


def test_what_was_written_is_not_counted_twice(tmp_path):
    disk = Disk()
    space = Space(disk, margin_bytes=0)
    with space.reserve(tmp_path, 600, "a download") as reserved:
        disk.free = 600
        reserved.spend(400)
        assert space.free_bytes(tmp_path) == 400
        reserved.spend(10_000)
        assert space.free_bytes(tmp_path) == 600
    assert space.free_bytes(tmp_path) == 600


def test_what_one_user_set_aside_changes_with_its_need_and_is_never_counted_twice(tmp_path):
    space = Space(Disk(), margin_bytes=0)
    one, two = (SetAside(space, tmp_path, what) for what in ("one", "two"))
    one.keep(600)
    with pytest.raises(NoSpaceError, match=r"400 bytes free and two needs 500"):
        two.keep(500)
    one.keep(500)
    two.keep(500)
    with pytest.raises(NoSpaceError, match="one needs 501"):
        one.keep(501)
    two.keep(1000)
    two.give_back()
    two.give_back()
    assert space.free_bytes(tmp_path) == 1000


def test_slots_set_aside_what_a_version_takes_beside_them_and_begin_takes_it_over(tmp_path, catalog):
    disk = Disk()
    disk.free = size = (layout := scan(write_tree(tmp_path / "model", model(1))).layout).size * 2
    space = Space(disk, margin_bytes=0)
    slots = StreamSlots(tmp_path / "slots", "qwen", catalog, disk, space=space)
    slots.open()
    slots.set_aside(size)
    assert space.free_bytes(tmp_path) == 0
    building = slots.begin(layout, None)
    assert space.free_bytes(tmp_path) == size, "the files are there now"
    slots.set_aside(size)
    assert space.free_bytes(tmp_path) == size, "a directory is being written: none is needed beside it"
    building.abort()
    with pytest.raises(NoSpaceError, match=r"needs .*: free some"):
        slots.set_aside(size + 1)
    slots.set_aside(1)
    slots.set_aside(0)
    assert space.free_bytes(tmp_path) == size


@pytest.fixture
def catalog(tmp_path):
    made = Catalog(tmp_path / "home" / "catalog.sqlite")
    yield made
    made.close()


def test_a_slot_directory_is_new_once_and_then_the_same(tmp_path, catalog):
    assert open_slot_dir(tmp_path / "slots", catalog).found is Found.NEW
    assert open_slot_dir(tmp_path / "slots", catalog).found is Found.SAME


def test_a_tmpfs_that_was_mounted_again_is_recognised(tmp_path, catalog):
    open_slot_dir(tmp_path / "slots", catalog)
    (tmp_path / "slots" / MARKER_NAME).unlink()
    assert open_slot_dir(tmp_path / "slots", catalog).found is Found.EMPTIED
    assert open_slot_dir(tmp_path / "slots", catalog).found is Found.SAME


def test_a_moved_slot_directory_is_recognised(tmp_path, catalog):
    open_slot_dir(tmp_path / "slots", catalog)
    (tmp_path / "slots").rename(tmp_path / "elsewhere")
    assert open_slot_dir(tmp_path / "elsewhere", catalog).found is Found.MOVED
    assert open_slot_dir(tmp_path / "elsewhere", catalog).found is Found.SAME
    assert open_slot_dir(tmp_path / "third", catalog).found is Found.NEW


def test_the_slot_directory_of_another_home_is_refused(tmp_path, catalog):
    other = Catalog(tmp_path / "other" / "catalog.sqlite")
    open_slot_dir(tmp_path / "slots", other)
    other.close()
    with pytest.raises(HomeError, match="another home"):
        open_slot_dir(tmp_path / "slots", catalog)


def test_a_damaged_marker_is_said(tmp_path, catalog):
    open_slot_dir(tmp_path / "slots", catalog)
    for damage in (b"", b"PSHOME\x01", b"PSHOME\x02abc", b"x" * 2000):
        (tmp_path / "slots" / MARKER_NAME).write_bytes(damage)
        with pytest.raises(HomeError, match="damaged"):
            open_slot_dir(tmp_path / "slots", catalog)


def test_the_marker_names_the_home(tmp_path, catalog):
    assert home_of(tmp_path) is None
    open_slot_dir(tmp_path, catalog)
    assert home_of(tmp_path) == catalog.get("home_id")


def test_memory_and_disk_are_told_apart(tmp_path):
    files = Files()
    assert not files.is_in_memory(Path("/proc"))
    if Path("/dev/shm").is_mount():
        assert files.is_in_memory(Path("/dev/shm"))
    assert files.memory_bytes() > 2**20
    assert 0 < files.free_bytes(tmp_path) <= files.total_bytes(tmp_path)


class Host(Files):
    def __init__(self, *, total, memory, free, in_memory):
        self.sizes = total, memory, free
        self.in_memory = in_memory

    def total_bytes(self, path):
        return self.sizes[0]

    def memory_bytes(self):
        return self.sizes[1]

    def free_bytes(self, path):
        return self.sizes[2]

    def is_in_memory(self, path):
        return self.in_memory


GB = 10**9


def fit(tmp_path, **host):
    return check_fit(tmp_path / "slots", tmp_path / "home", 500 * GB, 2, GB // 2, Host(**host))


def test_a_model_that_fits_has_nothing_said_about_it(tmp_path):
    assert fit(tmp_path, total=1100 * GB, memory=1200 * GB, free=700 * GB, in_memory=True) == []
    assert fit(tmp_path, total=1100 * GB, memory=64 * GB, free=700 * GB, in_memory=False) == []


def test_what_will_not_fit_is_said_line_by_line(tmp_path):
    lines = fit(tmp_path, total=600 * GB, memory=1000 * GB, free=100 * GB, in_memory=True)
    assert len(lines) == 3
    assert "2 slots of 500.0 GB need 1000.0 GB" in lines[0]
    assert "set slots = 1" in lines[0]
    assert "memory" in lines[1]
    assert "625.0 GB" in lines[2]
