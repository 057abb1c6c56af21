"""One pass over a new checkpoint: exact for every reader, whatever has flipped on the head."""

import numpy as np
import pytest
from support.streams import Stream, manifest_of, model, safetensors_bytes

from patchswarm.protocol.codec.chunk import CodecOptions
from patchswarm.protocol.layout import BLOCK_BYTES
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.diff import Diff, DiffStoppedError
from patchswarm.storage.errors import SourceChangedError
from patchswarm.storage.trust import Checker, Parent
from patchswarm.storage.verify import block_digests


class Head:
    """A head that holds version 1 twice, and a trainer's version 2."""

    def __init__(self, tmp_path, elements=20_000, one=None, two=None):
        self.stream = Stream(tmp_path, count=3)
        with self.stream.add(1, one or model(1, elements=elements)) as source:
            self.digests = block_digests(source, 1)
        self.stream.commit(None, 1)
        self.stream.twin_of(1)
        self.stream.add(2, two or model(1, 1, elements=elements))
        self.store = ChunkStore(tmp_path / "chunks")
        self.made = []
        self.advanced = 0

    def diff(self, parent, building, **options):
        options = {"job_bytes": BLOCK_BYTES, "chunk_bytes": BLOCK_BYTES, "threads": 2} | options
        return Diff(
            self.stream.source(2),
            parent,
            building,
            self.store,
            lambda _, contents: contents,
            self.made.append,
            lambda size: setattr(self, "advanced", self.advanced + size),
            codec=CodecOptions(),
            **options,
        )

    def checks(self):
        """What the pass that made version 1 would have noted."""
        source = self.stream.source(1)
        return b"".join(Checker(source.read(*block).data).digest() for block in source.layout.blocks())

    def publish(self, *, digests=None, checks=b"", **options):
        """Run a pass into the spare slot, and commit it."""
        slots = self.stream.slots
        held = slots.find(manifest_of(1))
        building = slots.begin(self.stream.source(2).layout, held)
        with slots.hold(held) as files:
            parent = Parent(files, self.digests if digests is None else digests, checks)
            found = self.diff(parent, building, **options).run()
        return found, building.commit(1, 2, manifest_of(2), "", proven=True)

    def contents(self):
        return [self.store.get(made.name) for made in self.made]


def files_of_slot(slots, twin):
    (slot,) = [slot for slot in slots.slots() if slot.twin is twin]
    return slot.path / "model-00001.safetensors"


def flip(path, offset, bit=3):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.fixture
def head(tmp_path):
    return Head(tmp_path)


def rebuilt(tmp_path, head, order=None):
    """What a host that holds exactly version 1 makes of the chunks, in any order."""
    reader = Stream(tmp_path / "reader", count=2)
    reader.add(1, head.stream.trees[1])
    reader.commit(None, 1)
    reader.add(2, head.stream.trees[2])
    building = reader.slots.begin(reader.source(2).layout, reader.slots.find(manifest_of(1)))
    contents = head.contents()
    for number in order if order is not None else range(len(contents)):
        building.apply(contents[number])
    slot = building.commit(1, 2, manifest_of(2), "", proven=False)
    return reader.holds(slot, 2)


def test_a_step_leads_every_reader_to_the_trainers_bytes(head, tmp_path):
    found, slot = head.publish()
    assert head.stream.holds(slot, 2)
    assert rebuilt(tmp_path, head)
    assert (found.distrusted_blocks, found.mended_jobs) == (0, 0)
    assert bytes(found.digests) == block_digests(head.stream.source(2), 1)
    assert [made.ordinal for made in found.chunks] == list(range(len(found.chunks)))
    assert sorted(made.name for made in head.made) == sorted(made.name for made in found.chunks)
    assert head.advanced == head.stream.source(2).layout.size


def test_what_a_pass_noted_vouches_for_its_version_without_the_digests(head):
    found, _ = head.publish(checks=head.checks(), digests=bytes(len(head.digests)))
    assert found.distrusted_blocks == 0
    source = head.stream.source(2)
    blocks = [source.read(*block).data for block in source.layout.blocks()]
    assert bytes(found.checks) == b"".join(Checker(block).digest() for block in blocks)


@pytest.mark.parametrize("offset", [5, 60_001])
def test_checks_that_are_not_of_this_version_leave_it_to_the_digests(head, tmp_path, offset):
    flip(files_of_slot(head.stream.slots, twin=False), offset)
    found, slot = head.publish(checks=bytes(7))
    assert found.distrusted_blocks == 1
    assert head.stream.holds(slot, 2)
    assert rebuilt(tmp_path, head)


