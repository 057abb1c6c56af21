"""A scrub reads everything, finds what flipped, mends what it can, and reports the rest."""

import pytest
from support.streams import Stream, manifest_of, model

from patchswarm.protocol.ids import digest
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.scrub import ScrubReport, scrub_chunks, scrub_slots
from patchswarm.storage.verify import block_digests


@pytest.fixture
def stream(tmp_path):
    made = Stream(tmp_path)
    for version in (1, 2):
        made.add(version, model(1, steps=version - 1, elements=2000))
    made.commit(None, 1)
    made.commit(1, 2)
    return made


def digests_of(stream):
    tables = {}
    for version in stream.trees:
        with stream.source(version) as source:
            tables[manifest_of(version)] = block_digests(source, 1)
    return tables.get


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with path.open("r+b") as file:
        file.write(data)


def go_on(_):
    return True


def test_a_sound_node_is_read_in_full_and_nothing_is_said(stream):
    report = ScrubReport()
    scrub_slots(stream.slots, digests_of(stream), go_on, report)
    assert report.read_bytes == 2 * sum(map(len, stream.trees[1].values()))
    assert not report.mended
    assert not report.withdrawn


def test_a_scrub_proves_what_was_not_proven(stream):
    stream.slots._restate(stream.slots.current(), proven=False)
    scrub_slots(stream.slots, digests_of(stream), go_on, ScrubReport())
    assert stream.slots.current().proven


def test_a_flipped_bit_is_mended_from_the_twin_whichever_has_it(stream):
    for name in ("v2", ".twin-2"):
        if not (stream.slots.directory / ".twin-2").exists():
            stream.twin(1, 2)
        flip(stream.slots.directory / name / "model-00002.safetensors")
        report = ScrubReport()
        scrub_slots(stream.slots, digests_of(stream), go_on, report)
        assert [slot.path.name for slot in report.mended] == [name]
        assert all(stream.holds(slot, 2) for slot in stream.slots.slots())
        assert stream.slots.current().proven


def test_a_flipped_bit_that_nobody_here_can_mend_withdraws_the_version(stream):
    flip(stream.slots.current().path / "model-00002.safetensors")
    report = ScrubReport()
    scrub_slots(stream.slots, digests_of(stream), go_on, report)
    [(slot, blocks)] = report.withdrawn
    assert slot.version == 2
    assert blocks == [2]
    assert stream.slots.current() is None


def test_a_version_whose_table_is_not_here_is_left_alone(stream):
    flip(stream.slots.current().path / "model-00002.safetensors")
    scrub_slots(stream.slots, lambda _: None, go_on, report := ScrubReport())
    assert report.read_bytes == 0
    assert stream.slots.current() is not None


def test_a_scrub_that_is_stopped_proves_nothing(stream):
    stream.slots._restate(stream.slots.current(), proven=False)
    report = ScrubReport()
    scrub_slots(stream.slots, digests_of(stream), lambda _: False, report)
    assert report.read_bytes > 0
    assert not stream.slots.current().proven


def test_a_damaged_chunk_leaves_the_store(tmp_path):
    store = ChunkStore(tmp_path)
    names = [digest(b"%d" % number) for number in range(4)]
    for number in range(4):
        store.put(names[number], b"%d" % number)
    flip(tmp_path / names[2].hex()[:2] / names[2].hex())
    scrub_chunks(store, go_on, report := ScrubReport())
    assert report.damaged_chunks == [names[2]]
    assert report.read_bytes == 4
    assert set(store.names()) == {*names} - {names[2]}
    scrub_chunks(store, lambda _: False, stopped := ScrubReport())
    assert stopped.read_bytes == 1
