"""Two checkpoint directories compared: sums by dtype, group and exponent, the patch, and what cannot be compared."""

import json
import tracemalloc

import numpy as np
import pytest
from support.checkpoints import BITS, model, stepped, tensor, weights, write
from trainer import Tensor

from patchswarm.protocol.codec.chunk import CodecOptions, warm_up
from patchswarm.protocol.elements import Kind
from patchswarm.storage import checkpoint
from patchswarm.storage.errors import NotComparableError, SourceChangedError
from patchswarm.storage.stillness import CALL_BYTES, TILE_BYTES, compare_checkpoints, dtype_name, group_of


def compare(old, new, **options):
    with checkpoint.scan(old) as before, checkpoint.scan(new) as after:
        return compare_checkpoints(before, after, codec=CodecOptions(), **options)


@pytest.fixture
def two(tmp_path):
    """Two steps of a model, and their tensors."""
    before = model(1)
    after = stepped(before, np.random.default_rng(2))
    return write(tmp_path / "1", before), write(tmp_path / "2", after), before, after


def changed_in(before, after, names):
    pairs = [(before[name].data.view(np.uint16), after[name].data.view(np.uint16)) for name in names]
    return sum(int(np.count_nonzero(a != b)) for a, b in pairs), sum(a.size for a, _ in pairs)


def test_sums_are_those_of_the_tensors(two):
    old, new, before, after = two
    found = compare(old, new)
    changed, elements = changed_in(before, after, before)
    assert (found.changed, found.elements) == (changed, elements)
    assert found.changed_fraction == changed / elements
    (dtype,) = found.dtypes
    assert (dtype.name, dtype.tensors, dtype.elements, dtype.changed) == ("BF16", len(before), elements, changed)
    assert sum(part.elements for part in found.exponents) == elements
    assert sum(part.changed for part in found.exponents) == changed
    assert sum(part.changed for part in found.distances) == changed


def test_groups_are_layers_taken_together(two):
    old, new, before, after = two
    found = {part.name: part for part in compare(old, new).groups}
    assert set(found) == {"embed.weight", "layers.*.up.weight", "layers.*.down.weight", "layers.*.norm.weight"}
    for part in ("up", "down", "norm"):
        names = [name for name in before if name.endswith(f".{part}.weight")]
        group = found[f"layers.*.{part}.weight"]
        assert (group.changed, group.elements) == changed_in(before, after, names)
        assert group.tensors == 4


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model.layers.12.mlp.experts.7.up_proj.weight", "model.layers.*.mlp.experts.*.up_proj.weight"),
        ("h.0", "h.*"),
        ("0.weight", "*.weight"),
        ("conv1.weight", "conv1.weight"),
        ("w_1", "w_1"),
    ],
)
def test_only_parts_that_are_numbers_are_layers(name, group):
    assert group_of(name) == group


def test_the_patch_is_about_what_its_bound_says(two):
    old, new, *_ = two
    found = compare(old, new)
    assert found.full_bytes == sum(path.stat().st_size for path in new.iterdir())
    assert found.bound_bytes < found.tensor_patch_bytes <= found.patch_bytes < found.full_bytes / 10
    assert found.bound_reached == found.bound_bytes / found.tensor_patch_bytes


def test_nothing_changed_is_nothing_to_send(two):
    old, *_ = two
    found = compare(old, old)
    assert (found.changed, found.patch_bytes, found.bound_bytes, found.distances) == (0, 0, 0.0, [])
    assert found.bound_reached == 1.0


def test_side_files_are_in_the_patch_and_not_in_the_shares(tmp_path):
    tensors = model(1, layers=1)
    random = np.random.default_rng(1).bytes(5000)
    old = write(tmp_path / "1", tensors, side={"tokenizer.json": b"x" * 5000})
    new = write(tmp_path / "2", tensors, side={"tokenizer.json": random, "notes.md": random})
    found = compare(old, new)
    assert (found.changed, found.tensor_patch_bytes, found.bound_reached) == (0, 0, 1.0)
    assert found.patch_bytes > 9000


def test_tensors_may_stand_in_other_files(tmp_path):
    before = model(1)
    after = stepped(before, np.random.default_rng(2))
    found = compare(write(tmp_path / "1", before, shards=3), write(tmp_path / "2", after))
    assert (found.changed, found.elements) == changed_in(before, after, before)


