"""Deltas between slots, and along transitions whose versions were never built: exact for every dtype, or refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load
from support import streams
from support.checkpoints import BITS
from support.streams import Stream, manifest_of, model, resharded, safetensors_bytes, weights

from patchswarm.protocol.errors import BaseMismatchError
from patchswarm.storage import composed, delta
from patchswarm.storage.composed import Leg, compose_legs
from patchswarm.storage.delta import common_tensors, compare, write_delta
from patchswarm.storage.errors import LoadInFullError

BYTEWISE = {"F4", "F6_E2M3", "F6_E3M2"}


@pytest.fixture
def stream(tmp_path):
    return Stream(tmp_path, count=4)


def read(file):
    """A delta as the safetensors library sees it where numpy knows the dtypes; header and body for the others."""
    file.seek(0)
    raw = file.read()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    body = raw[8 + size :]
    metadata = header.pop("__metadata__")
    entries = {
        name: (entry["dtype"], body[slice(*entry["data_offsets"])], entry["shape"]) for name, entry in header.items()
    }
    ends = sorted(entry["data_offsets"] for entry in header.values())
    assert [first for first, _ in ends] == [0, *(last for _, last in ends)][: len(ends)], "no holes"
    assert all(entry["data_offsets"][0] % (BITS[entry["dtype"]] // 8) == 0 for entry in header.values()), "aligned"
    return raw, metadata, entries


def applied(entries, before):
    """`before`, name to (dtype, shape, bytes), with a delta written over it, byte by byte."""
    after = {name: bytearray(data) for name, (_, _, data) in before.items()}
    for name, data in after.items():
        if f"{name}.indices" not in entries:
            continue
        index_dtype, raw_indices, _ = entries[f"{name}.indices"]
        indices = np.frombuffer(raw_indices, "<i4" if index_dtype == "I32" else "<i8")
        dtype, values, shape = entries[f"{name}.values"]
        assert dtype == ("U8" if before[name][0] in BYTEWISE else before[name][0])
        width = BITS[dtype] // 8
        assert shape == [len(indices)]
        assert len(values) == len(indices) * width
        assert np.all(np.diff(indices) > 0)
        for place, index in enumerate(indices.tolist()):
            data[index * width : (index + 1) * width] = values[place * width : (place + 1) * width]
    return {name: bytes(data) for name, data in after.items()}


def between_slots(stream, tmp_path, old, new, threads=2):
    before, after = stream.slots.find(manifest_of(old)), stream.slots.find(manifest_of(new))
    tensors = common_tensors(before.layout, after.layout)
    with stream.slots.hold(before) as a, stream.slots.hold(after) as b:
        return write_delta(tensors, compare(tensors, a, b), tmp_path, {"from": str(old)}, threads)


def along(stream, tmp_path, start, *versions):
    """The delta along the transitions from one version to the next, of which only the first is in a slot."""
    before = stream.slots.find(manifest_of(start))
    legs = []
    for old, new in zip((start, *versions), versions, strict=False):
        with stream.source(new) as source:
            legs.append(Leg(source.layout, [lambda data=data: data for data in stream.chunks(old, new)]))
    tensors = common_tensors(before.layout, legs[-1].layout)
    with stream.slots.hold(before) as held:
        return write_delta(tensors, compose_legs(tensors, held, legs), tmp_path, {}, 2)


def every_dtype(seed, steps):
    """Files with a tensor of each dtype: random bits, some of which move at each step."""
    random = np.random.default_rng(seed)
    tensors = {}
    for dtype, bits in BITS.items():
        shape = (37, 24)
        data = random.integers(0, 2 if dtype == "BOOL" else 256, 37 * 24 * bits // 8, dtype=np.uint8)
        for step in range(steps):
            moves = np.random.default_rng((seed, step, bits)).random(data.size) < 0.03
            data[moves] ^= 1
        tensors[f"t {dtype}"] = (dtype, shape, data.tobytes())
    tensors["scalar"] = ("F64", (), bytes([steps] * 8))
    tensors["empty"] = ("F16", (0, 3), b"")
    return tensors


def test_what_differs_between_two_slots_is_exactly_what_is_listed(stream, tmp_path):
    stream.add(1, model(1))
    stream.add(2, model(1, 1) | {"config.json": b"something else, and longer", "new.txt": b"x"})
    stream.commit(None, 1)
    stream.commit(None, 2)
    with between_slots(stream, tmp_path, 1, 2) as file:
        raw, metadata, entries = read(file)
    before, after = weights(1), weights(1, 1)
    assert metadata["from"] == "1"
    assert json.loads(metadata["tensors"]) == {name: ["BF16", [20_000]] for name in after}
    for name, expected in after.items():
        (places,) = np.nonzero(before[name] != expected)
        assert np.array_equal(np.frombuffer(entries[f"{name}.indices"][1], "<i4"), places)
        assert entries[f"{name}.values"][1] == expected[places].tobytes()
    assert set(entries) == {f"{name}.{what}" for name in after for what in ("indices", "values")}
    assert len(raw) < 20_000


@pytest.mark.parametrize("way", ["slots", "chain"])
def test_every_dtype_arrives_bit_for_bit(stream, tmp_path, way):
    trees = {version: every_dtype(3, version) for version in (1, 2, 3)}
    for version, tensors in trees.items():
        stream.add(version, {"model.safetensors": safetensors_bytes(tensors)})
    stream.commit(None, 1)
    if way == "slots":
        stream.commit(None, 3)
    with between_slots(stream, tmp_path, 1, 3) if way == "slots" else along(stream, tmp_path, 1, 2, 3) as file:
        _, _, entries = read(file)
    assert applied(entries, trees[1]) == {name: data for name, (_, _, data) in trees[3].items()}


def test_a_complex_number_that_two_chunks_share_is_whole(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK_BYTES", 32 * 1024 + 4)
    trees = []
    for version in range(1, 4):
        values = weights(1, version, share=0.05, elements=40_000)["embed.weight"].tobytes()
        trees.append({"z": ("C64", (10_000,), values)})
        stream.add(version, {"m.safetensors": safetensors_bytes(trees[-1])})
    stream.commit(None, 1)
    with along(stream, tmp_path, 1, 2, 3) as file:
        assert applied(read(file)[2], trees[0]) == {"z": trees[2]["z"][2]}


def test_the_library_reads_it(stream, tmp_path):
    trees = [{"w": ("F32", (8,), bytes(32)), "n": ("I64", (2,), bytes(16))} for _ in range(2)]
    trees[1]["w"] = (
        "F32",
        (8,),
        bytes(12) + np.float32(-0.0).tobytes() + bytes(8) + np.float32(2).tobytes() + bytes(4),
    )
    for version, tensors in enumerate(trees, 1):
        stream.add(version, {"model.safetensors": safetensors_bytes(tensors)})
        stream.commit(None, version)
    with between_slots(stream, tmp_path, 1, 2) as file:
        loaded = load(read(file)[0])
    assert set(loaded) == {"w.indices", "w.values"}
    assert loaded["w.indices"].dtype == np.int32
    assert loaded["w.indices"].tolist() == [3, 6]
    assert np.array_equal(loaded["w.values"].view(np.uint32), np.array([-0.0, 2], np.float32).view(np.uint32))


def test_versions_that_are_the_same_have_an_empty_delta(stream, tmp_path):
    stream.add(1, model(1))
    stream.commit(None, 1)
    with between_slots(stream, tmp_path, 1, 1) as file:
        assert load(read(file)[0]) == {}


def test_a_chain_gives_what_the_slots_give(stream, tmp_path, monkeypatch):
    """Each transition is cut into chunks at other places, so no stretch of one is a stretch of another."""
    for version in range(1, 5):
        stream.add(version, model(1, version) | {"trainer_state.json": b"x" * 1000 * version})
    stream.commit(None, 1)
    cuts = iter((32 * 1024, 4 * 1024, 11 * 1024))
    plain = Stream.chunks

    def cut_anew(self, old, new):
        monkeypatch.setattr(streams, "CHUNK_BYTES", next(cuts))
        return list(reversed(plain(self, old, new)))

    monkeypatch.setattr(Stream, "chunks", cut_anew)
    with along(stream, tmp_path, 1, 2, 3, 4) as file:
        composed_entries = read(file)
    monkeypatch.setattr(Stream, "chunks", plain)
    stream.commit(None, 4)
    with between_slots(stream, tmp_path, 1, 4) as file:
        found = read(file)
    assert composed_entries[2] == found[2]
    assert len(found[2]) == 6


def test_what_changed_and_changed_back_is_not_in_a_chain(stream, tmp_path):
    for version, steps in ((1, 0), (2, 1), (3, 0)):
        stream.add(version, model(1, steps))
    stream.commit(None, 1)
    with along(stream, tmp_path, 1, 2, 3) as file:
        assert read(file)[2] == {}


def test_a_chain_that_does_not_start_here_is_refused(stream, tmp_path):
    for version in (1, 2, 3):
        stream.add(version, model(1, version))
    stream.commit(None, 1)
    before = stream.slots.find(manifest_of(1))
    with stream.source(3) as source:
        leg = Leg(source.layout, [lambda data=data: data for data in stream.chunks(2, 3)])
    tensors = common_tensors(before.layout, leg.layout)
    with stream.slots.hold(before) as held, pytest.raises(BaseMismatchError):
        write_delta(tensors, compose_legs(tensors, held, [leg]), tmp_path, {}, 2)


def test_a_chain_takes_no_more_memory_than_it_may(stream, tmp_path, monkeypatch):
    for version in (1, 2):
        stream.add(version, model(1, version))
    stream.commit(None, 1)
    monkeypatch.setattr(composed, "MAX_WINDOW_BYTES", 16 * 1024)
    with pytest.raises(LoadInFullError, match="load in full"):
        along(stream, tmp_path, 1, 2)


@pytest.mark.parametrize("way", ["slots", "chain"])
def test_other_tensors_are_refused_by_name(stream, tmp_path, way):
    stream.add(1, model(1))
    stream.add(2, resharded(1))
    stream.commit(None, 1)
    stream.commit(None, 2)
    with pytest.raises(LoadInFullError, match=r"tensor '(layers.0.weight|fresh)' is (gone from|new in)"):
        (between_slots if way == "slots" else along)(stream, tmp_path, 1, 2)


def test_another_shape_is_refused(stream, tmp_path):
    for version, shape in ((1, (4, 2)), (2, (2, 4))):
        stream.add(version, {"m.safetensors": safetensors_bytes({"w": ("F32", shape, bytes(32))})})
        stream.commit(None, version)
    with pytest.raises(LoadInFullError, match=r"'w' was F32 \[4, 2\] and is F32 \[2, 4\]"):
        between_slots(stream, tmp_path, 1, 2)


def test_a_name_that_is_in_two_files_is_refused(stream, tmp_path):
    data = safetensors_bytes({"w": ("F32", (8,), bytes(32))})
    stream.add(1, {"a.safetensors": data, "b.safetensors": data})
    stream.commit(None, 1)
    with pytest.raises(LoadInFullError, match="'w' is in more than one file"):
        between_slots(stream, tmp_path, 1, 1)


def test_a_tensor_that_moved_to_another_file_is_the_same_tensor(stream, tmp_path):
    tensors = {name: ("BF16", (20_000,), values.tobytes()) for name, values in weights(1, 1).items()}
    stream.add(1, model(1))
    stream.add(2, {"all.safetensors": safetensors_bytes(dict(reversed(tensors.items())))})
    stream.commit(None, 1)
    stream.commit(None, 2)
    before = {name: ("BF16", (20_000,), values.tobytes()) for name, values in weights(1).items()}
    with between_slots(stream, tmp_path, 1, 2) as file:
        assert applied(read(file)[2], before) == {name: data for name, (_, _, data) in tensors.items()}


def test_a_delta_larger_than_the_version_is_refused(stream, tmp_path):
    for version in (1, 2):
        values = np.full(40_000, version, np.uint16)
        stream.add(version, {"m.safetensors": safetensors_bytes({"w": ("BF16", (40_000,), values.tobytes())})})
        stream.commit(None, version)
    with pytest.raises(LoadInFullError, match="larger than the version"):
        between_slots(stream, tmp_path, 1, 2)


def test_tiles_follow_each_other_whatever_thread_finds_them(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(delta, "_TILE_BYTES", 512)
    for version in (1, 2):
        stream.add(version, model(1, version))
        stream.commit(None, version)
    before = {name: ("BF16", (20_000,), values.tobytes()) for name, values in weights(1, 1).items()}
    with between_slots(stream, tmp_path, 1, 2, threads=4) as file:
        after = applied(read(file)[2], before)
    assert after == {name: values.tobytes() for name, values in weights(1, 2).items()}


def test_indices_of_a_tensor_over_two_to_the_31_elements_are_wide():
    small = delta.Tensor("w", "BF16", (2**31 - 1,), 2 * (2**31 - 1), 0, 0)
    large = delta.Tensor("w", "BF16", (2**31,), 2 * 2**31, 0, 0)
    assert (small.index_width, large.index_width) == (4, 8)
