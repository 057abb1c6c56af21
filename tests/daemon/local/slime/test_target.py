"""What is written as slime's folders leads a host that knows only slime to the same bytes."""

import json

import numpy as np
import pytest
from support.checkpoints import files_of
from support.slime_fleet import Host, read_file

from patchswarm.daemon.local.slime import target
from patchswarm.daemon.local.slime.source import apply_delta
from patchswarm.daemon.local.slime.target import write_delta, write_full

CHECKSUMS = ["xxh3-128", "blake3", "adler32"]


def delta(old, new, out, number, **options):
    options = {"encoding": "xor", "checksum": "xxh3-128", **options}
    return write_delta(old, new, out / f"weight_v{number:06}", version=number, base_version=number - 1, **options)


@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_host_that_pulls_reaches_the_trainers_bytes(run, tmp_path, encoding, checksum):
    host = Host(tmp_path / "host", run.base)
    late = Host(tmp_path / "late", run.base)
    before = run.base
    for number in (1, 2, 3):
        truth = run.step()
        assert delta(before, truth, tmp_path / "out", number, encoding=encoding, checksum=checksum)
        host.pull(tmp_path / "out", number)
        assert files_of(host.folder) == files_of(truth)
        before = truth
    late.pull(tmp_path / "out", 3)
    assert files_of(late.folder) == files_of(truth)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_what_is_written_can_be_read_again(run, tmp_path, encoding):
    truth = run.step()
    delta(run.base, truth, tmp_path / "out", 1, encoding=encoding)
    apply_delta(tmp_path / "out" / "weight_v000001", run.base, tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(truth)


def test_only_tensors_that_changed_are_in_it(run, tmp_path):
    run.tensors["embed.weight"].data[5] ^= 1
    run.number = 1
    delta(run.base, run.write(), tmp_path / "out", 1, more={"patchswarm_version": "9"})
    folder = tmp_path / "out" / "weight_v000001"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index == {
        "metadata": {
            "version": "000001",
            "base_version": "000000",
            "delta_encoding": "xor",
            "compression_format": "zstd",
            "checksum_format": "xxh3-128",
            "patchswarm_version": "9",
        },
        "weight_map": {"embed.weight": "model-00000-of-00001.safetensors"},
    }
    metadata, places, _ = read_file(folder / "model-00000-of-00001.safetensors")
    assert [*metadata] == [*places] == ["embed.weight"]
    assert places["embed.weight"][0] == "U8"
    assert sorted(path.name for path in folder.iterdir()) == [
        "model-00000-of-00001.safetensors",
        "model.safetensors.index.json",
    ]


def test_two_equal_checkpoints_make_an_empty_delta(run, tmp_path):
    assert delta(run.base, run.base, tmp_path / "out", 1)
    host = Host(tmp_path / "host", run.base)
    host.pull(tmp_path / "out", 1)
    assert host.applied == 1
    assert files_of(host.folder) == files_of(run.base)


def test_many_changes_are_cut_into_files(run, tmp_path):
    truth = run.step(fraction=0.5)
    delta(run.base, truth, tmp_path / "out", 1, shard_bytes=5_000)
    names = sorted(path.name for path in (tmp_path / "out" / "weight_v000001").glob("*.safetensors"))
    assert len(names) > 2
    assert names == [f"model-{number:05}-of-{len(names):05}.safetensors" for number in range(len(names))]
    host = Host(tmp_path / "host", run.base)
    host.pull(tmp_path / "out", 1)
    assert files_of(host.folder) == files_of(truth)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.write(side={"config.json": b'{"other": 1}'}),
        lambda run: run.write(side={"new.txt": b""}),
        lambda run: run.tensors.pop("embed.weight") and run.write(),
        lambda run: run.tensors.update(new=run.tensors["embed.weight"]) or run.write(),
    ],
)
def test_what_a_delta_cannot_say_is_not_written_as_one(run, tmp_path, change):
    run.number = 1
    truth = change(run)
    assert not delta(run.base, truth, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


def test_a_full_folder_is_the_checkpoint(run, tmp_path):
    write_full(run.base, tmp_path / "out" / "weight_v000004")
    assert files_of(tmp_path / "out" / "weight_v000004") == files_of(run.base)
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    host = Host(tmp_path / "host", run.step())
    host.pull(tmp_path / "out", 4)
    assert files_of(host.folder) == files_of(run.base)


def test_a_tensor_too_large_for_the_overwrite_encoding_is_written_as_xor(run, tmp_path, monkeypatch):
    monkeypatch.setattr(target, "POSITION_LIMIT", 1000)
    truth = run.step()
    assert delta(run.base, truth, tmp_path / "out", 1, encoding="overwrite")
    index = json.loads((tmp_path / "out" / "weight_v000001" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["delta_encoding"] == "xor"


def test_bits_that_floats_do_not_tell_apart_are_changes(run, tmp_path):
    """-0.0 for 0.0, and one NaN for another: equal or unordered as floats, not as bytes."""
    run.tensors["embed.weight"].data[:8] = np.array([0.0, np.nan], np.float32).view(np.uint8)
    run.number = 1
    before = run.write()
    run.tensors["embed.weight"].data[:8] = np.array([0x80000000, 0x7FC00001], np.uint32).view(np.uint8)
    run.number = 2
    truth = run.write()
    delta(before, truth, tmp_path / "out", 1)
    host = Host(tmp_path / "host", before)
    host.pull(tmp_path / "out", 1)
    assert files_of(host.folder) == files_of(truth)
