"""What slime's trainer publishes becomes a checkpoint, byte for byte, or an error and nothing else."""

import json
import shutil

import pytest
from support.checkpoints import files_of
from support.local_service import STREAM
from support.slime_fleet import Trainer

from patchswarm.daemon.local.slime.format import DeltaError
from patchswarm.daemon.local.slime.source import applied, apply_delta

CHECKSUMS = ["xxh3-128", "blake3", "adler32"]


@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_chain_of_deltas_leads_to_the_trainers_bytes(run, tmp_path, encoding, checksum):
    trainer = Trainer(tmp_path / "deltas", run.bytes(), encoding=encoding, checksum=checksum)
    base = run.base
    for number in (1, 2, 3):
        truth = run.step()
        delta = trainer.publish(run.bytes())
        out = tmp_path / f"applied-{number}"
        apply_delta(delta, base, out)
        assert files_of(out) == files_of(truth)
        base = out


def test_a_delta_of_nothing_is_the_base(run, tmp_path):
    delta = Trainer(tmp_path / "deltas", run.bytes()).publish(run.bytes())
    assert [path.name for path in delta.iterdir()] == ["model.safetensors.index.json"]
    apply_delta(delta, run.base, tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(run.base)


def test_only_files_that_change_are_written_anew(run, tmp_path):
    trainer = Trainer(tmp_path / "deltas", run.bytes())
    changed = {**run.bytes(), "embed.weight": bytes(len(run.bytes()["embed.weight"]))}
    apply_delta(trainer.publish(changed), run.base, tmp_path / "out")
    links = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_symlink())
    weights = sorted(path.name for path in run.base.glob("*.safetensors"))
    assert len(links) == len(files_of(run.base)) - 1
    assert len([name for name in weights if name not in links]) == 1


@pytest.fixture
def delta(run, tmp_path):
    trainer = Trainer(tmp_path / "deltas", run.bytes())
    run.step()
    return trainer.publish(run.bytes())


def damage(path, at=-3):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def edit_index(folder, change):
    path = folder / "model.safetensors.index.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: damage(next(folder.glob("*.safetensors"))), "tensor '"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "the delta is incomplete"),
        (lambda folder: edit_index(folder, lambda index: index["weight_map"].popitem()), "not what the index says"),
        (lambda folder: edit_index(folder, lambda index: index["weight_map"].update(x="y")), "tensor 'x' should be in"),
        (lambda folder: edit_index(folder, lambda i: i["metadata"].update(checksum_format="adler32")), "checksum"),
        (lambda folder: edit_index(folder, lambda i: i["metadata"].update(delta_encoding="overwrite")), "tensor '"),
        (lambda folder: (folder / "model-00000-of-00002.safetensors").write_bytes(b"x" * 20), "safetensors"),
    ],
)
def test_a_damaged_or_incomplete_delta_is_refused(run, delta, tmp_path, spoil, says):
    spoil(delta)
    with pytest.raises(DeltaError, match=says):
        apply_delta(delta, run.base, tmp_path / "out")


def test_a_delta_on_the_wrong_base_is_refused(run, delta, tmp_path):
    other = run.step()
    with pytest.raises(DeltaError, match="another checksum"):
        apply_delta(delta, other, tmp_path / "out")


def test_a_delta_of_another_model_is_refused(run, delta, tmp_path):
    del run.tensors["embed.weight"]
    run.number = 99
    with pytest.raises(DeltaError, match=r"'embed\.weight': it belongs to another model"):
        apply_delta(delta, run.write(), tmp_path / "out")


# -- onto a stream ----------------------------------------------------------------------------------------------------


def publish(head, folder, label):
    return head.client.publish(folder, stream=STREAM, label=label).version


def test_deltas_are_published_one_after_the_other(head, run, staging, tmp_path):
    publish(head, run.base, "weight_v000000")
    trainer = Trainer(tmp_path / "deltas", run.bytes())
    for number in (1, 2):
        truth = run.step()
        delta = trainer.publish(run.bytes())
        with applied(delta, head.client, STREAM, staging) as folder:
            publish(head, folder, delta.name)
        assert files_of(head.path()) == files_of(truth)
        assert head.labels()[-1] == f"weight_v00000{number}"
    assert [path.name for path in staging.iterdir()] == [".lock"]
    with pytest.raises(DeltaError, match="weight_v000002 is published already, as version 3"):  # noqa: SIM117
        with applied(delta, head.client, STREAM, staging):
            pass


def test_a_delta_needs_the_version_that_it_builds_on(head, run, delta, staging):
    def refused():
        with pytest.raises(DeltaError) as raised, applied(delta, head.client, STREAM, staging):
            raise AssertionError("it was applied")
        return str(raised.value)

    assert "publish the checkpoint that the engines were started with first, with --label weight_v000000" in refused()
    publish(head, run.base, "step 0")
    assert "builds on weight_v000000, but the newest version of 'qwen', 1, is labelled 'step 0'" in refused()
    publish(head, run.base, "weight_v000000")
    with applied(delta, head.client, STREAM, staging):
        pass
    publish(head, run.base, "weight_v000004")
    assert "labelled 'weight_v000004'" in refused()
    assert not any(staging.glob("*/*")), "nothing is left of what was refused"


def test_the_version_is_held_while_its_files_are_linked(head, run, delta, staging):
    publish(head, run.base, "weight_v000000")
    with applied(delta, head.client, STREAM, staging) as folder:
        (lease,) = head.api.service.leases.values()
        assert not lease.gone
        assert (folder / "config.json").resolve().is_relative_to(head.path())
    assert lease.gone


def test_the_base_may_be_any_folder(run, delta, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run.root / "checkpoint-0", moved)
    apply_delta(delta, moved, tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(run.root / "checkpoint-1")
