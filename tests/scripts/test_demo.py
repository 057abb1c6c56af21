"""The demo: its table is true, and it fails when a byte differs. Its trainer rounds as hardware does."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import demo
import numpy as np
import pytest
from support.checkpoints import model, tensor, write
from trainer import Trainer, read_safetensors, to_bf16

DEMO = Path(demo.__file__)


@pytest.fixture
def checkpoint(tmp_path):
    random = np.random.default_rng(0)
    return write(tmp_path / "model", model() | {"ids": tensor("I64", (3,), random)}, shards=2, side={"a/b.txt": b"x"})


@pytest.fixture
def short_folder():
    """A folder with a path so short that sockets fit below it."""
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.timeout(300)
def test_a_demo_ends_with_identical_files_everywhere_and_leaves_nothing(checkpoint, tmp_path, short_folder):
    line = [sys.executable, DEMO, "--model", checkpoint, "--versions", "4", "--nodes", "2", "--json", tmp_path / "out"]
    place = os.environ | {"TMPDIR": str(short_folder)}
    done = subprocess.run(line, capture_output=True, text=True, env=place, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out").read_text())
    assert document["ok"]
    assert [row["version"] for row in document["versions"]] == [1, 2, 3, 4]
    for row in document["versions"]:
        assert set(row) == {
            "version",
            "changed_fraction",
            "full_bytes",
            "patch_bytes",
            "ratio",
            "publish_to_all_s",
            "identical",
        }
        nodes = {"head", "rollout-1"} if row["version"] == 3 else {"head", "rollout-1", "rollout-2"}
        assert row["identical"] == dict.fromkeys(nodes, True)
    assert "rollout-2 is stopped" in done.stdout
    assert "head's daemon is killed" in done.stdout
    assert not list(short_folder.iterdir())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_an_interrupted_demo_stops_its_daemons(checkpoint, short_folder, number):
    place = os.environ | {"TMPDIR": str(short_folder)}
    line = [sys.executable, DEMO, "--model", checkpoint, "--versions", "9", "--nodes", "1"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=place, start_new_session=True
    ) as running:
        assert running.stdout is not None
        for text in running.stdout:
            if text.startswith("version"):
                break
        assert len(processes_of(short_folder)) == 2
        running.send_signal(number)
        running.stdout.read()
    assert running.returncode == 130
    assert not list(short_folder.iterdir())
    assert processes_of(short_folder) == []


def processes_of(folder):
    """Command lines of all processes that name a path below `folder`."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if f"{folder}/" in line]


def test_one_different_file_makes_the_demo_fail():
    rows = [demo.Row(1, 1.0, 10, 10, 1.0, 0.1, {"head": True, "rollout-1": True})]
    assert demo.report(rows, complete=True)["ok"]
    rows.append(demo.Row(2, 0.1, 10, 1, 10.0, 0.1, {"head": True, "rollout-1": False}))
    assert not demo.report(rows, complete=True)["ok"]


def test_a_demo_cut_short_is_not_ok():
    assert not demo.report([], complete=False)["ok"]


def test_sums_cover_every_file_and_tell_one_byte(checkpoint):
    before = demo.sha256_of_files(checkpoint)
    assert "a/b.txt" in before
    (checkpoint / ".patchswarm-slot").touch()
    assert demo.sha256_of_files(checkpoint) == before, "a slot's own state is no part of the checkpoint"
    (checkpoint / "a" / "b.txt").write_bytes(b"y")
    assert demo.sha256_of_files(checkpoint) != before


@pytest.mark.parametrize("versions", range(1, 12))
def test_a_plan_stops_a_host_before_it_starts_it(versions):
    plan = demo.Plan(versions)
    assert 0 <= plan.stop <= plan.start <= versions
    assert (plan.stop == 0) == (plan.start == 0)
    assert plan.kill <= versions


def test_bf16_rounds_to_nearest_and_ties_to_even():
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x80000000, 0x7F7FFFFF], np.uint32)
    assert [*map(hex, to_bf16(bits.view(np.float32)))] == [
        "0x3f80",
        "0x3f80",
        "0x3f82",
        "0x3f81",
        "0x3f80",
        "0x8000",
        "0x7f80",
    ]


def test_bf16_keeps_nan_and_infinity():
    bits = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF], np.uint32)
    assert [*map(hex, to_bf16(bits.view(np.float32)))] == ["0x7f80", "0xff80", "0x7fc0", "0xffff"]


def test_a_step_changes_few_served_values_and_nothing_else(checkpoint, tmp_path):
    trainer = Trainer(checkpoint)
    for number in (1, 2):
        trainer.step()
        trainer.write(tmp_path / str(number))
    names = {path.relative_to(tmp_path / "1").as_posix() for path in (tmp_path / "1").rglob("*") if path.is_file()}
    assert names == {
        "a/b.txt",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "trainer_state.json",
    }
    changed = total = 0
    for shard in sorted(name for name in names if name.endswith(".safetensors")):
        (before, _), (after, _) = (read_safetensors(tmp_path / number / shard) for number in ("1", "2"))
        for name in before:
            assert before[name].dtype == after[name].dtype
            if before[name].dtype == "BF16":
                differ = before[name].data.view(np.uint16) != after[name].data.view(np.uint16)
                changed, total = changed + int(differ.sum()), total + differ.size
            else:
                assert (before[name].data == after[name].data).all()
    assert 0.0005 < changed / total < 0.05
