"""A trainer's tensors become a version: every byte, whatever they are and wherever they lie."""

import errno
import fcntl
import json

import numpy as np
import pytest
from safetensors import safe_open
from support.checkpoints import BITS, tensor
from support.local_service import STREAM
from support.trainer_head import header, tensors_of

from patchswarm.daemon.errors import BadInputError
from patchswarm.daemon.local.client import Client
from patchswarm.daemon.local.errors import BadSourceError, NotRunningError
from patchswarm.daemon.local.trainer import writing
from patchswarm.daemon.local.trainer.arrays import Raw
from patchswarm.daemon.local.trainer.errors import BadTensorError, LayoutChangedError, StagingError
from patchswarm.daemon.local.trainer.publisher import Publisher, share


def left(staging):
    """What is left in the staging folder, its lock aside."""
    return sorted(path.name for path in staging.iterdir() if path.name != ".lock") if staging.exists() else []


def weights(random, **shapes):
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_state_dict_becomes_a_version_whose_number_is_returned(publisher, head, random, staging):
    state = {**weights(random, up=(8, 4), norm=(4,)), "steps": np.array(7)}
    assert publisher.publish(state, label="step 1") == 1
    assert publisher.publish(state, label="step 2") == 2
    assert head.labels() == ["step 1", "step 2"]
    assert publisher.last.version == 2
    assert head.files() == ["model.safetensors"]
    assert {name: data for name, (_, _, data) in tensors_of(head.path()).items()} == {
        name: array.tobytes() for name, array in state.items()
    }
    with safe_open(head.path() / "model.safetensors", "np") as opened:  # the library reads it too
        assert opened.metadata() == {"format": "pt"}
        np.testing.assert_array_equal(opened.get_tensor("up"), state["up"])
        assert opened.get_tensor("steps") == 7
    assert left(staging) == []


def test_every_dtype_keeps_its_bits(publisher, head, random):
    tensors = {f"{dtype}.weight": tensor(dtype, (6, 4), random) for dtype in BITS}
    publisher.publish({name: Raw(each.dtype, each.shape, each.data) for name, each in tensors.items()})
    assert tensors_of(head.path()) == {
        name: (each.dtype, each.shape, each.data.tobytes()) for name, each in tensors.items()
    }
    with safe_open(head.path() / "model.safetensors", "np") as opened:
        assert {opened.get_slice(name).get_dtype() for name in tensors} == {*BITS}


def test_elements_are_aligned_whatever_stands_before_them(publisher, head, random):
    state = {"a": np.arange(3, dtype=np.uint8), "b": np.arange(5, dtype=np.float16), "c": random.normal(size=3)}
    publisher.publish(state)
    publisher.publish(iter(state.items()))
    for version in (1, 2):
        for path in head.path(version).glob("*.safetensors"):
            start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
            for name, entry in header(path).items():
                if name != "__metadata__":
                    assert (start + entry["data_offsets"][0]) % state[name].itemsize == 0


@pytest.mark.parametrize("piece_bytes", [16, 100, 1 << 20])
@pytest.mark.parametrize(
    "view",
    [
        lambda whole: whole.T,
        lambda whole: whole[::2, 1:-1],
        lambda whole: whole[:, ::-1],
        lambda whole: whole[3],
        lambda whole: whole[:0],
        lambda whole: np.moveaxis(whole.reshape(4, 3, 10), 0, 2),
        lambda whole: whole.astype(">f4"),
    ],
)
def test_views_and_pieces_of_any_size_give_the_same_bytes(head, staging, random, view, piece_bytes):
    array = view(random.normal(size=(12, 10)).astype(np.float32))
    Publisher(STREAM, client=head.client, staging=staging, piece_bytes=piece_bytes).publish({"x": array})
    expected = np.ascontiguousarray(array).astype("<f4")
    assert tensors_of(head.path())["x"] == ("F32", array.shape, expected.tobytes())


