"""The chunk store gives out exactly the bytes that a name names, or says that it cannot."""

import threading

import pytest

from patchswarm.protocol.ids import digest
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.errors import ChunkCorruptError, ChunkMissingError
from patchswarm.storage.files import Files

DATA = b"sealed bytes of a chunk" * 100
NAME = digest(DATA)


@pytest.fixture
def store(tmp_path):
    return ChunkStore(tmp_path / "chunks")


def the_file(tmp_path):
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    return path


def test_what_was_put_is_got(store):
    store.put(NAME, DATA)
    assert store.get(NAME) == DATA
    assert store.has(NAME)
    assert store.size(NAME) == len(DATA)
    assert store.names() == [NAME]
    assert store.total_bytes == len(DATA)


def test_putting_twice_changes_nothing(store, tmp_path):
    store.put(NAME, DATA)
    inode = the_file(tmp_path).stat().st_ino
    store.put(NAME, DATA)
    assert the_file(tmp_path).stat().st_ino == inode
    assert store.total_bytes == len(DATA)


def test_bytes_of_another_name_are_refused(store, tmp_path):
    with pytest.raises(ChunkCorruptError, match=NAME.hex()[:10]):
        store.put(NAME, DATA + b"!")
    assert not list(tmp_path.rglob("*.new*"))
    assert not store.has(NAME)


def test_chunks_fan_out_by_the_first_byte_of_their_name(store, tmp_path):
    store.put(NAME, DATA)
    assert the_file(tmp_path).relative_to(tmp_path).parts == ("chunks", NAME.hex()[:2], NAME.hex())


def test_a_missing_chunk_is_said(store):
    for ask in (store.get, store.size):
        with pytest.raises(ChunkMissingError, match="fetch it again"):
            ask(NAME)


def test_a_removed_chunk_is_gone(store, tmp_path):
    store.put(NAME, DATA)
    store.remove(NAME)
    store.remove(NAME)
    assert not store.has(NAME)
    assert store.total_bytes == 0
    assert not list(tmp_path.rglob(NAME.hex()))
    with pytest.raises(ChunkMissingError):
        store.get(NAME)


def test_chunks_are_there_after_a_restart(store, tmp_path):
    store.put(NAME, DATA)
    again = ChunkStore(tmp_path / "chunks")
    assert again.get(NAME) == DATA
    assert again.total_bytes == len(DATA)


def test_leftovers_of_a_crash_are_removed_at_opening(store, tmp_path):
    store.put(NAME, DATA)
    leftover = the_file(tmp_path).with_name(".new-7-abc")
    leftover.write_bytes(b"half")
    assert ChunkStore(tmp_path / "chunks").names() == [NAME]
    assert not leftover.exists()


def test_foreign_files_are_left_alone(store, tmp_path):
    store.put(NAME, DATA)
    foreign = the_file(tmp_path).with_name("notes.txt")
    foreign.write_bytes(b"mine")
    (tmp_path / "chunks" / "file").write_bytes(b"mine")
    assert ChunkStore(tmp_path / "chunks").names() == [NAME]
    assert foreign.exists()


@pytest.mark.parametrize("torn", [b"", DATA[:-1], DATA + b"x", b"!" + DATA[1:], b"x" * 5_000_000])
def test_a_torn_chunk_is_never_given_out(store, tmp_path, torn):
    store.put(NAME, DATA)
    the_file(tmp_path).write_bytes(torn)
    again = ChunkStore(tmp_path / "chunks")
    with pytest.raises(ChunkCorruptError, match="fetch it again"):
        again.get(NAME)
    assert not again.has(NAME)
    again.put(NAME, DATA)
    assert again.get(NAME) == DATA


def test_a_torn_chunk_is_mended_by_putting_it_again(store, tmp_path):
    store.put(NAME, DATA)
    the_file(tmp_path).write_bytes(b"torn")
    again = ChunkStore(tmp_path / "chunks")
    again.put(NAME, DATA)
    assert again.get(NAME) == DATA
    assert again.total_bytes == len(DATA)


