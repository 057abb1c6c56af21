"""Counts and offsets over 2^31 elements and over 4 GiB go through publish and rebuild."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from support.streams import Stream, manifest_of

from patchswarm.protocol.codec.chunk import CodecOptions
from patchswarm.protocol.ids import digest
from patchswarm.storage.checkpoint import scan
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.diff import Diff
from patchswarm.storage.trust import Parent

MANY = 2**31 + 12_345  # elements of one byte
WIDE = 2**32 + 24_690  # bytes of BF16
NEED = 3 * (MANY + WIDE) + 2**30


def write_sparse(path, steps):
    """Two tensors that are zero but for some values near their ends and around the places where 32 bits run out."""
    header = (
        f'{{"many":{{"dtype":"F8_E4M3","shape":[{MANY}],"data_offsets":[0,{MANY}]}},'
        f'"wide":{{"dtype":"BF16","shape":[{WIDE // 2}],"data_offsets":[{MANY},{MANY + WIDE}]}}}}'
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + MANY + WIDE)
    data = np.memmap(path, np.uint8, "r+", offset=8 + len(header))
    for at in (0, 2**31 - 8, 2**31, MANY - 8, MANY, MANY + 2**31, MANY + 2**32 - 8, MANY + 2**32, MANY + WIDE - 8):
        data[at : at + 8] += np.arange(8, dtype=np.uint8) * 2 + steps


@pytest.fixture
def root():
    folder = tempfile.gettempdir()
    if shutil.disk_usage(folder).free < NEED:
        pytest.skip(f"needs {NEED >> 30} GiB free")
    with tempfile.TemporaryDirectory(dir=folder, prefix="patchswarm-large-") as made:
        yield Path(made)


def publish(stream, store, version):
    """One pass as the head makes it, chunks unsealed: their contents."""
    contents = []
    source = scan(stream.root / "trainer")
    current = stream.slots.current()
    building = stream.slots.begin(source.layout, current)

    def run(parent):
        Diff(
            source,
            parent,
            building,
            store,
            lambda _, data: contents.append(data) or data,
            lambda _: None,
            lambda _: None,
            codec=CodecOptions(),
            job_bytes=64 << 20,
            chunk_bytes=4 << 20,
            threads=2,
        ).run()

    if current is None:
        run(None)
    else:
        with stream.slots.hold(current) as files:
            run(Parent(files, b""))
    source.close()
    building.commit(1, version, manifest_of(version), "", proven=True)
    return contents


def sha(path):
    made = digest(b"")
    with path.open("rb") as file:
        while part := file.read(64 << 20):
            made = digest(made + digest(part))
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_tensor_of_over_2_31_elements_and_one_of_over_4_gib(root):
    (root / "trainer").mkdir()
    path = root / "trainer" / "model.safetensors"
    stream = Stream(root)
    store = ChunkStore(root / "chunks")
    write_sparse(path, 0)
    first = publish(stream, store, 1)
    assert sum(map(len, first)) < 50_000_000
    assert sha(stream.slots.current().path / "model.safetensors") == sha(path)
    write_sparse(path, 1)
    second = publish(stream, store, 2)
    assert sum(map(len, second)) < 100_000
    slot = stream.slots.current()
    assert slot.version == 2
    assert sha(slot.path / "model.safetensors") == sha(path)
    # A replica that has version 1 applies the same chunks.
    behind = stream.slots.find(manifest_of(1))
    building = stream.slots.begin(slot.layout, behind)
    for chunk in second:
        building.apply(chunk)
    twin = building.commit_twin(1, 2, manifest_of(2), "", proven=True)
    assert sha(twin.path / "model.safetensors") == sha(path)