def test_names_that_are_the_same_memory_are_written_once(publisher, head, random):
    table = random.normal(size=(6, 4))
    publisher.publish({"embed": table, "part": table[:3], "head": table, "transposed": table.T})
    assert sorted(tensors_of(head.path())) == ["embed", "part", "transposed"]
    assert header(head.path() / "model.safetensors")["__metadata__"] == {"head": "embed", "format": "pt"}
    assert publisher.publish({"embed": table, "part": table[:3], "head": table, "transposed": table.T}) == 2


def test_empty_tensors_are_never_taken_for_each_other(publisher, head):
    publisher.publish({"a": np.empty((0, 4)), "b": np.empty((0, 4))})
    assert sorted(tensors_of(head.path())) == ["a", "b"]


def test_floats_are_cast_where_that_is_asked_for_and_nothing_else_is(publisher, head, random):
    state = {
        "up": random.normal(size=(300,)).astype(np.float32),
        "router.bias": random.normal(size=(5,)).astype(np.float32),
        "ids": np.arange(4),
        "fp8": Raw("F8_E4M3", (2,), b"\x01\xff"),
        "half": np.array([1.5], np.float16),
    }
    publisher.publish(state, dtype="float16", keep=("*.bias",))
    found = tensors_of(head.path())
    assert found["up"] == ("F16", (300,), state["up"].astype(np.float16).tobytes())
    assert found["router.bias"] == ("F32", (5,), state["router.bias"].tobytes())
    assert [found[name][0] for name in ("ids", "fp8", "half")] == ["I64", "F8_E4M3", "F16"]


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "bf16", np.int32])
def test_a_cast_to_something_that_floats_cannot_become_is_refused(publisher, head, dtype):
    with pytest.raises(BadTensorError, match="can be cast to"):
        publisher.publish({"x": np.ones(3)}, dtype=dtype)
    assert head.labels() == []


def test_numpy_without_bfloat16_says_what_to_do(publisher, random):
    with pytest.raises(BadTensorError, match="tensor 'up': numpy has no bfloat16; import ml_dtypes"):
        publisher.publish(weights(random, up=(3, 3)), dtype="bfloat16")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("norm"), "1 missing: norm"),
        (lambda state: state.update(extra=np.ones(2)), "1 new: extra"),
        (lambda state: state.update(norm=np.ones(9, np.float32)), r"norm \(F32 \[4\] before, F32 \[9\] now\)"),
        (lambda state: state.update(norm=np.ones(4)), r"norm \(F32 \[4\] before, F64 \[4\] now\)"),
        (lambda state: state.update(norm=np.ones((2, 2), np.float32)), r"F32 \[2, 2\] now"),
    ],
)
@pytest.mark.parametrize("as_stream", [False, True])
def test_another_layout_than_the_last_is_an_error_until_it_is_meant(
    publisher, head, random, staging, change, says, as_stream
):
    state = weights(random, up=(8, 4), norm=(4,))
    publisher.publish(state)
    change(state)
    given = iter(state.items()) if as_stream else state
    with pytest.raises(LayoutChangedError, match=says) as raised:
        publisher.publish(given)
    assert "layout_change=True" in str(raised.value)
    assert len(head.labels()) == 1
    assert left(staging) == []
    assert publisher.publish(state, layout_change=True) == 2
    assert publisher.publish(state) == 3, "the new layout is the last one now"


def test_a_trainer_that_was_restarted_still_knows_the_last_layout(head, staging, random):
    Publisher(STREAM, client=head.client, staging=staging).publish(weights(random, up=(8, 4)))
    with pytest.raises(LayoutChangedError):
        Publisher(STREAM, client=head.client, staging=staging).publish(weights(random, up=(8, 5)))


def test_many_differences_are_counted_and_a_few_shown(publisher, random):
    publisher.publish(weights(random, **{f"layer{number}": (2,) for number in range(20)}))
    with pytest.raises(LayoutChangedError, match=r"20 missing: layer0, layer1, layer2, …; 1 new: other\."):
        publisher.publish(weights(random, other=(2,)))


