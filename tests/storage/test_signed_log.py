"""The signed log: what was signed is not forgotten with the catalog, whatever becomes of either."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.protocol.ids import digest
from patchswarm.protocol.messages import ObjectKind
from patchswarm.storage.catalog import Catalog, log_path
from patchswarm.storage.errors import CatalogError, NoSpaceError
from patchswarm.storage.files import Files
from patchswarm.storage.recovery import open_catalog
from patchswarm.storage.signed_log import FORGOTTEN, SETTING, Entry, SignedLog, encode_log


def signed(number, kind=ObjectKind.STREAM):
    return kind, digest(b"%d" % number), b"object %d" % number


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / "catalog.sqlite"


@pytest.fixture
def catalog(path):
    made = Catalog(path)
    made.put_objects([signed(1), signed(2)])
    made.put("base/1", b"/models/base")
    yield made
    made.close()


def lose(path):
    """The catalog's file is gone, with all that SQLite keeps beside it."""
    for each in path.parent.glob("catalog.sqlite*"):
        each.unlink()


def reopened(path):
    catalog, rebuilt = open_catalog(path, path.parent / "slots")
    catalog.close()
    return rebuilt, sorted(catalog_of(path))


def catalog_of(path):
    catalog = Catalog(path)
    try:
        return [data for _, _, data in catalog.objects()] + [catalog.get("base/1") or b""]
    finally:
        catalog.close()


WHOLE = [b"/models/base", b"object 1", b"object 2"]


def test_a_lost_catalog_is_filled_from_the_log(catalog, path):
    catalog.close()
    lose(path)
    rebuilt, found = reopened(path)
    assert found == WHOLE
    assert "missing" in rebuilt.reason
    assert rebuilt.kept_as is None
    assert rebuilt.leases_lost
    assert rebuilt.objects == 2


def test_what_sqlite_left_of_a_lost_catalog_is_not_taken_for_a_part_of_the_new_one(catalog, path):
    wal = path.with_name("catalog.sqlite-wal").read_bytes()
    catalog.close()
    lose(path)
    path.with_name("catalog.sqlite-wal").write_bytes(wal)
    rebuilt, found = reopened(path)
    assert found == WHOLE
    assert path.with_name(f"{rebuilt.kept_as.name}-wal").exists()


def test_an_old_copy_of_the_catalog_that_was_put_back_learns_what_came_after(catalog, path):
    catalog.fold()
    old = path.read_bytes()
    catalog.put_objects([signed(3)])
    catalog.put("base/1", b"/models/other")
    catalog.close()
    lose(path)
    path.write_bytes(old)
    rebuilt, found = reopened(path)
    assert rebuilt is None
    assert b"object 3" in found


def test_a_power_cut_that_the_database_did_not_see_coming_loses_nothing(catalog, path):
    catalog.fold()
    old = path.read_bytes()
    catalog.put_objects([signed(3)])
    catalog.put("base/1", b"/models/moved")
    catalog.close()
    lose(path)
    path.write_bytes(old)
    assert reopened(path)[1] == [b"/models/moved", b"object 1", b"object 2", b"object 3"]


def test_an_object_that_could_not_be_put_is_not_in_the_log_either(catalog, path):
    catalog._database.execute("CREATE TRIGGER full BEFORE INSERT ON objects BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(CatalogError):
        catalog.put_objects([signed(3)])
    catalog.close()
    lose(path)
    assert reopened(path)[1] == WHOLE


def test_what_was_taken_back_does_not_come_again(catalog, path):
    catalog.put_objects([signed(3)])
    catalog.forget([digest(b"3")], durable=True)
    catalog.close()
    lose(path)
    assert reopened(path)[1] == WHOLE


def test_what_was_taken_back_and_signed_again_is_there(catalog, path):
    catalog.forget([digest(b"2")])
    catalog.put_objects([signed(2)])
    catalog.close()
    lose(path)
    assert reopened(path)[1] == WHOLE


def test_node_records_are_left_to_their_nodes(catalog, path):
    size = log_path(path).stat().st_size
    catalog.put_objects([signed(4, ObjectKind.NODE)])
    assert log_path(path).stat().st_size == size
    catalog.close()
    lose(path)
    assert reopened(path)[1] == WHOLE


def test_a_log_that_is_gone_or_damaged_is_written_anew(catalog, path):
    catalog.close()
    for damage in (lambda log: log.unlink(), lambda log: log.write_bytes(b"damage"), lambda log: log.write_bytes(b"")):
        damage(log_path(path))
        assert reopened(path)[1] == WHOLE
        lose(path)
        assert reopened(path)[1] == WHOLE


def test_a_log_of_a_later_format_is_refused(catalog, path):
    catalog.close()
    log_path(path).write_bytes(b"PSSIGN\x02")
    with pytest.raises(CatalogError, match="later format"):
        Catalog(path)


def test_what_follows_a_torn_entry_is_not_lost(catalog, path):
    catalog.close()
    with log_path(path).open("ab") as log:
        log.write(b"\x20\x00\x00\x00torn")
    again = Catalog(path)
    again.put_objects([signed(3)])
    again.close()
    lose(path)
    assert b"object 3" in reopened(path)[1]


@given(st.data())
def test_a_log_cut_or_changed_anywhere_says_only_what_was_said(tmp_path_factory, data):
    entries = [Entry(1, digest(b"%d" % number), b"x" * number) for number in range(1, 5)]
    entries += [Entry(FORGOTTEN, digest(b"2")), Entry(SETTING, b"key", b"value")]
    whole = bytearray(encode_log(entries))
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        del whole[at:]
    else:
        whole[at] ^= data.draw(st.integers(1, 255))
    log = SignedLog(tmp_path_factory.mktemp("log") / "log", Files())
    log.path.write_bytes(whole)
    try:
        found = list(log.read().values())
    except CatalogError:
        assert at == 6, "only another format is refused"
        return
    assert all(each in entries for each in found)
    assert not log.is_whole or at == len(whole)


def test_it_does_not_grow_for_ever(catalog, path, monkeypatch):
    monkeypatch.setattr("patchswarm.storage.catalog._LOG_BYTES", 1000)
    catalog.close()
    log_path(path).unlink()  # so that it is written anew, by the new limit
    again = Catalog(path)
    for number in range(3, 200):
        again.put_objects([signed(number)])
        again.forget([digest(b"%d" % number)])
    assert log_path(path).stat().st_size < 3000
    again.close()
    lose(path)
    assert reopened(path)[1] == WHOLE


class FullDisk(Files):
    full = False

    def pwrite(self, fd, data, offset):
        if self.full:
            raise OSError(errno.ENOSPC, "no space")
        return super().pwrite(fd, data, offset)


def test_a_full_disk_fails_the_call_and_nothing_else(path):
    files = FullDisk()
    catalog = Catalog(path, files)
    catalog.put_objects([signed(1)])
    files.full = True
    with pytest.raises(NoSpaceError, match=r"catalog\.signed"):
        catalog.put_objects([signed(2)])
    files.full = False
    catalog.put_objects([signed(3)])
    catalog.close()
    lose(path)
    assert {b"object 1", b"object 3"} <= set(reopened(path)[1])


def test_a_node_whose_disk_is_full_starts_all_the_same(catalog, path):
    catalog.close()
    log_path(path).unlink()
    files = FullDisk()
    files.full = True
    again = Catalog(path, files)
    assert len(again.objects()) == 2
    files.full = False
    again.put_objects([signed(3)])
    again.close()
    lose(path)
    assert reopened(path)[1] == [*WHOLE, b"object 3"]
