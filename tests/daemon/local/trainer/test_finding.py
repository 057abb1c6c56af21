"""Which folders a trainer has finished, and what the others lack."""

import json
import os

import pytest
from support.checkpoints import model, write

from patchswarm.daemon.local.trainer.finding import Patience, look, missing, natural, step_of


@pytest.fixture
def checkpoint(tmp_path):
    def checkpoint(name, shards=1):
        return write(tmp_path / "out" / name, model(layers=1, width=16), shards=shards)

    (tmp_path / "out").mkdir()
    return checkpoint


def names(tmp_path, match="*"):
    return [sight.name for sight in look(tmp_path / "out", match, "STABLE")]


def test_numbers_in_names_are_numbers():
    assert sorted(["step_10", "step_9", "b", "step_9a", "10", "9"], key=natural) == [
        "9",
        "10",
        "b",
        "step_9",
        "step_9a",
        "step_10",
    ]
    assert [step_of(name) for name in ("step_12", "global_step3_hf", "weight_v000007", "final")] == [12, 3, 7, None]


def test_folders_are_found_oldest_first(checkpoint, tmp_path):
    for name, time in (("step_3", 10), ("step_20", 30), ("step_1", 30), ("step_9", 30)):
        folder = checkpoint(name)
        for path in folder.iterdir():
            os.utime(path, (time, time))
    assert names(tmp_path) == ["step_3", "step_1", "step_9", "step_20"]
    assert names(tmp_path, "step_?") == ["step_3", "step_1", "step_9"]


def test_what_is_in_the_making_by_its_name_is_passed_over(checkpoint, tmp_path):
    for name in ("tmp-checkpoint-3", ".hidden", "step_3.tmp", "step_4"):
        checkpoint(name)
    (tmp_path / "out" / "step_5").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    assert names(tmp_path) == ["step_4"]


def sight(tmp_path):
    (found,) = look(tmp_path / "out", "*", "STABLE")
    return found


def test_a_stamp_changes_with_anything_in_the_folder(checkpoint, tmp_path):
    folder = checkpoint("step_1")
    stamps = {sight(tmp_path).stamp}
    assert sight(tmp_path).stamp in stamps
    for change in (
        (folder / "new.txt").touch,
        lambda: (folder / "new.txt").write_text("x"),
        lambda: os.utime(folder / "new.txt", (1, 1)),
        lambda: (folder / "new.txt").rename(folder / "newer.txt"),
        lambda: (folder / "sub").mkdir() or (folder / "sub" / "x").touch(),
    ):
        change()
        stamps.add(sight(tmp_path).stamp)
    assert len(stamps) == 6


@pytest.mark.parametrize(
    ("finished", "at_once", "with_marker", "later"),
    [
        ("auto", False, True, True),
        ("marker", False, True, False),
        ("settled", False, False, True),
        ("index", True, True, True),
    ],
)
def test_a_folder_is_finished_when_what_is_waited_for_is_there(
    checkpoint, tmp_path, finished, at_once, with_marker, later
):
    folder = checkpoint("step_1", shards=2)
    patience = Patience(finished, settle_s=10)
    assert patience.is_finished(sight(tmp_path), 0) is at_once
    assert patience.is_finished(sight(tmp_path), 11) is later
    (folder / "STABLE").touch()
    assert patience.is_finished(sight(tmp_path), 20) is with_marker, "it has just changed"
    (folder / "STABLE").unlink()


def test_every_change_starts_the_wait_anew(checkpoint, tmp_path):
    folder = checkpoint("step_1")
    patience = Patience("settled", settle_s=10)
    for now in range(0, 50, 5):
        (folder / "growing").write_text("x" * now)
        assert not patience.is_finished(sight(tmp_path), now)
    assert patience.is_finished(sight(tmp_path), 55)
    patience.forget(set())
    assert not patience.is_finished(sight(tmp_path), 56)


def test_changes_are_finished_with_their_index(checkpoint, tmp_path):
    folder = tmp_path / "out" / "weight_v000001"
    folder.mkdir()
    (folder / "model-00000-of-00001.safetensors").write_bytes(b"")
    patience = Patience("auto", settle_s=10)
    assert not patience.is_finished(sight(tmp_path), 0)
    (folder / "model.safetensors.index.json").write_text('{"metadata": {"delta_encoding": "xor"}, "weight_map": {}}')
    assert patience.is_finished(sight(tmp_path), 0)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_whole_checkpoint_lacks_nothing(checkpoint, shards):
    assert missing(checkpoint("step_1", shards=shards)) is None


def test_what_a_checkpoint_lacks_is_named(checkpoint):
    folder = checkpoint("step_1", shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    assert "model-00002-of-00002.safetensors is truncated" in missing(folder)
    shard.write_bytes(b"")
    assert "truncated" in missing(folder)
    shard.unlink()
    assert missing(folder) == "model-00002-of-00002.safetensors, which model.safetensors.index.json names, is not there"
    (folder / "model.safetensors.index.json").write_text("[]")
    assert missing(folder) == "its index is not one of safetensors files"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert missing(folder) == "it holds no safetensors file"
