"""slime's and miles's post-write hook: hook(args, version_dir, rollout_engines), on every rank after all have written.

And the engine's pre-read hook: hook(source_dir, target_version), before /pull_weights reads.
"""

import threading
from argparse import Namespace

import pytest
from support.checkpoints import files_of, model, stepped, write
from support.slime_fleet import Host, Trainer

from patchswarm.daemon.errors import BadInputError
from patchswarm.daemon.local.errors import VersionNotReadyError
from patchswarm.daemon.local.slime.following import Follower, Options
from patchswarm.daemon.local.trainer.errors import StagingError


@pytest.fixture(params=["slime", "miles"])
def hook(load, request):
    return load(f"patchswarm.daemon.local.hooks.{request.param}.publish_weights")


@pytest.fixture
def run(tmp_path, random):
    """What slime hands to the hook in the course of a run, and the checkpoints that it stands for."""

    class Run:
        tensors = model(layers=1, width=32)
        base = write(tmp_path / "hf", tensors)
        args = Namespace(hf_checkpoint=str(base), update_weight_disk_dir=str(tmp_path / "deltas"))
        trainer = Trainer(tmp_path / "deltas", {name: each.data.tobytes() for name, each in tensors.items()})
        truth = base

        def step(self):
            self.tensors = stepped(self.tensors, random)
            delta = self.trainer.publish({name: each.data.tobytes() for name, each in self.tensors.items()})
            self.truth = write(tmp_path / f"truth-{self.trainer.version}", self.tensors)
            return str(delta)

    (tmp_path / "deltas").mkdir()
    return Run()


def test_a_delta_run_from_its_baseline_on(hook, head, run):
    engines = [object()]
    assert hook(run.args, run.args.update_weight_disk_dir, engines) == 1
    assert head.labels() == ["weight_v000000"]
    assert files_of(head.path()) == files_of(run.base)
    for number in (1, 2, 3):
        assert hook(run.args, run.step(), engines) == number + 1
        assert files_of(head.path()) == files_of(run.truth)
    assert head.labels()[-1] == "weight_v000003"


def test_a_run_that_begins_anew_publishes_its_base_again(hook, head, run, tmp_path):
    hook(run.args, run.args.update_weight_disk_dir, [])
    hook(run.args, run.step(), [])
    (tmp_path / "emptied").mkdir()
    hook(run.args, str(tmp_path / "emptied"), [])
    assert head.labels() == ["weight_v000000", "weight_v000001", "weight_v000000"]
    assert files_of(head.path()) == files_of(run.base)


def test_a_base_that_the_hosts_have_is_registered(hook, head, run, monkeypatch):
    monkeypatch.setenv("PATCHSWARM_REGISTER_BASE", "1")
    hook(run.args, run.args.update_weight_disk_dir, [])
    assert head.requests[0].base
    hook(run.args, run.step(), [])
    assert not head.requests[1].base


def test_full_folders_are_published_as_they_are(hook, head, run, tmp_path):
    folder = write(tmp_path / "weight_v000005", run.tensors)
    hook(run.args, str(folder), [])
    assert head.labels() == ["weight_v000005"]
    assert files_of(head.path()) == files_of(folder)


def test_an_adapter_folder_is_published_under_its_name(hook, head, run, tmp_path, random):
    folder = write(tmp_path / "adapter_v3", model(layers=1, width=16), side={"adapter_config.json": b'{"r": 8}'})
    hook(run.args, str(folder), [])
    assert head.labels() == ["adapter_v3"]
    assert "adapter_config.json" in head.files()


def test_only_the_first_rank_publishes(hook, head, run, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert hook(run.args, run.args.update_weight_disk_dir, []) is None
    assert head.labels() == []


def test_the_trainers_arguments_come_before_the_environment(hook, head, run, monkeypatch, tmp_path):
    monkeypatch.setenv("PATCHSWARM_STREAM", "another")
    monkeypatch.setenv("PATCHSWARM_STAGING", "/proc/nowhere")
    run.args.patchswarm_stream = "qwen"
    hook(run.args, run.args.update_weight_disk_dir, [])
    delta = run.step()
    with pytest.raises(StagingError):
        hook(run.args, delta, [])
    run.args.patchswarm_staging = str(tmp_path / "own")
    assert hook(run.args, delta, []) == 2
    assert (tmp_path / "own").is_dir()


def test_without_a_stream_it_says_what_to_set(hook, head, run, monkeypatch):
    monkeypatch.delenv("PATCHSWARM_STREAM")
    with pytest.raises(BadInputError, match="PATCHSWARM_STREAM"):
        hook(run.args, run.args.update_weight_disk_dir, [])


@pytest.mark.parametrize("framework", ["slime", "miles"])
def test_engines_wait_for_what_their_host_still_writes(load, head, run, tmp_path, framework):
    """The whole way: the trainer's hook, the follower on the host, the engine's pre-read hook, and its pull."""
    publish = load(f"patchswarm.daemon.local.hooks.{framework}.publish_weights")
    wait = load(f"patchswarm.daemon.local.hooks.{framework}.wait_for_weights")
    source = tmp_path / "host" / "deltas"
    host = Host(tmp_path / "host" / "checkpoint", run.base)
    publish(run.args, run.args.update_weight_disk_dir, [])
    with Follower(head.client, "qwen", source, Options()) as follower:
        follower.step(0)
        publish(run.args, run.step(), [])
        writing = threading.Thread(target=follower.step, args=(30,))
        writing.start()
        wait(str(source), 1)  # hook(source_dir: str, target_version: int)
        host.pull(source, 1)
        writing.join()
    assert files_of(host.folder) == files_of(run.truth)


def test_waiting_ends_with_a_word_on_what_to_look_at(load, tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHSWARM_WAIT_S", "0.01")
    wait = load("patchswarm.daemon.local.hooks.slime.wait_for_weights")
    with pytest.raises(VersionNotReadyError, match=r"weight_v000007 has not been written.*write-deltas"):
        wait(str(tmp_path), 7)
