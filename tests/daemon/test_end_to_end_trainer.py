"""The trainer's side with real daemons: state dicts, adapters, watched folders and slime's deltas reach every host."""

import contextlib
import json
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from local_fleet import COMMAND, clean_environment
from support.checkpoints import files_of, model, stepped, tensor, weights, write
from support.slime_fleet import Host, Trainer

from patchswarm.daemon.exits import Exit
from patchswarm.daemon.local.trainer.arrays import Raw
from patchswarm.daemon.local.trainer.errors import LayoutChangedError, RankMissingError
from patchswarm.daemon.local.trainer.publisher import Publisher, share

pytestmark = pytest.mark.timeout(300)  # a shared machine may be ten times slower than an idle one

WAIT_S = 120


@pytest.fixture
def random():
    return np.random.default_rng(12)


@pytest.fixture
def publisher(fleet, stream, tmp_path):
    return Publisher(stream, client=fleet.head.client, staging=tmp_path / "staging")


def everywhere(fleet, stream, version, truth):
    """Wait until every node has the version, and compare its tensors."""
    for node in fleet.running():
        assert node.client.wait(stream, version, WAIT_S), node.log.read_text()[-3000:]
        with node.client.tensors(stream, version) as tensors:
            assert sorted(tensors) == sorted(truth)
            for name, array in truth.items():
                assert tensors[name].tobytes() == array.tobytes(), (node.name, name)


class Process:
    """A command of a node that runs until it is told to end; what it says is kept."""

    def __init__(self, node, *arguments):
        self._process = subprocess.Popen(
            [str(COMMAND), *map(str, arguments), "--home", str(node.home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(),
        )
        self.said = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        self.said.extend(self._process.stdout)

    def end(self, number=signal.SIGTERM):
        """Its exit code, and all it has said."""
        self._process.send_signal(number)
        code = self._process.wait(60)
        self._reader.join()
        self._process.stdout.close()
        return code, "".join(self.said)


@contextlib.contextmanager
def running(node, *arguments):
    process = Process(node, *arguments)
    try:
        yield process
    finally:
        if process._process.poll() is None:
            process.end(signal.SIGKILL)


def test_a_state_dict_is_on_every_host_under_the_version_that_publish_returned(fleet, stream, publisher, random):
    state = {f"layers.{number}.up": random.normal(size=(64, 32)).astype(np.float32) for number in range(4)}
    for step in (10, 20, 10):  # the trainer goes back once
        version = publisher.publish(state, label=f"step {step}")
        everywhere(fleet, stream, version, state)
        for array in state.values():
            array[::7, ::5] += np.float32(1e-3)
    assert publisher.last.patch_bytes < publisher.last.full_bytes / 3, "only what changed travels"
    west = fleet.nodes["west"]
    assert west.client.find(stream, "step 10").version == 3
    assert west.client.find(stream, "step 20").version == 2
    assert west.client.find(stream, "step 30") is None
    listed = json.loads(west.command("versions", "--stream", stream, "--label", "step 10", "--json").stdout)
    assert [version["version"] for version in listed["versions"]] == [3, 1]
    west.command("versions", "--stream", stream, "--label", "step 30", expect=Exit.NOT_FOUND)
    with pytest.raises(LayoutChangedError):
        publisher.publish({**state, "new": np.ones(3)})


def test_ranks_write_one_version_side_by_side(fleet, stream, publisher, random, tmp_path):
    state = {f"layers.{number}.up": random.normal(size=(64, 32)).astype(np.float32) for number in range(12)}
    ranks = [Publisher(stream, client=fleet.head.client, staging=tmp_path / "staging") for _ in range(4)]

    def stage(rank, label):
        ranks[rank].stage(share(state, rank, 4), rank=rank, world=4, label=label)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda rank: stage(rank, "step 1"), range(4)))
    version = ranks[0].commit(world=4, label="step 1")
    everywhere(fleet, stream, version, state)
    for rank in (0, 1, 3):
        stage(rank, "step 2")
    with pytest.raises(RankMissingError, match="rank 2 of 4"):
        ranks[0].commit(world=4, label="step 2", timeout_s=0)
    assert fleet.head.client.version(stream).version == version
    assert [path.name for path in (tmp_path / "staging").iterdir()] == [".lock"]


def test_an_adapter_is_a_stream_like_any_other(fleet, stream, tmp_path, random):
    def adapter(number, rank, tensors, **config):
        folder = tmp_path / f"adapter-{number}"
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj"], **config}
        write(folder, tensors, side={"adapter_config.json": json.dumps(settings).encode()})
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
        (folder / "config.json").unlink()
        return folder

    def lora(rank):
        prefix = "base_model.model.model.layers.0.self_attn.q_proj"
        return {
            f"{prefix}.lora_A.weight": weights((rank, 512), random),
            f"{prefix}.lora_B.weight": weights((512, rank), random),
        }

    tensors = lora(8)
    first = fleet.publish(adapter(1, 8, tensors), stream)
    tensors = stepped(tensors, random)
    second = fleet.publish(adapter(2, 8, tensors), stream)
    assert second["patch_bytes"] < first["patch_bytes"] / 3
    third = fleet.publish(adapter(3, 8, tensors, lora_alpha=32), stream)
    assert third["changed_fraction"] < 0.01, "only the configuration is another one"
    fourth = fleet.publish(adapter(4, 16, lora(16), lora_alpha=32), stream)
    for node in fleet.running():
        with node.client.lease(stream, fourth["version"]) as lease:
            assert json.loads((lease.path / "adapter_config.json").read_text())["r"] == 16
            assert sorted(path.name for path in lease.path.iterdir() if not path.name.startswith(".")) == [
                "adapter_config.json",
                "adapter_model.safetensors",
            ]
            assert lease.path.name == "v4", "an engine loads the same path on every host"


