"""Layouts: they tile files exactly, name only what may be written, and match across versions by name."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.structs import instances

from patchswarm.protocol.elements import Kind, width_bytes
from patchswarm.protocol.errors import LayoutError
from patchswarm.protocol.ids import digest
from patchswarm.protocol.layout import (
    BLOCK_BYTES,
    File,
    Layout,
    Placed,
    Region,
    Role,
    check_layout,
    check_path,
    decode_layout,
    match_regions,
)
from patchswarm.protocol.packing import pack


def blob(size):
    return Region(Role.BLOB, Kind.BYTES, size)


def header(size):
    return Region(Role.HEADER, Kind.BYTES, size)


def tensor(name, size, dtype="BF16", kind=Kind.BF16, shape=None):
    return Region(Role.TENSOR, kind, size, name, dtype, (size // 2,) if shape is None else shape)


def gap(size):
    return Region(Role.GAP, Kind.BYTES, size)


MODEL = Layout(
    (
        File("config.json", (blob(100),)),
        File("empty", ()),
        File("model.safetensors", (header(80), tensor("a", 8), gap(3), tensor("b", 4))),
    )
)


def test_regions_are_numbered_and_placed_through_all_files():
    placed = [(each.number, each.file, each.offset, each.region.size) for each in MODEL.placed()]
    assert placed == [(0, 0, 0, 100), (1, 2, 0, 80), (2, 2, 80, 8), (3, 2, 88, 3), (4, 2, 91, 4)]
    assert next(iter(MODEL.placed())) == Placed(0, 0, 0, blob(100))
    assert MODEL.size == 195
    assert [file.size for file in MODEL.files] == [100, 0, 95]


def test_blocks_cut_every_file_by_itself():
    layout = Layout((File("a", (blob(BLOCK_BYTES),)), File("b", ()), File("c", (blob(BLOCK_BYTES), blob(1)))))
    assert [*layout.blocks()] == [(0, 0, BLOCK_BYTES), (2, 0, BLOCK_BYTES), (2, BLOCK_BYTES, 1)]


def test_the_root_is_the_digest_of_the_encoding():
    assert MODEL.root() == digest(MODEL.encode())
    assert decode_layout(MODEL.encode()) == MODEL


def sound(layout):
    try:
        check_layout(layout)
    except LayoutError:
        return False
    return True


regions = st.builds(
    lambda region, count: Region(
        region.role, region.kind, count * width_bytes(region.kind), region.name, region.dtype, region.shape
    ),
    instances(Region),
    st.integers(0, 2**21),
)
names = st.text(st.sampled_from("abc.-_é "), min_size=1, max_size=4)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
layouts = st.dictionaries(paths, st.lists(regions, max_size=4), max_size=6).map(
    lambda files: Layout(tuple(File(path, tuple(files[path])) for path in sorted(files)))
)


@given(layouts)
def test_a_sound_layout_survives_its_encoding(layout):
    assume(sound(layout))
    again = decode_layout(layout.encode())
    assert again == layout
    assert again.root() == layout.root()
    assert match_regions(layout, again) == [placed.number for placed in layout.placed()]


@given(layouts, st.data())
def test_an_encoding_with_any_one_byte_changed_is_sound_or_a_layout_error(layout, data):
    encoded = bytearray(layout.encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        changed = decode_layout(bytes(encoded))
    except LayoutError:
        return
    assert sound(changed)


@given(layouts)
def test_regions_and_blocks_tile_every_file(layout):
    assume(sound(layout))
    placed = [(each.file, each.offset, each.region.size) for each in layout.placed()]
    for pieces in (placed, [*layout.blocks()]):
        ends = [0] * len(layout.files)
        for file, offset, size in pieces:
            assert offset == ends[file]
            ends[file] += size
        assert ends == [file.size for file in layout.files]


@pytest.mark.parametrize(
    "path",
    ["model.safetensors", "1_Pooling/config.json", "a/b/c", "weights é", "..a", "a..", "日本", "x" * 255, "console"],
)
def test_an_ordinary_path_passes(path):
    check_path(path)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "part that is not allowed: ''"),
        ("/etc/passwd", "part that is not allowed: ''"),
        ("a//b", "part that is not allowed: ''"),
        ("a/", "part that is not allowed: ''"),
        (".", "part that is not allowed: '.'"),
        ("a/../b", "part that is not allowed: '..'"),
        ("..", "part that is not allowed: '..'"),
        (".patchswarm", "part that is not allowed"),
        ("a/.patchswarm-state", "part that is not allowed"),
        ("a\0b", "character that is not allowed"),
        ("a\nb", "character that is not allowed"),
        ("a\x7fb", "character that is not allowed"),
        ("a\\b", "character that is not allowed"),
        ("C:", "character that is not allowed"),
        ("a*", "character that is not allowed"),
        ("con", "reserved name"),
        ("x/NUL.txt", "reserved name"),
        ("lpt1.safetensors", "reserved name"),
        ("x" * 256, "part of over 255 bytes"),
        ("é" * 128, "part of over 255 bytes"),
        ("/".join(["x" * 200] * 6), "path of over 1024 bytes"),
        ("/".join("a" * 65), "path of over 64 parts"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_a_path_that_could_escape_or_confuse_is_refused(path, why):
    with pytest.raises(LayoutError, match=why):
        check_path(path)


@given(st.text(max_size=40))
def test_an_allowed_path_stays_inside_its_directory(path):
    try:
        check_path(path)
    except LayoutError:
        return
    parts = path.split("/")
    assert all(parts)
    assert not {".", ".."}.intersection(parts)
    assert "\\" not in path
    assert "\0" not in path


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ((File("b", ()), File("a", ())), "sorted by path, each once"),
        ((File("a", ()), File("a", ())), "sorted by path, each once"),
        ((File("a", ()), File("a/b", ())), "'a' is both a file and a folder"),
        ((File("a", ()), File("a-", ()), File("a/b/c", ())), "'a' is both a file and a folder"),
        ((File("a/b", ()), File("a/b/c/d", ())), "'a/b' is both a file and a folder"),
        ((File("../x", ()),), "part that is not allowed"),
        ((File("a", (tensor("t", 3),)),), "region 't' of 'a' has 3 bytes, not a whole number of BF16 elements"),
        ((File("a", (blob(2**62), blob(2**62))),), "file 'a' is too large"),
    ],
)
def test_an_unsound_layout_is_refused(files, why):
    with pytest.raises(LayoutError, match=why):
        decode_layout(Layout(files).encode())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not decode"),
        (b"\x91\xc0", "does not decode"),
        (pack([[["a", [[9, 0, 0, "", "", []]]]]]), "Invalid enum value 9"),
        (pack([[["a", [[0, 99, 0, "", "", []]]]]]), "Invalid enum value 99"),
        (pack([[["a", [[0, 0, -1, "", "", []]]]]]), "`int` >= 0"),
    ],
)
def test_bytes_that_are_no_layout_are_a_layout_error(data, why):
    with pytest.raises(LayoutError, match=why):
        decode_layout(data)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_raise_only_layout_errors(data):
    try:
        decode_layout(data)
    except LayoutError:
        return


def test_tensors_match_by_name_wherever_they_stand():
    resharded = Layout(
        (
            File("config.json", (blob(100),)),
            File("model-1.safetensors", (header(40), tensor("b", 4))),
            File("model-2.safetensors", (header(40), tensor("a", 8))),
        )
    )
    assert match_regions(MODEL, resharded) == [0, -1, 4, -1, 2]


def test_a_reshaped_tensor_still_matches():
    reshaped = Layout((File("m", (tensor("a", 8, shape=(2, 2)),)),))
    assert match_regions(MODEL, reshaped) == [2]


def test_a_tensor_of_another_name_dtype_or_size_starts_from_nothing():
    for other in (tensor("c", 8), tensor("a", 8, "F16", Kind.F16), tensor("a", 6)):
        assert match_regions(MODEL, Layout((File("m", (other,)),))) == [-1]


def test_side_files_match_by_path_and_size():
    new = Layout((File("config.json", (blob(101),)), File("other.json", (blob(100),))))
    assert match_regions(MODEL, new) == [-1, -1]


def test_headers_and_gaps_match_by_their_place_among_themselves():
    new = Layout((File("model.safetensors", (header(80), tensor("new", 2), tensor("a", 8), gap(3))),))
    assert match_regions(MODEL, new) == [1, -1, 2, 3]


def test_a_name_that_two_files_hold_matches_its_first_place():
    old = Layout((File("a", (tensor("t", 4),)), File("b", (tensor("t", 4),))))
    new = Layout((File("c", (tensor("t", 4),)),))
    assert match_regions(old, new) == [0]


@given(layouts, layouts)
def test_matched_regions_have_one_kind_and_size(old, new):
    before, after = [*old.placed()], [*new.placed()]
    matches = match_regions(old, new)
    assert len(matches) == len(after)
    for placed, match in zip(after, matches, strict=True):
        if match >= 0:
            source = before[match].region
            assert (source.role, source.kind, source.size) == (
                placed.region.role,
                placed.region.kind,
                placed.region.size,
            )