def test_every_size_of_job_and_chunk_leads_there(tmp_path):
    for number, options in enumerate(({"job_bytes": 64 * BLOCK_BYTES}, {"chunk_bytes": 1}, {"threads": 1})):
        head = Head(tmp_path / str(number))
        head.publish(**options)
        assert rebuilt(tmp_path / str(number), head)


@pytest.mark.parametrize("noted", [False, True], ids=["digests", "checks"])
@pytest.mark.parametrize("offset", [5, 500, 20_000, 60_001])
def test_a_flipped_bit_in_the_parent_is_sent_whole_and_published_exactly(head, tmp_path, offset, noted):
    flip(files_of_slot(head.stream.slots, twin=False), offset)
    found, slot = head.publish(checks=head.checks() if noted else b"")
    assert found.distrusted_blocks == 1
    assert head.stream.holds(slot, 2)
    count = len(found.chunks)
    assert rebuilt(tmp_path, head, reversed(range(count)))


@pytest.mark.parametrize("offset", [5, 500, 20_000, 60_001])
def test_a_flipped_bit_in_the_spare_costs_nobody_anything(head, tmp_path, offset):
    flip(files_of_slot(head.stream.slots, twin=True), offset)
    found, slot = head.publish()
    assert (found.distrusted_blocks, found.mended_jobs) == (0, 1)
    assert head.stream.holds(slot, 2)
    assert rebuilt(tmp_path, head, reversed(range(len(found.chunks))))
    clean = Head(tmp_path / "clean")
    assert {made.name for made in clean.publish()[0].chunks} == {made.name for made in found.chunks}


def test_bits_flipped_in_both_are_no_harder(head, tmp_path):
    for twin in (False, True):
        for offset in (100, 40_000):
            flip(files_of_slot(head.stream.slots, twin=twin), offset + twin)
    found, slot = head.publish()
    assert found.distrusted_blocks == 1
    assert head.stream.holds(slot, 2)
    assert rebuilt(tmp_path, head)


def test_a_spare_full_of_noise_is_mended(head, tmp_path):
    path = files_of_slot(head.stream.slots, twin=True)
    path.write_bytes(np.random.default_rng(1).bytes(path.stat().st_size))
    found, slot = head.publish()
    assert found.mended_jobs >= 1
    assert head.stream.holds(slot, 2)


def straddling(seed, moved=0):
    """F32 values that no block boundary respects: the header has an odd length."""
    values = np.random.default_rng(seed).standard_normal(3 * BLOCK_BYTES // 4).astype(np.float32)
    if moved:
        values.view(np.uint32)[::3] += moved
    data = safetensors_bytes({"w": ("F32", (len(values),), values.tobytes())})
    length = int.from_bytes(data[:8], "little")
    return {"model.safetensors": (length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :]}


@pytest.mark.parametrize("share", [0, 1])
def test_values_that_lie_across_the_blocks_of_two_jobs_are_compared_by_the_job_that_writes_them(tmp_path, share):
    head = Head(tmp_path, one=straddling(1), two=straddling(1, 1) if share else straddling(2))
    found, slot = head.publish(job_bytes=BLOCK_BYTES, threads=4)
    assert found.mended_jobs == 0
    assert head.stream.holds(slot, 2)


def test_without_a_building_the_chunks_are_checked_in_memory(head, tmp_path):
    held = head.stream.slots.find(manifest_of(1))
    with head.stream.slots.hold(held) as files:
        head.diff(Parent(files, head.digests), None).run()
    assert rebuilt(tmp_path, head)
    assert len(head.stream.slots.slots()) == 2


def test_a_pass_that_is_stopped_says_what_it_has_stored(head):
    held = head.stream.slots.find(manifest_of(1))
    building = head.stream.slots.begin(head.stream.source(2).layout, held)
    with head.stream.slots.hold(held) as files:
        diff = head.diff(Parent(files, head.digests), building, threads=1)
        head.made = Stopping(diff)
        diff._made = head.made.append
        with pytest.raises(DiffStoppedError):
            diff.run()
    building.abort()
    assert set(diff.names) == set(head.store.names())
    assert diff.names


class Stopping(list):
    """Stops a pass at its first chunk."""

    def __init__(self, diff):
        super().__init__()
        self.diff = diff

    def append(self, made):
        super().append(made)
        self.diff.stop.set()


def test_a_trainer_that_writes_on_is_an_error(head):
    held = head.stream.slots.find(manifest_of(1))
    building = head.stream.slots.begin(head.stream.source(2).layout, held)
    with head.stream.slots.hold(held) as files:
        diff = head.diff(Parent(files, head.digests), building)
        flip(head.stream.root / "trainer" / "2" / "model-00001.safetensors", 3000)
        with pytest.raises(SourceChangedError):
            diff.run()
    building.abort()