def test_every_dtype_is_compared(tmp_path):
    random = np.random.default_rng(3)
    before = {f"t.{dtype}": tensor(dtype, (64, 32), random) for dtype in BITS}
    before["layer.qweight"] = Tensor("I32", (8, 8), random.integers(0, 256, 256, dtype=np.uint8))
    after = stepped(before, random, fraction=0.02)
    found = compare(write(tmp_path / "1", before), write(tmp_path / "2", after))
    assert {part.name for part in found.dtypes} == {*BITS, "I32 as I4"}
    by_name = {part.name: part for part in found.dtypes}
    assert by_name["F4"].elements == by_name["BF16"].elements == 64 * 32
    assert by_name["I32 as I4"].elements == 512
    assert all(part.changed for part in found.dtypes)
    assert {part.dtype for part in found.exponents} >= {"BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F4", "C64"}


def test_a_dtype_says_how_it_is_looked_at():
    assert dtype_name("BF16", Kind.BF16) == "BF16"
    assert dtype_name("C64", Kind.F32) == "C64"
    assert dtype_name("U8", Kind.F4) == "U8 as F4"
    assert dtype_name("F6_E2M3", Kind.BYTES) == "F6_E2M3"


def test_tensors_larger_than_a_tile_are_whole_in_the_end(tmp_path):
    random = np.random.default_rng(4)
    before = {"a": weights((1000, 3001), random), "b": weights((7,), random)}
    assert before["a"].data.size > TILE_BYTES
    after = stepped(before, random)
    steps = []
    found = compare(write(tmp_path / "1", before), write(tmp_path / "2", after), progress=lambda *at: steps.append(at))
    assert (found.changed, found.elements) == changed_in(before, after, before)
    assert steps == sorted(steps)
    assert steps[-1] == (found.full_bytes, found.full_bytes)


def test_memory_does_not_grow_with_the_model(tmp_path):
    warm_up()
    random = np.random.default_rng(5)
    before = {"a": weights((12_000, 4096), random)}  # 94 MiB
    old, new = write(tmp_path / "1", before), write(tmp_path / "2", stepped(before, random, fraction=0.001))
    del before
    compare(old, old)
    tracemalloc.start()
    try:
        compare(old, new)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * (CALL_BYTES + TILE_BYTES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("embed.weight"), "tensor 'embed.weight' is in {old} and not in {new}"),
        (lambda tensors: tensors.update(more=tensors["embed.weight"]), "tensor 'more' is in {new} and not in {old}"),
        (
            lambda tensors: tensors.update({"embed.weight": Tensor("F16", (500, 256), tensors["embed.weight"].data)}),
            r"tensor 'embed.weight' is BF16 [500, 256] in {old} and F16 [500, 256] in {new}",
        ),
        (
            lambda tensors: tensors.update({"embed.weight": weights((2, 3), np.random.default_rng(1))}),
            r"tensor 'embed.weight' is BF16 [500, 256] in {old} and BF16 [2, 3] in {new}",
        ),
    ],
)
def test_other_tensors_are_one_clear_error(two, tmp_path, change, message):
    old, _, tensors, _ = two
    other = dict(tensors)
    change(other)
    new = write(tmp_path / "other", other)
    with pytest.raises(NotComparableError) as raised:
        compare(old, new)
    hint = ": give two versions of the same model in the same dtypes"
    assert str(raised.value) == message.format(old=old, new=new) + hint


def test_a_directory_without_tensors_is_one_clear_error(two, tmp_path):
    old, *_ = two
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.json").write_text(json.dumps({}))
    with pytest.raises(NotComparableError, match="notes has no tensors: give a directory with safetensors files"):
        compare(old, tmp_path / "notes")
    with pytest.raises(NotComparableError, match="notes has no tensors"):
        compare(tmp_path / "notes", old)


def test_a_checkpoint_that_is_written_meanwhile_is_an_error(two):
    old, new, *_ = two
    path = new / "model.safetensors"

    def touch(done, total):
        if done == total:
            path.write_bytes(path.read_bytes())

    with pytest.raises(SourceChangedError, match="changed while it was read"):
        compare(old, new, progress=touch)
