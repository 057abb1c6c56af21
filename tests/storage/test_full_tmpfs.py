"""A file system that is really full: said, served on, and gone on with when there is space."""

import subprocess

import pytest
from support.streams import Stream, manifest_of, model

from patchswarm.protocol.ids import digest
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.errors import NoSpaceError
from patchswarm.storage.files import Files

ELEMENTS = 200_000
SIZE = 3 * 2 * ELEMENTS


def mount(*arguments):
    return subprocess.run(["mount", "-t", "tmpfs", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small(tmp_path):
    """A tmpfs with room for one version and a half."""
    folder = tmp_path / "root" / "slots"
    folder.mkdir(parents=True)
    if not mount("-o", f"size={SIZE * 3 // 2}", "tmpfs", str(folder)):
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Hopeful(Files):
    """Believes that there is space."""

    def free_bytes(self, path):
        return 2**40


@pytest.mark.parametrize("files", [Files(), Hopeful()], ids=["looking first", "finding out"])
def test_a_full_tmpfs_leaves_the_old_version_served_and_the_next_comes_with_space(small, files):
    stream = Stream(small.parent, files=files)
    for version in (1, 2):
        stream.add(version, model(1, steps=version, elements=ELEMENTS))
    stream.commit(None, 1)
    for _ in range(3):
        with pytest.raises(NoSpaceError, match="free"):
            stream.commit(1, 2)
        assert stream.holds(stream.slots.current(), 1)
        assert [path.name for path in stream.slots.directory.iterdir()] == ["v1"]
    assert mount("-o", f"remount,size={4 * SIZE}", "tmpfs", str(small))
    assert stream.holds(stream.commit(1, 2), 2)
    stream.catalog.close()


def test_a_step_in_place_needs_no_space_worth_the_name(small):
    stream = Stream(small.parent, count=1)
    for version in (1, 2):
        stream.add(version, model(1, steps=version, elements=ELEMENTS))
    stream.commit(None, 1)
    assert stream.holds(stream.commit(1, 2), 2)
    stream.catalog.close()


def test_one_slot_without_room_for_its_journal_keeps_the_old_version(small):
    stream = Stream(small.parent, count=1)
    for version in (1, 2):
        stream.add(version, model(1, steps=version, share=0.5, elements=ELEMENTS))
    stream.commit(None, 1)
    with (small / "ballast").open("wb") as ballast:
        size = stream.slots._files.free_bytes(small)
        ballast.write(bytes(size - 8192))
    with stream.source(2) as source:
        building = stream.slots.begin(source.layout, stream.slots.current())
    with pytest.raises(NoSpaceError):  # noqa: PT012 - which chunk is one too many depends on the ballast
        for chunk in stream.chunks(1, 2):
            building.apply(chunk)
    (small / "more ballast").write_bytes(bytes(max(0, stream.slots._files.free_bytes(small))))
    building.abort()
    assert stream.holds(stream.slots.current(), 1)
    (small / "more ballast").write_bytes(bytes(max(0, stream.slots._files.free_bytes(small) - 8192)))
    assert stream.holds(stream.reopen().current(), 1)
    (small / "ballast").unlink()
    assert stream.holds(stream.commit(1, 2), 2)
    assert stream.slots.current().manifest == manifest_of(2)
    stream.catalog.close()


def test_a_full_chunk_store_says_so_and_keeps_what_it_has(small):
    store = ChunkStore(small / "chunks")
    kept = []
    with pytest.raises(NoSpaceError, match="chunks"):  # noqa: PT012 - it is for the store to say when
        for number in range(100):
            data = bytes([number]) * 300_000
            store.put(digest(data), data)
            kept.append(data)
    assert kept
    assert all(store.get(digest(data)) == data for data in kept)
    assert len(ChunkStore(small / "chunks").names()) == len(kept)
    store.remove(digest(kept[0]))
    data = b"x" * 200_000
    store.put(digest(data), data)
    assert store.get(digest(data)) == data
