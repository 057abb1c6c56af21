"""Whatever a checkpoint may be and become, every node gets the trainer's bytes."""

import os

import numpy as np
import pytest
from safetensors import safe_open
from support.checkpoints import BITS, files_of, model, stepped, tensor, weights, write
from trainer import Tensor, write_safetensors

pytestmark = pytest.mark.timeout(300)  # a shared machine may be ten times slower than an idle one


@pytest.fixture
def random():
    return np.random.default_rng(7)


def test_a_first_version_and_its_steps_are_identical_everywhere(fleet, stream, tmp_path, random):
    tensors = model()
    first = fleet.publish(write(tmp_path / "1", tensors), stream, "--label", "step 100")
    assert first["version"] == 1
    assert first["changed_fraction"] == 1
    for number in (2, 3, 4):
        tensors = stepped(tensors, random)
        result = fleet.publish(write(tmp_path / str(number), tensors), stream, "--label", f"step {number}00")
        assert result["version"] == number
        assert 0 < result["changed_fraction"] < 0.03
        assert result["patch_bytes"] < first["patch_bytes"] / 10
        assert result["full_bytes"] == sum(path.stat().st_size for path in (tmp_path / str(number)).iterdir())
    for node in fleet.running():
        assert node.client.version(stream).label == "step 400"


def test_every_dtype_that_safetensors_knows(fleet, stream, tmp_path, random):
    tensors = {f"{dtype}.weight": tensor(dtype, (24, 16), random) for dtype in BITS}
    first = write(tmp_path / "1", tensors)
    with safe_open(str(first / "model.safetensors"), "np") as opened:
        assert {opened.get_slice(name).get_dtype() for name in tensors} == {*BITS}, "the library reads them all"
    fleet.publish(first, stream)
    fleet.publish(write(tmp_path / "2", stepped(tensors, random, 0.05)), stream)
    fleet.publish(write(tmp_path / "3", {name: tensor(name[:-7], (24, 16), random) for name in tensors}), stream)


def test_empty_and_0_d_tensors(fleet, stream, tmp_path, random):
    def tensors():
        return {
            "scalar.bf16": weights((), random),
            "scalar.i64": tensor("I64", (), random),
            "none": tensor("F32", (0,), random),
            "none.wide": tensor("BF16", (4, 0, 7), random),
            "one": tensor("F16", (1, 1, 1), random),
        }

    for number in range(1, 4):
        fleet.publish(write(tmp_path / str(number), tensors()), stream)


def test_a_safetensors_file_without_tensors(fleet, stream, tmp_path):
    fleet.publish(write(tmp_path / "1", {}), stream)
    fleet.publish(write(tmp_path / "2", {}, side={"new.txt": b"new"}), stream)


def test_tensors_added_removed_reshaped_and_renamed(fleet, stream, tmp_path, random):
    tensors = model()
    first = fleet.publish(write(tmp_path / "1", tensors), stream)

    tensors = stepped(tensors, random) | {"lora.a": weights((64, 256), random)}
    added = fleet.publish(write(tmp_path / "2", tensors), stream)
    assert added["patch_bytes"] < first["patch_bytes"] / 5, "only the new tensor is sent whole"

    tensors = stepped(tensors, random)
    del tensors["layers.0.up.weight"]
    before = tensors["layers.1.up.weight"]
    tensors["layers.1.up.weight"] = Tensor(before.dtype, before.shape[::-1], before.data)
    removed = fleet.publish(write(tmp_path / "3", tensors), stream)
    assert removed["patch_bytes"] < first["patch_bytes"] / 10

    tensors = stepped(tensors, random)
    tensors["layers.1.renamed"] = tensors.pop("layers.1.up.weight")
    fleet.publish(write(tmp_path / "4", tensors), stream)

    tensors["layers.1.renamed"] = weights((3, 5), random)
    fleet.publish(write(tmp_path / "5", tensors), stream)


def test_tensors_moved_to_other_shards(fleet, stream, tmp_path, random):
    tensors = model()
    first = fleet.publish(write(tmp_path / "1", tensors), stream)
    for number, shards in enumerate((3, 5, 2, 1), start=2):
        tensors = stepped(tensors, random)
        moved = fleet.publish(write(tmp_path / str(number), tensors, shards=shards), stream)
        assert moved["patch_bytes"] < first["patch_bytes"] / 10, "a tensor is found again in whatever file it is"


def test_an_unchanged_version(fleet, stream, tmp_path):
    directory = write(tmp_path / "1", model())
    fleet.publish(directory, stream)
    again = fleet.publish(directory, stream, "--label", "again")
    assert again["version"] == 2
    assert again["changed_elements"] == 0
    assert again["patch_bytes"] < 1000
    assert all(node.client.version(stream).label == "again" for node in fleet.running())


