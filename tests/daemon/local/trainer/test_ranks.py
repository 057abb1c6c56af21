"""Ranks write their shards of one version side by side; one commits, or nothing is published."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.local_service import STREAM
from support.trainer_head import tensors_of

from patchswarm.daemon.errors import BadInputError
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.local.trainer.errors import (
    BadTensorError,
    LayoutChangedError,
    RankMissingError,
    StagingError,
)
from patchswarm.daemon.local.trainer.publisher import Publisher, share

WORLD = 4


@pytest.fixture
def ranks(head, staging):
    """A publisher for each rank, as processes would have them."""
    return [Publisher(STREAM, client=head.client, staging=staging) for _ in range(WORLD)]


@pytest.fixture
def state(random):
    return {f"layer{number}": random.normal(size=(number + 1, 3)).astype(np.float32) for number in range(10)}


def stage(ranks, state, label, **options):
    for rank, publisher in enumerate(ranks):
        publisher.stage(share(state, rank, len(ranks)), rank=rank, world=len(ranks), label=label, **options)


def folders(staging):
    return sorted(path.name for path in staging.iterdir() if path.name != ".lock")


def test_each_rank_writes_a_file_and_one_commits_them(ranks, state, head, staging):
    stage(ranks, state, "step 1")
    assert head.labels() == [], "nothing is published before the commit"
    assert ranks[0].commit(world=WORLD, label="step 1") == 1
    names = [f"model-{number:05}-of-00004.safetensors" for number in range(1, 5)]
    assert head.files() == [*names, "model.safetensors.index.json"]
    index = json.loads((head.path() / "model.safetensors.index.json").read_text())["weight_map"]
    for rank in range(WORLD):
        for name, _ in share(state, rank, WORLD):
            assert index[name] == names[rank], "a rank's file keeps its place"
    assert {name: data for name, (_, _, data) in tensors_of(head.path()).items()} == {
        name: array.tobytes() for name, array in state.items()
    }
    assert folders(staging) == []


def test_any_rank_may_commit_and_versions_go_on(ranks, state, head):
    for number in (1, 2, 3):
        stage(ranks, state, f"step {number}")
        assert ranks[number].commit(world=WORLD, label=f"step {number}") == number
    assert head.labels() == ["step 1", "step 2", "step 3"]


def test_a_rank_without_a_tensor_writes_no_file(ranks, head):
    stage(ranks, {"a": np.ones(3), "b": np.ones(3)}, "x")
    ranks[0].commit(world=WORLD, label="x")
    assert head.files() == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)] + ["model.safetensors.index.json"]


def test_the_commit_waits_for_ranks_that_are_late(ranks, state, head):
    stage(ranks[:0], state, "x")
    for rank in (0, 1, 3):
        ranks[rank].stage(share(state, rank, WORLD), rank=rank, world=WORLD, label="x")
    with ThreadPoolExecutor() as pool:
        committing = pool.submit(ranks[0].commit, world=WORLD, label="x", timeout_s=60)
        ranks[2].stage(share(state, 2, WORLD), rank=2, world=WORLD, label="x")
        assert committing.result(60) == 1


def test_a_rank_that_died_leaves_nothing_published_and_is_named(ranks, state, head, staging):
    for rank in (0, 2):
        ranks[rank].stage(share(state, rank, WORLD), rank=rank, world=WORLD, label="x")
    with pytest.raises(RankMissingError, match="rank 1, 3 of 4") as raised:
        ranks[0].commit(world=WORLD, label="x", timeout_s=0)
    assert raised.value.exit is Exit.TIMEOUT
    assert head.labels() == []
    assert folders(staging) == []


def test_a_rank_killed_while_it_writes_is_not_done(ranks, state, head, staging):
    """The killed process's file is there, of full size even: only the word that it is whole is missing."""
    program = """
import os, signal, sys
import numpy as np
from patchswarm.daemon.local.client import Client
from patchswarm.daemon.local.trainer.publisher import Publisher

def shard():
    yield "layer", np.ones(1000)
    os.kill(os.getpid(), signal.SIGKILL)

Publisher("qwen", client=Client(sys.argv[1]), staging=sys.argv[2]).stage(shard(), rank=1, world=2, label="x")
"""
    ranks[0].stage({"other": np.ones(3)}, rank=0, world=2, label="x")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4] / ".tooling")}
    line = [sys.executable, "-c", program, head.socket, staging]
    done = subprocess.run(line, env=environment, timeout=60, check=False)
    assert done.returncode == -9
    with pytest.raises(RankMissingError, match="rank 1 of 2"):
        ranks[0].commit(world=2, label="x", timeout_s=0)
    assert head.labels() == []


