"""One tensor's change, in both encodings: any bytes round-trip, and nothing malformed is applied."""

import itertools
import json

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.slime_fleet import CHECKSUMS

from patchswarm.daemon.local.slime import format as slime
from patchswarm.daemon.local.slime.format import DeltaError, Packer, Unpacker, new_hasher

ENCODINGS = ["xor", "overwrite"]


def cut(size, cuts):
    """(offset, size) of pieces that end where `cuts` say."""
    edges = sorted({0, size, *(each % (size + 1) for each in cuts)})
    return [(first, last - first) for first, last in itertools.pairwise(edges)]


def packed(old, new, encoding, cuts=()):
    packer = Packer(encoding, len(new))
    for offset, size in cut(len(new), cuts):
        packer.add(old[offset : offset + size], new[offset : offset + size], offset)
    return np.frombuffer(packer.finish(), np.uint8), packer.changed


def unpacked(old, frame, encoding, cuts=()):
    new = old.copy()
    unpacker = Unpacker("x", frame, len(old), encoding)
    for offset, size in cut(len(old), cuts):
        unpacker.apply(new[offset : offset + size], offset)
    unpacker.finish()
    return new


@given(
    st.sampled_from(ENCODINGS),
    st.binary(max_size=300),
    st.dictionaries(st.integers(0, 299), st.integers(0, 255)),
    st.lists(st.integers(0, 300), max_size=5),
    st.lists(st.integers(0, 300), max_size=5),
)
def test_a_change_round_trips_however_it_is_cut(encoding, before, changes, cuts, other_cuts):
    old = np.frombuffer(before, np.uint8)
    new = old.copy()
    for place, value in changes.items():
        if place < len(new):
            new[place] = value
    frame, changed = packed(old, new, encoding, cuts)
    assert changed == np.count_nonzero(old != new)
    np.testing.assert_array_equal(unpacked(old, frame, encoding, other_cuts), new)


@given(st.sampled_from(ENCODINGS), st.binary(max_size=200), st.integers(1, 100))
def test_malformed_changes_raise_our_error_and_nothing_else(encoding, frame, size):
    with pytest.raises(DeltaError, match="'x'"):
        unpacked(np.zeros(size, np.uint8), np.frombuffer(frame, np.uint8), encoding)


@given(st.sampled_from(ENCODINGS), st.binary(max_size=60), st.integers(0, 20))
def test_well_packed_nonsense_is_applied_within_the_tensor_or_not_at_all(encoding, plain, size):
    frame = np.frombuffer(zstandard.ZstdCompressor().compress(plain), np.uint8)
    try:
        new = unpacked(np.zeros(size, np.uint8), frame, encoding)
    except DeltaError:
        return
    assert len(new) == size
    assert encoding == "overwrite" or plain == new.tobytes()


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ((1).to_bytes(4, "little") + (10).to_bytes(4, "little") + b"x", "past its end"),
        ((2).to_bytes(4, "little") + np.array([5, 5], "<u4").tobytes() + b"xy", "do not rise"),
        ((2).to_bytes(4, "little") + np.array([5, 3], "<u4").tobytes() + b"xy", "do not rise"),
        ((11).to_bytes(4, "little"), "11 changed bytes of 10"),
        ((2).to_bytes(4, "little") + np.array([1, 2], "<u4").tobytes() + b"x", "1 bytes early"),
        ((1).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"xy", "longer than the tensor"),
        (b"", "4 bytes early"),
    ],
)
def test_wrong_positions_are_named(plain, says):
    frame = np.frombuffer(zstandard.ZstdCompressor().compress(plain), np.uint8)
    with pytest.raises(DeltaError, match=says):
        unpacked(np.zeros(10, np.uint8), frame, "overwrite")


def test_positions_that_would_wrap_are_refused():
    with pytest.raises(DeltaError, match="wrap at 4 GiB; have the trainer use xor"):
        Unpacker("x", np.empty(0, np.uint8), 2**32 + 1, "overwrite")


@pytest.mark.parametrize("name", sorted(CHECKSUMS))
def test_checksums_are_those_of_the_format(name):
    data = np.random.default_rng(1).integers(0, 256, 10_000, dtype=np.uint8)
    hasher = new_hasher(name)
    for start in range(0, len(data), 999):
        hasher.update(data[start : start + 999])
    assert hasher.hexdigest() == CHECKSUMS[name](data.tobytes())


INDEX = {
    "metadata": {
        "version": "000007",
        "base_version": "000006",
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "adler32",
    },
    "weight_map": {"a": "model-00000-of-00001.safetensors"},
}


def test_an_index_is_read(tmp_path):
    (tmp_path / slime.INDEX_NAME).write_text(json.dumps(INDEX))
    index = slime.read_index(tmp_path)
    assert (index.version, index.base_version, index.encoding, index.checksum) == (7, 6, "xor", "adler32")
    again = tmp_path / "again"
    again.mkdir()
    slime.write_index(again, index, {"more": "x"})
    assert json.loads((again / slime.INDEX_NAME).read_text())["metadata"] == {**INDEX["metadata"], "more": "x"}


@pytest.mark.parametrize(
    "change",
    [
        {"delta_encoding": "rle"},
        {"checksum_format": "md5"},
        {"compression_format": "lz4"},
        {"version": "seven"},
        {"version": 7},
        {"base_version": None},
        {"base_version": "-1"},
        {"version": "9" * 19},
    ],
)
def test_an_index_of_another_kind_is_refused(tmp_path, change):
    document = {**INDEX, "metadata": {**INDEX["metadata"], **change}}
    (tmp_path / slime.INDEX_NAME).write_text(json.dumps(document))
    with pytest.raises(DeltaError, match=slime.INDEX_NAME):
        slime.read_index(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"metadata": {}}', '{"metadata": 3, "weight_map": {}}', "null", "\xff"]
)
def test_what_is_no_index_is_named(tmp_path, text):
    (tmp_path / slime.INDEX_NAME).write_text(text, encoding="latin-1")
    with pytest.raises(DeltaError, match=slime.INDEX_NAME):
        slime.read_index(tmp_path)
    with pytest.raises(DeltaError, match="is no delta"):
        slime.read_index(tmp_path / "nowhere")


def test_names_and_numbers():
    assert slime.folder_name(7) == "weight_v000007"
    assert slime.folder_name(12345678) == "weight_v12345678"
    assert [slime.number_of(name) for name in ("weight_v000007", "weight_v12345678")] == [7, 12345678]
    for name in ("weight_v", "weight_v7.tmp", "weight_v-1", "step 7", "xweight_v000007", "weight_v000007\n"):
        assert slime.number_of(name) is None