def test_large_state_dicts_are_cut_into_shards_with_an_index(head, staging, random):
    publisher = Publisher(STREAM, client=head.client, staging=staging, shard_bytes=125)
    state = weights(random, a=(10,), b=(20,), c=(60,), d=(3,))
    for given in (state, iter(state.items())):
        publisher.publish(given)
        names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
        assert head.files() == [*names, "model.safetensors.index.json"]
        index = json.loads((head.path() / "model.safetensors.index.json").read_text())
        assert index["weight_map"] == {"a": names[0], "b": names[0], "c": names[1], "d": names[2]}
        assert index["metadata"] == {"total_size": 93 * 4}
        for name, file in index["weight_map"].items():
            assert name in header(head.path() / file)
        assert {name: data for name, (_, _, data) in tensors_of(head.path()).items()} == {
            name: array.tobytes() for name, array in state.items()
        }


def test_a_stream_of_tensors_is_written_as_it_comes(publisher, head, random):
    """The giver may forget, or overwrite, each tensor when the next one is asked for."""
    buffer = np.empty(1000, np.float32)
    truth = {}

    def gather():
        for number in range(50):
            buffer[:] = random.normal(size=1000)
            truth[f"layer{number}"] = buffer.tobytes()
            yield f"layer{number}", buffer
            yield f"step{number}", np.array([number], np.uint8)

    publisher.publish(gather())
    found = tensors_of(head.path())
    assert {name: data for name, (_, _, data) in found.items() if name.startswith("layer")} == truth
    assert found["step49"] == ("U8", (1,), b"\x31")
    publisher.publish(gather())
    with safe_open(head.path() / head.files()[0], "np") as opened:
        assert len(opened.keys()) == 50


def test_a_stream_with_more_names_than_a_header_has_room_for_begins_another_file(publisher, head):
    count = 12_000
    publisher.publish((f"experts.{number:06}.weight", np.array([number], np.int32)) for number in range(count))
    assert len(head.files()) == 3
    found = tensors_of(head.path())
    assert {name: int.from_bytes(data, "little") for name, (_, _, data) in found.items()} == {
        f"experts.{number:06}.weight": number for number in range(count)
    }


def test_a_stream_that_fails_half_way_publishes_nothing(publisher, head, staging):
    def broken():
        yield "a", np.ones(3)
        raise RuntimeError("the GPU fell off the bus")

    with pytest.raises(RuntimeError, match="fell off"):
        publisher.publish(broken())
    assert head.labels() == []
    assert left(staging) == []


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"a": 3}, "tensor 'a' is int, not a tensor"),
        ({"a": np.array(["x"])}, "tensor 'a' is <U1"),
        ({"a": Raw("F32", (2,), b"1234567")}, None),
        ({}, "no tensor to publish"),
        (iter(()), "no tensor to publish"),
        (iter([("a", np.ones(1)), ("a", np.ones(1))]), "'a' comes twice"),
    ],
)
def test_what_is_no_tensor_is_named(publisher, head, staging, state, says):
    with pytest.raises((BadTensorError, BadSourceError), match=says):
        publisher.publish(state)
    assert head.labels() == []
    assert left(staging) == []