def test_memory_does_not_grow_with_the_model(staging):
    """Strided and converted on the way, so that no tensor can be written from where it lies."""
    program = """
import resource, sys
import numpy as np
from patchswarm.daemon.local.trainer.publisher import Publisher

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

buffer = np.ones((4096, 4096), np.float32)
publisher = Publisher("qwen", staging=sys.argv[1], piece_bytes=1 << 20)
publisher.stage([("warm", buffer[:64, ::2])], rank=0, world=1, label="x", dtype="float16")
before = peak()
tensors = ((f"layer{number}", buffer.T) for number in range(4))
publisher.stage(tensors, rank=0, world=1, label="y", dtype="float16")
print(peak() - before)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4] / ".tooling")}
    done = subprocess.run(
        [sys.executable, "-c", program, staging], env=environment, timeout=100, check=True, capture_output=True
    )
    staged = sum(path.stat().st_size for path in staging.rglob("*.safetensors"))
    assert staged > 128 * 1000**2
    assert int(done.stdout) < 24, "MiB that 128 MiB of weights took"


def test_a_rank_that_fails_takes_its_part_back(ranks, head, staging):
    with pytest.raises(BadTensorError):
        ranks[1].stage({"a": np.ones(2), "b": "no tensor"}, rank=1, world=2, label="x")
    ranks[0].stage({"c": np.ones(2)}, rank=0, world=2, label="x")
    with pytest.raises(RankMissingError, match="rank 1"):
        ranks[0].commit(world=2, label="x", timeout_s=0)


def test_a_second_try_replaces_what_the_first_left(ranks, state, head):
    ranks[0].stage({"wrong": np.ones(2)}, rank=0, world=WORLD, label="x")
    stage(ranks, state, "x")
    ranks[0].commit(world=WORLD, label="x")
    assert sorted(tensors_of(head.path())) == sorted(state)


def test_attempts_keep_a_failed_trainer_apart_from_the_next(ranks, state, head, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    stage(ranks, {"stale": np.ones(WORLD)}, "step 1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(RankMissingError):
        ranks[0].commit(world=WORLD, label="step 1", timeout_s=0)
    stage(ranks, state, "step 1")
    ranks[0].commit(world=WORLD, label="step 1")
    assert sorted(tensors_of(head.path())) == sorted(state)


def test_what_dead_ranks_left_is_removed_by_the_next_commit(ranks, state, staging):
    ranks[1].stage(share(state, 1, WORLD), rank=1, world=WORLD, label="dead")
    assert len(folders(staging)) == 1
    stage(ranks, state, "next")
    ranks[0].commit(world=WORLD, label="next")
    assert folders(staging) == []


def test_ranks_ahead_of_a_commit_are_left_alone(ranks, state, head, staging):
    """Rank 1 may be at the next step's stage while rank 0 still commits this one."""
    stage(ranks, state, "now")
    ranks[1].stage(share(state, 1, WORLD), rank=1, world=WORLD, label="next")
    ranks[0].commit(world=WORLD, label="now")
    assert len(folders(staging)) == 1
    for rank in (0, 2, 3):
        ranks[rank].stage(share(state, rank, WORLD), rank=rank, world=WORLD, label="next")
    assert ranks[0].commit(world=WORLD, label="next") == 2


def test_a_tensor_of_two_ranks_is_an_error_that_names_both(ranks, head):
    for rank in (0, 1):
        ranks[rank].stage({"same": np.ones(2), f"own{rank}": np.ones(2)}, rank=rank, world=2, label="x")
    with pytest.raises(BadTensorError, match="'same' was staged by rank 0 and by rank 1"):
        ranks[0].commit(world=2, label="x")
    assert head.labels() == []


def test_ranks_must_agree_on_how_many_they_are(ranks):
    ranks[0].stage({"a": np.ones(2)}, rank=0, world=2, label="x")
    ranks[1].stage({"b": np.ones(2)}, rank=1, world=3, label="x")
    with pytest.raises(StagingError, match="rank 1 staged as one of 3, but 2"):
        ranks[0].commit(world=2, label="x")
    with pytest.raises(BadInputError, match="rank=2 of world=2"):
        ranks[0].stage({"a": np.ones(2)}, rank=2, world=2, label="x")


def test_the_commit_holds_the_whole_against_the_version_before(ranks, state, head, staging):
    stage(ranks, state, "step 1")
    ranks[0].commit(world=WORLD, label="step 1")
    del state["layer7"]
    stage(ranks, state, "step 2")
    with pytest.raises(LayoutChangedError, match="1 missing: layer7"):
        ranks[0].commit(world=WORLD, label="step 2")
    assert head.labels() == ["step 1"]
    assert folders(staging) == []
    stage(ranks, state, "step 2")
    assert ranks[0].commit(world=WORLD, label="step 2", layout_change=True) == 2
