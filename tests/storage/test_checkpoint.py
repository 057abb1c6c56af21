"""Scanning a checkpoint directory: every file, every byte, and one clear error for what is none."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from support.streams import model, safetensors_bytes, write_tree

from patchswarm.protocol.elements import Kind
from patchswarm.protocol.layout import Role, check_layout, decode_layout
from patchswarm.storage import checkpoint
from patchswarm.storage.checkpoint import scan
from patchswarm.storage.errors import NotACheckpointError, SourceChangedError
from patchswarm.storage.safetensors import element_kind, file_regions, header_length


def regions(data):
    length = header_length(data[:8], len(data), "f")
    return file_regions(data[8 : 8 + length], len(data), "f")


def header(entries, tail=b""):
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + tail


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# regions of one file


def test_offsets_agree_with_the_library(tmp_path):
    arrays = {
        "b": np.arange(12, dtype=np.float32).reshape(3, 4),
        "a": np.arange(5, dtype=np.int8),
        "empty": np.zeros((0, 7), np.float16),
        "scalar": np.array(3, np.int64),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    with scan(tmp_path) as source:
        found = {}
        for placed in source.layout.placed():
            if placed.region.role is Role.TENSOR:
                data = source.read(placed.file, placed.offset, placed.region.size)
                found[placed.region.name] = (placed.region.shape, data.tobytes())
    assert found == {name: (array.shape, array.tobytes()) for name, array in arrays.items()}


def test_a_header_its_tensors_and_the_gaps_between_them_tile_the_file():
    data = header(
        {"late": entry("U8", [3], 10, 13), "early": entry("BF16", [2], 2, 6), "none": entry("F32", [0], 6, 6)},
        b"." * 20,
    )
    found = regions(data)
    assert [(r.role, r.name, r.size) for r in found[1:]] == [
        (Role.GAP, "", 2),
        (Role.TENSOR, "early", 4),
        (Role.TENSOR, "none", 0),
        (Role.GAP, "", 4),
        (Role.TENSOR, "late", 3),
        (Role.GAP, "", 7),
    ]
    assert found[0].role is Role.HEADER
    assert sum(region.size for region in found) == len(data)


def test_the_kind_follows_the_dtype():
    shapes = {"BF16": 2, "F8_E4M3": 1, "F32": 4, "I64": 8, "BOOL": 1, "C64": 8, "F8_E8M0": 1, "U16": 2}
    at = 0
    entries = {}
    for dtype, width in shapes.items():
        entries[dtype] = entry(dtype, [3], at, at + 3 * width)
        at += 3 * width
    found = {r.name: r.kind for r in regions(header(entries, bytes(at)))[1:]}
    assert found == {
        "BF16": Kind.BF16,
        "F8_E4M3": Kind.F8_E4M3,
        "F32": Kind.F32,
        "I64": Kind.I64,
        "BOOL": Kind.BOOL,
        "C64": Kind.F32,
        "F8_E8M0": Kind.F8_E8M0,
        "U16": Kind.U16,
    }


@pytest.mark.parametrize(
    ("name", "dtype", "kind"),
    [
        ("model.layers.0.mlp.gate_proj.qweight", "I32", Kind.I4),
        ("model.layers.0.mlp.gate_proj.qzeros", "I32", Kind.I4),
        ("model.layers.0.mlp.gate_proj.scales", "F16", Kind.F16),
        ("model.layers.0.mlp.gate_proj.g_idx", "I32", Kind.I32),
        ("model.layers.0.mlp.gate_proj.weight_packed", "I32", Kind.I4),
        ("model.layers.0.mlp.gate_proj.weight_packed", "U8", Kind.F4),
        ("block.3.mlp.mlp1_weight_blocks", "U8", Kind.F4),
        ("model.layers.3.mlp.experts.gate_up_proj_blocks", "U8", Kind.F4),
        ("model.layers.3.mlp.experts.gate_up_proj_scales", "U8", Kind.U8),
        ("w", "SOMETHING_NEW", Kind.BYTES),
        ("w", "F6_E3M2", Kind.BYTES),
    ],
)
def test_packed_weights_are_told_by_name(name, dtype, kind):
    assert element_kind(name, dtype, 24) is kind


def test_a_tensor_that_is_no_whole_number_of_elements_is_bytes():
    assert element_kind("w", "BF16", 3) is Kind.BYTES


def test_a_dtype_from_the_future_is_carried_as_bytes():
    found = regions(header({"w": entry("F7_NEW", [8], 0, 7)}, b"1234567"))
    assert (found[1].kind, found[1].dtype, found[1].size) == (Kind.BYTES, "F7_NEW", 7)


TWICE = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
MALFORMED = {
    "shorter than its length field": b"\x01\0\0",
    "a header past the end": (100).to_bytes(8, "little") + b"{}",
    "a huge header": (2**40).to_bytes(8, "little") + b"{}",
    "no JSON": (4).to_bytes(8, "little") + b"{{{{",
    "no object": (2).to_bytes(8, "little") + b"[]",
    "no UTF-8": (2).to_bytes(8, "little") + b"\xff\xfe",
    "deep nesting": (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "a tensor past the end": header({"w": entry("U8", [9], 0, 9)}, b"12345678"),
    "overlapping tensors": header({"a": entry("U8", [5], 0, 5), "b": entry("U8", [5], 4, 9)}, bytes(9)),
    "an entry that is a number": header({"a": 3}),
    "no dtype": header({"a": {"shape": [], "data_offsets": [0, 0]}}),
    "offsets of three": header({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0, 0]}}),
    "backward offsets": header({"a": entry("U8", [1], 1, 0)}, b"1"),
    "negative offsets": header({"a": entry("U8", [1], -1, 0)}, b"1"),
    "a negative dimension": header({"a": entry("U8", [-1], 0, 1)}, b"1"),
    "a fractional dimension": header({"a": entry("U8", [1.0], 0, 1)}, b"1"),
    "a boolean dimension": header({"a": entry("U8", [True], 0, 1)}, b"1"),
    "a size that is not its shape's": header({"a": entry("F32", [2], 0, 4)}, bytes(4)),
    "a size that overflows": header({"a": entry("F32", [2**62, 2**62], 0, 0)}),
    "a dtype that is a list": header({"a": entry([], [], 0, 0)}),
    "a tensor named twice": len(TWICE).to_bytes(8, "little") + TWICE,
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_file_is_one_clear_error_that_names_it(tmp_path, what):
    write_tree(tmp_path, {"config.json": b"{}", "shard-2.safetensors": MALFORMED[what]})
    with pytest.raises(NotACheckpointError, match=r"shard-2\.safetensors is (truncated|malformed|not a safetensors)"):
        scan(tmp_path)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data):
    try:
        found = regions(data)
    except NotACheckpointError:
        return
    assert sum(region.size for region in found) == len(data)


@given(st.data())
def test_damage_to_a_real_header_raises_nothing_else(data):
    good = bytearray(safetensors_bytes({"a": ("BF16", (4,), bytes(8)), "b": ("U8", (3,), b"123")}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    try:
        found = regions(bytes(good[:cut]))
    except NotACheckpointError:
        return
    assert sum(region.size for region in found) == cut


# the directory


def test_every_file_of_the_directory_is_in_the_layout(tmp_path):
    tree = {**model(1), "empty": b"", "deep/er/file.bin": b"x"}
    with scan(write_tree(tmp_path, tree)) as source:
        assert {file.path: file.size for file in source.layout.files} == {
            path: len(data) for path, data in tree.items()
        }
        for number, file in enumerate(source.layout.files):
            assert source.read(number, 0, file.size).tobytes() == tree[file.path]
        assert decode_layout(source.layout.encode()) == source.layout
        check_layout(source.layout)


def test_symlinked_files_and_folders_are_followed_as_in_the_hubs_cache(tmp_path):
    blobs = write_tree(tmp_path / "blobs", {"abc": b"weights", "sub/def": b"more"})
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "pytorch.bin").symlink_to("../blobs/abc")
    (snapshot / "folder").symlink_to(blobs / "sub")
    (snapshot / "loop").symlink_to(snapshot)
    with scan(snapshot) as source:
        assert [file.path for file in source.layout.files] == ["folder/def", "pytorch.bin"]
        assert source.read(1, 0, 7).tobytes() == b"weights"


@pytest.mark.parametrize("target", ["../blobs/missing", "self"])
def test_a_symlink_to_nothing_is_named(tmp_path, target):
    (tmp_path / "self").symlink_to(target)
    with pytest.raises(NotACheckpointError, match="self is a symlink to nothing"):
        scan(tmp_path)


def test_a_missing_or_empty_directory_is_said(tmp_path):
    with pytest.raises(NotACheckpointError, match="does not exist"):
        scan(tmp_path / "nothing")
    with pytest.raises(NotACheckpointError, match="is empty"):
        scan(tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NotACheckpointError, match="not a directory"):
        scan(tmp_path / "file")


def test_a_name_that_no_host_may_write_is_said(tmp_path):
    (tmp_path / "a:b").write_bytes(b"x")
    with pytest.raises(NotACheckpointError, match="a:b"):
        scan(tmp_path)
    (tmp_path / "a:b").unlink()
    (tmp_path / os.fsdecode(b"bad\xff")).write_bytes(b"x")
    with pytest.raises(NotACheckpointError, match="not valid Unicode"):
        scan(tmp_path)


def test_a_slots_own_state_is_no_part_of_its_checkpoint(tmp_path):
    with scan(write_tree(tmp_path, {"a": b"1", ".patchswarm-slot": b"2", ".hidden": b"3"})) as source:
        assert [file.path for file in source.layout.files] == [".hidden", "a"]


def test_sockets_and_pipes_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with scan(write_tree(tmp_path, {"a": b"1"})) as source:
        assert [file.path for file in source.layout.files] == ["a"]


# change


def change_by(how, path):
    match how:
        case "truncated":
            os.truncate(path, 10)
        case "written":
            data = path.read_bytes()
            path.write_bytes(data[:-1] + b"!")
            os.utime(path, ns=(1, 1))
        case "replaced":
            data = path.read_bytes()
            stamp = path.stat()
            path.with_name("new").write_bytes(data)
            path.with_name("new").replace(path)
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        case "removed":
            path.unlink()
        case "joined":
            path.with_name("another").write_bytes(b"x")


@pytest.mark.parametrize("how", ["truncated", "written", "replaced", "removed", "joined"])
def test_a_change_after_the_scan_is_found(tmp_path, how):
    write_tree(tmp_path, {"a": b"1" * 100, "b": b"2" * 100})
    with scan(tmp_path) as source:
        source.check_unchanged()
        change_by(how, tmp_path / "a")
        with pytest.raises(SourceChangedError, match="finished"):
            source.check_unchanged()


@pytest.mark.parametrize("how", ["truncated", "written", "replaced", "removed"])
def test_a_change_before_the_first_read_is_found_by_the_read(tmp_path, how):
    write_tree(tmp_path, {"a": b"1" * 100})
    with scan(tmp_path) as source:
        change_by(how, tmp_path / "a")
        with pytest.raises(SourceChangedError):
            source.read(0, 0, 100)


def test_a_file_truncated_under_an_open_read_is_a_short_read_and_no_fault(tmp_path):
    write_tree(tmp_path, {"a": b"1" * 100})
    with scan(tmp_path) as source:
        assert source.read(0, 0, 50).tobytes() == b"1" * 50
        os.truncate(tmp_path / "a", 60)
        with pytest.raises(SourceChangedError, match="ends at byte 60"):
            source.read(0, 50, 50)


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_few_descriptors_are_open_whatever_the_number_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "OPEN_FILES", 4)
    count = 40
    write_tree(tmp_path, {f"{number:03}": b"%d" % number for number in range(count)})
    before = open_files()
    with scan(tmp_path) as source:
        wrong = []

        def read_all(seed):
            for number in np.random.default_rng(seed).permutation(count):
                expected = b"%d" % number
                if source.read(int(number), 0, len(expected)).tobytes() != expected:
                    wrong.append(number)

        threads = [threading.Thread(target=read_all, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert open_files() - before <= 4
    assert open_files() == before