def test_old_bytes_published_again_are_a_new_version(fleet, stream, tmp_path, random):
    tensors = model()
    first = write(tmp_path / "1", tensors)
    fleet.publish(first, stream)
    fleet.publish(write(tmp_path / "2", stepped(tensors, random)), stream)
    assert fleet.publish(first, stream)["version"] == 3


def test_subfolders_symlinks_and_side_files_of_every_kind(fleet, stream, tmp_path, random):
    """As in the hub's cache: the snapshot's files are links to blobs that lie elsewhere."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    tensors = model(layers=1)
    for number in (1, 2):
        tensors = stepped(tensors, random)
        write_safetensors(blobs / f"weights{number}", tensors, {})
        (blobs / f"tokenizer{number}").write_bytes(b"tokens " * 1000 * number)
        snapshot = tmp_path / "snapshots" / str(number)
        (snapshot / "1_Pooling" / "deep").mkdir(parents=True)
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/weights{number}")
        (snapshot / "1_Pooling" / "deep" / "tokenizer.json").symlink_to(blobs / f"tokenizer{number}")
        (snapshot / "empty").touch()
        (snapshot / "naïve name with blanks.txt").write_text("x")
        (snapshot / "not.weights.bin").write_bytes(random.bytes(70_000))
        (snapshot / f"only-in-{number}").write_text("here")
        result = fleet.publish(snapshot, stream)
        assert result["version"] == number
    with fleet.nodes["west"].client.lease(stream) as lease:
        assert not any(path.is_symlink() for path in lease.path.rglob("*"))
        assert (lease.path / "1_Pooling" / "deep" / "tokenizer.json").stat().st_size == 14_000
        assert not (lease.path / "only-in-1").exists()


def test_a_file_that_grows_shrinks_and_goes(fleet, stream, tmp_path, random):
    blob = random.bytes(5 << 20)
    for number, side in enumerate(
        ({"a.bin": blob}, {"a.bin": blob + b"more"}, {"a.bin": blob[: 3 << 20]}, {"a.bin": b""}, {}), start=1
    ):
        fleet.publish(write(tmp_path / str(number), model(layers=1), side=side), stream)


def test_a_trainer_chooses_its_own_rising_numbers(fleet, stream, tmp_path, random):
    tensors = model(layers=1)
    assert fleet.publish(write(tmp_path / "1", tensors), stream, "--version", "100")["version"] == 100
    assert fleet.publish(write(tmp_path / "2", stepped(tensors, random)), stream, "--version", "250")["version"] == 250
    assert fleet.publish(write(tmp_path / "3", tensors), stream)["version"] == 251


def test_two_streams_do_not_mix(fleet, stream, tmp_path, random):
    one, other = model(seed=1, layers=1), model(seed=2, layers=1)
    for number in (1, 2):
        fleet.publish(write(tmp_path / f"one-{number}", one), f"{stream}-1")
        fleet.publish(write(tmp_path / f"other-{number}", other), f"{stream}-2")
        one, other = stepped(one, random), stepped(other, random)


def test_the_trainer_may_delete_its_checkpoint_after_publishing(fleet, stream, tmp_path, random):
    tensors = model(layers=1)
    for number in (1, 2, 3):
        directory = write(tmp_path / str(number), tensors)
        fleet.publish(directory, stream)
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        tensors = stepped(tensors, random)


def test_a_slot_holds_ordinary_files_that_the_owner_can_read(fleet, stream, tmp_path):
    directory = write(tmp_path / "1", model(layers=1))
    fleet.publish(directory, stream)
    with fleet.nodes["east"].client.lease(stream) as lease:
        for name in files_of(directory):
            assert os.access(lease.path / name, os.R_OK)
            assert (lease.path / name).stat().st_mode & 0o111 == 0


def test_publish_says_what_changed_and_what_it_cost(fleet, stream, tmp_path, random):
    tensors = model(layers=1)
    fleet.publish(write(tmp_path / "1", tensors), stream)
    directory = write(tmp_path / "2", stepped(tensors, random))
    said = fleet.head.command("publish", directory, "--stream", stream, "--label", "step 2").stdout.splitlines()
    assert said[0] == f"published {stream} version 2 (step 2)"
    assert [line.split()[0] for line in said[1:]] == ["changed", "patch", "seconds"]
    assert "%" in said[1]
    assert "x smaller" in said[2]
    assert "encode" in said[3]
    quiet = fleet.head.command("publish", directory, "--stream", stream, "--quiet")
    assert quiet.stdout == "3\n"
    assert quiet.stderr == ""