def test_side_files_go_with_every_version_and_weights_do_not(head, staging, tmp_path, random):
    base = tmp_path / "base"
    (base / "chat").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "chat/template.jinja"):
        (base / name).write_text(name)
    for name in ("old.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "optimizer.pt"):
        (base / name).write_text("not this")
    publisher = Publisher(STREAM, client=head.client, staging=staging, side_files=base)
    publisher.publish(weights(random, up=(3,)))
    assert head.files() == ["chat/template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert (head.path() / "config.json").read_text() == "config.json"


def test_a_directory_is_published_as_it_is(publisher, head, staging, tmp_path, random):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert publisher.publish(folder, label="step 3") == 1
    assert head.requests[0].directory == str(folder)
    assert not staging.exists(), "nothing had to be staged"


def test_what_only_the_trainer_needs_is_left_out_of_a_directory(publisher, head, staging, tmp_path):
    folder = tmp_path / "checkpoint-7"
    (folder / "global_step7").mkdir(parents=True)
    for name in ("config.json", "optimizer.pt", "rng_state_0.pth", "trainer_state.json", "global_step7/zero.pt"):
        (folder / name).write_text(name)
    publisher.publish(str(folder))
    assert head.files() == ["config.json"]
    publisher.publish(folder, exclude=("*.pt",))
    assert head.files() == ["config.json", "rng_state_0.pth", "trainer_state.json"]
    assert left(staging) == []
    with pytest.raises(BadInputError, match="every file in it is excluded; exclude less"):
        publisher.publish(folder, exclude=("*",))


def test_a_directory_that_is_not_there_is_named(publisher, tmp_path):
    with pytest.raises(BadInputError, match="nowhere"):
        publisher.publish(tmp_path / "nowhere")


def test_the_changes_of_a_delta_are_not_taken_for_a_checkpoint(publisher, head, tmp_path):
    index = {"metadata": {"delta_encoding": "xor"}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInputError, match="--slime-delta"):
        publisher.publish(tmp_path)
    assert head.labels() == []


def test_a_publish_that_the_daemon_refuses_leaves_nothing_staged(publisher, head, staging, random):
    head.failure = BadSourceError("changed while it was read")
    with pytest.raises(BadSourceError):
        publisher.publish(weights(random, up=(3,)))
    assert left(staging) == []
    assert publisher.publish(weights(random, up=(3,))) == 1


def test_no_daemon_is_said_before_anything_is_written(staging, tmp_path, random):
    with pytest.raises(NotRunningError):
        Publisher(STREAM, client=Client(tmp_path / "no.sock"), staging=staging).publish(weights(random, up=(3,)))
    assert left(staging) == []


def test_a_staging_folder_that_cannot_be_used_is_named(head, random):
    publisher = Publisher(STREAM, client=head.client, staging="/proc/nowhere")
    with pytest.raises(StagingError, match=r"/proc/nowhere.*PATCHSWARM_STAGING"):
        publisher.publish(weights(random, up=(3,)))


def test_a_full_staging_folder_is_named_and_emptied(publisher, head, staging, random, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writing.os, "pwrite", full)
        with pytest.raises(StagingError, match=r"No space left on device; free room"):
            publisher.publish(weights(random, up=(3,)))
    assert head.labels() == []
    assert left(staging) == []


def test_what_a_killed_trainer_left_is_removed_and_what_a_living_one_has_is_not(publisher, staging, random):
    for name in ("dead", "alive", "half-made"):
        (staging / f"{STREAM}.one-{name}").mkdir(parents=True)
    (staging / f"{STREAM}.one-dead" / "lock").touch()
    with (staging / f"{STREAM}.one-alive" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        publisher.publish(weights(random, up=(3,)))
        assert left(staging) == [f"{STREAM}.one-alive"]
    publisher.publish(weights(random, up=(3,)))
    assert left(staging) == []


def test_the_staging_folder_can_come_from_the_environment(head, tmp_path, monkeypatch, random):
    monkeypatch.setenv("PATCHSWARM_STAGING", str(tmp_path / "given"))
    Publisher(STREAM, client=head.client).publish(weights(random, up=(3,)))
    assert head.requests[0].directory.startswith(str(tmp_path / "given"))


def test_without_a_word_files_are_staged_beside_the_slots(head, monkeypatch, random):
    monkeypatch.delenv("PATCHSWARM_STAGING", raising=False)
    publisher = Publisher(STREAM, client=head.client)
    publisher.publish(weights(random, up=(3,)))
    staging = head.api.service.root / ".staging"
    assert head.requests[0].directory.startswith(str(staging))
    assert left(staging) == []


def test_shares_are_disjoint_whole_and_about_as_large_as_each_other():
    state = {f"layer{number}": np.zeros(number % 7 + 1) for number in range(100)}
    shares = [dict(share(state, rank, 3)) for rank in range(3)]
    assert sorted(name for each in shares for name in each) == sorted(state)
    sizes = [sum(array.nbytes for array in each.values()) for each in shares]
    assert max(sizes) - min(sizes) <= 7 * 8