def test_watched_folders_are_published_once_each_across_restarts_and_kills(fleet, stream, tmp_path, random):
    out = tmp_path / "out"
    out.mkdir()
    tensors = model()

    def step(number):
        nonlocal tensors
        tensors = stepped(tensors, random)
        write(out / f".step_{number}", tensors)
        (out / f".step_{number}").rename(out / f"step_{number}")
        (out / f"step_{number}" / "STABLE").touch()
        return {name: digest for name, digest in files_of(out / f"step_{number}").items() if name != "STABLE"}

    west = fleet.nodes["west"]
    command = ("watch", out, "--stream", stream, "--poll", "0.05s", "--staging", tmp_path / "staging")
    with running(fleet.head, *command) as watching:
        truth = step(1)
        assert west.client.find(stream, "step_1", WAIT_S).version == 1
        fleet.check(west, stream, 1, truth)
        step(2)
        assert west.client.find(stream, "step_2", WAIT_S).version == 2
        code, said = watching.end(signal.SIGTERM)
        assert (code, said.splitlines()[0]) == (0, f"watching {out} for stream {stream}")
        assert "published step_2 as version 2" in said
    step(3)
    with running(fleet.head, *command) as watching:
        assert west.client.find(stream, "step_3", WAIT_S).version == 3
        watching.end(signal.SIGKILL)  # before or after it wrote down that it had published
    with running(fleet.head, *command) as watching:
        truth = step(4)
        assert west.client.find(stream, "step_4", WAIT_S).version == 4
        fleet.check(west, stream, 4, truth)
        assert watching.end(signal.SIGINT)[0] == 0
    assert [version.label for version in fleet.head.client.versions(stream)] == ["step_4", "step_3", "step_2", "step_1"]


def test_a_watch_of_nothing_or_by_a_node_that_may_not_publish_ends_with_a_word(fleet, stream, tmp_path):
    fleet.head.command("watch", tmp_path / "none", "--stream", stream, expect=Exit.BAD_INPUT)
    write(tmp_path / "out" / "step_1", model(layers=1, width=32))
    (tmp_path / "out" / "step_1" / "STABLE").touch()
    done = fleet.nodes["west"].command("watch", tmp_path / "out", "--stream", stream, expect=Exit.REFUSED)
    assert "publish on the head" in done.stderr


def test_a_fleet_of_slime_switches_over_host_by_host(fleet, stream, tmp_path, random):
    """The trainer writes deltas as before. One host pulls those, another what its own daemon writes: the same bytes."""
    tensors = model(layers=2, width=64)
    base = write(tmp_path / "hf", tensors, shards=2)
    trainer = Trainer(tmp_path / "deltas", {name: each.data.tobytes() for name, each in tensors.items()})
    before, after = Host(tmp_path / "before", base), Host(tmp_path / "after", base)
    fleet.head.publish(base, stream, "--label", "weight_v000000")
    west = fleet.nodes["west"]
    west.client.wait(stream, 1, WAIT_S)
    with running(west, "write-deltas", tmp_path / "west", "--stream", stream, "--encoding", "overwrite") as writing:
        for number in (1, 2, 3):
            tensors = stepped(tensors, random)
            delta = trainer.publish({name: each.data.tobytes() for name, each in tensors.items()})
            truth = files_of(write(tmp_path / f"truth-{number}", tensors, shards=2))
            staging = ("--staging", str(tmp_path / "staging"))
            result = fleet.head.publish(delta, stream, "--slime-delta", *staging)
            assert (result["version"], result["label"]) == (number + 1, delta.name)
            fleet.check(west, stream, number + 1, truth)
            before.pull(tmp_path / "deltas", number)
            wait_for(tmp_path / "west" / delta.name)
            after.pull(tmp_path / "west", number)
            assert files_of(before.folder) == files_of(after.folder) == truth
        code, said = writing.end()
        assert code == 0
        assert "wrote weight_v000003 as a delta: version 4" in said
    done = fleet.head.command("publish", delta, "--stream", stream, "--slime-delta", expect=Exit.BAD_INPUT)
    assert "published already" in done.stderr
    refused = fleet.head.command("publish", delta, "--stream", stream, expect=Exit.BAD_INPUT)
    assert "publish it with --slime-delta" in refused.stderr


def wait_for(folder):
    """Wait until another process has written a folder: no event tells of that."""
    deadline = time.monotonic() + WAIT_S
    while not folder.is_dir():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_dtype_leaves_a_state_dict_as_it_was(fleet, stream, publisher, random):
    state = {f"{dtype}.x": tensor(dtype, (8, 16), random) for dtype in ("BF16", "F8_E4M3", "F4", "F8_E8M0", "BOOL")}
    raw = {name: Raw(each.dtype, each.shape, each.data) for name, each in state.items()}
    version = publisher.publish(raw)
    everywhere(fleet, stream, version, {name: each.data for name, each in state.items()})