def test_a_chunk_that_vanished_is_missing(store, tmp_path):
    store.put(NAME, DATA)
    the_file(tmp_path).unlink()
    with pytest.raises(ChunkMissingError):
        store.get(NAME)
    assert not store.has(NAME)


def test_a_check_hashes_again_what_was_trusted(store, tmp_path):
    store.put(NAME, DATA)
    assert store.check(NAME)
    path = the_file(tmp_path)
    path.write_bytes(b"!" + DATA[1:])
    assert not store.check(NAME)
    assert not store.has(NAME)


class Synced(Files):
    def __init__(self):
        self.calls = []

    def sync(self, fd):
        self.calls.append("sync")
        super().sync(fd)

    def rename(self, old, new):
        self.calls.append("rename")
        super().rename(old, new)


def test_a_chunk_put_with_sync_is_durable_under_its_name(tmp_path):
    files = Synced()
    ChunkStore(tmp_path, files).put(NAME, DATA, sync=True)
    assert files.calls == ["sync", "sync", "rename", "sync"]  # root (for the folder), contents, then the name
    files.calls.clear()
    ChunkStore(tmp_path, files).put(digest(b"x"), b"x")
    assert files.calls == ["rename"]


def test_chunks_put_without_sync_can_be_made_durable_later(tmp_path):
    files = Synced()
    store = ChunkStore(tmp_path, files)
    store.put(NAME, DATA)
    store.sync([NAME])
    assert files.calls == ["rename", "sync", "sync", "sync"]
    with pytest.raises(ChunkMissingError):
        store.sync([digest(b"nothing")])


SHORT = b"shorter"


def test_a_removed_chunks_file_is_written_over(store, tmp_path):
    store.put(NAME, DATA)
    inode = the_file(tmp_path).stat().st_ino
    store.remove(NAME)
    store.put(digest(SHORT), SHORT)
    assert the_file(tmp_path).stat().st_ino == inode
    assert the_file(tmp_path).read_bytes() == SHORT
    assert store.get(digest(SHORT)) == SHORT
    assert store.total_bytes == len(SHORT)


def test_a_shorter_file_is_written_over_by_a_longer_one(store, tmp_path):
    store.put(digest(SHORT), SHORT)
    store.remove(digest(SHORT))
    store.put(NAME, DATA, sync=True)
    assert ChunkStore(tmp_path / "chunks").get(NAME) == DATA


def test_only_so_much_is_kept_to_be_written_over(store, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_spare_limit", 2 * len(DATA))
    all_of_it = [bytes([number]) + DATA[1:] for number in range(4)]
    for data in all_of_it:
        store.put(digest(data), data)
    for data in all_of_it:
        store.remove(digest(data))
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2
    store.free_spares()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_to_be_written_over_are_removed_at_opening(store, tmp_path):
    store.put(NAME, DATA)
    store.remove(NAME)
    assert ChunkStore(tmp_path / "chunks").names() == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class Slow(Files):
    """Stops in the middle of reading until it may go on."""

    def __init__(self):
        self.opened, self.may_go_on = threading.Event(), threading.Event()

    def pread(self, fd, size, offset):
        self.opened.set()
        assert self.may_go_on.wait(10)
        return super().pread(fd, size, offset)


def test_a_file_that_is_being_read_is_not_written_over(tmp_path):
    files = Slow()
    store = ChunkStore(tmp_path / "chunks", files)
    other = b"?" * len(DATA)
    store.put(NAME, DATA)
    got = []
    reader = threading.Thread(target=lambda: got.append(store.get(NAME)))
    reader.start()
    assert files.opened.wait(10)
    store.remove(NAME)
    store.put(digest(other), other)
    files.may_go_on.set()
    reader.join(10)
    assert got == [DATA]
