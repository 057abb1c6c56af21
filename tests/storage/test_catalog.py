"""The catalog keeps what it was given, never takes a mark back, and says so when its file is damaged."""

import sqlite3
import threading

import pytest

from patchswarm.protocol.ids import digest
from patchswarm.protocol.messages import ObjectKind
from patchswarm.storage.catalog import Catalog, LeaseRow, Mark
from patchswarm.storage.errors import CatalogError, NotNewerError
from patchswarm.storage.files import Files

ITEMS = [(kind, digest(b"%d" % kind), b"data %d" % kind) for kind in ObjectKind]
M1, M2 = digest(b"m1"), digest(b"m2")


@pytest.fixture
def catalog(tmp_path):
    made = Catalog(tmp_path / "home" / "catalog.sqlite")
    yield made
    made.close()


def reopened(catalog):
    catalog.close()
    return Catalog(catalog.path)


def test_objects_are_there_after_a_restart(catalog):
    catalog.put_objects(ITEMS)
    catalog.put_objects(ITEMS[:2])
    again = reopened(catalog)
    assert sorted(again.objects()) == sorted(ITEMS)
    again.close()


def test_forgotten_objects_are_gone(catalog):
    catalog.put_objects(ITEMS)
    catalog.forget([ITEMS[0][1], b"unknown"])
    assert sorted(catalog.objects()) == sorted(ITEMS[1:])


def test_objects_are_put_all_or_none(catalog):
    with pytest.raises(CatalogError):
        catalog.put_objects([ITEMS[0], (ObjectKind.NODE, digest(b"x"), None)])
    assert catalog.objects() == []


def test_a_mark_rises_and_never_falls(catalog):
    assert catalog.mark("qwen") is None
    catalog.raise_mark("qwen", 1, 5, M1)
    catalog.raise_mark("qwen", 1, 5, M1)
    for epoch, version, manifest in ((1, 4, M1), (1, 5, M2), (0, 9, M2)):
        with pytest.raises(NotNewerError, match="version 5"):
            catalog.raise_mark("qwen", epoch, version, manifest)
    assert catalog.mark("qwen") == Mark(1, 5, M1)
    catalog.raise_mark("qwen", 2, 1, M2)
    again = reopened(catalog)
    assert again.mark("qwen") == Mark(2, 1, M2)
    assert again.mark("other") is None
    again.close()


def test_settings_are_kept(catalog):
    assert catalog.get("incarnation") is None
    catalog.put("incarnation", b"1")
    catalog.put("incarnation", b"2")
    again = reopened(catalog)
    assert again.get("incarnation") == b"2"
    again.close()


def test_leases_are_kept_by_stream(catalog):
    row = LeaseRow("a", "qwen", 1, 2, M1, 12.5, 0, b"boot")
    catalog.put_lease(row)
    catalog.put_lease(row._replace(expires_at=13.5))
    catalog.put_lease(row._replace(id="b", stream="llama"))
    assert catalog.leases("qwen") == [row._replace(expires_at=13.5)]
    catalog.drop_leases(["a", "unknown"])
    assert catalog.leases("qwen") == []


def test_threads_may_share_a_catalog(catalog):
    def work(number):
        for version in range(20):
            catalog.put(f"{number}", b"%d" % version)
            catalog.raise_mark(f"s{number}", 1, version, M1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [catalog.mark(f"s{number}").version for number in range(4)] == [19] * 4


class Watched(Files):
    def __init__(self):
        self.levels = []
        self.syncs = 0

    def sync(self, fd):
        self.syncs += 1
        super().sync(fd)

    def commit(self, database):
        self.levels.append(database.execute("PRAGMA synchronous").fetchone()[0])
        super().commit(database)


def test_objects_and_settings_are_synced_in_the_log_marks_in_the_database_and_leases_nowhere(tmp_path):
    files = Watched()
    catalog = Catalog(tmp_path / "c", files)
    files.levels.clear()
    files.syncs = 0
    catalog.put_objects(ITEMS)
    catalog.put("k", b"v")
    assert files.syncs == 2
    catalog.raise_mark("s", 1, 1, M1)
    catalog.put_lease(LeaseRow("a", "qwen", 1, 2, M1, 12.5, 0, b"boot"))
    assert (files.syncs, files.levels) == (2, [1, 1, 2, 1])
    catalog.close()


@pytest.mark.parametrize("damage", [b"not a database" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_catalog_is_said(tmp_path, damage):
    path = tmp_path / "catalog.sqlite"
    path.write_bytes(damage)
    with pytest.raises(CatalogError, match=r"catalog\.sqlite"):
        Catalog(path)


def test_damage_in_the_middle_is_found_at_opening(catalog):
    catalog.put_objects([(ObjectKind.NODE, digest(b"%d" % n), bytes(500)) for n in range(500)])
    catalog.close()
    data = bytearray(catalog.path.read_bytes())
    data[3 * 4096 : 20 * 4096] = b"\xa5" * (17 * 4096)
    catalog.path.write_bytes(data)
    with pytest.raises(CatalogError):
        Catalog(catalog.path)


def test_a_later_format_is_refused(catalog):
    catalog.close()
    database = sqlite3.connect(catalog.path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(CatalogError, match="format 99"):
        Catalog(catalog.path)
