"""Delta folders that were written once and are read for ever; what is written now says the same, unpacked."""

import json
from pathlib import Path

import numpy as np
import pytest
import zstandard
from support.checkpoints import write
from support.slime_fleet import read_file
from trainer import Tensor

from patchswarm.daemon.local.slime.source import apply_delta
from patchswarm.daemon.local.slime.target import write_delta

GOLDEN = Path(__file__).parents[3] / "golden" / "slime"
EXAMPLES = [(encoding, checksum) for encoding in ("xor", "overwrite") for checksum in ("xxh3-128", "blake3", "adler32")]


def tensors(version):
    """Version 0, and version 1 in which a few bytes of two tensors differ."""
    made = {
        "embed": (np.arange(96) * 7 % 256).astype(np.uint8),
        "norm": np.full(8, 0x3F, np.uint8),
        "scale": np.array([0, 0, 0, 0x80], np.uint8),
    }
    if version:
        made["embed"][[0, 17, 95]] = 1, 2, 3
        made["scale"][3] = 0
    dtypes = {"embed": ("BF16", (6, 8)), "norm": ("F16", (4,)), "scale": ("F32", (1,))}
    return {name: Tensor(*dtypes[name], data) for name, data in made.items()}


def unpacked(folder):
    """Everything in a delta folder's files, its frames unpacked: zstd may pack the same bytes in other ways."""
    found = {}
    for path in folder.glob("*.safetensors"):
        checksums, places, data = read_file(path)
        for name, (_, _, first, last) in places.items():
            found[name] = path.name, checksums[name], zstandard.ZstdDecompressor().decompress(data[first:last])
    return found


@pytest.fixture(params=EXAMPLES, ids="-".join)
def golden(request, tmp_path):
    """A frozen folder: its encoding, checksum and path."""
    example = json.loads((GOLDEN / f"{'-'.join(request.param)}.json").read_text())
    folder = tmp_path / "weight_v000001"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps(example["index"]))
    for name, content in example["files"].items():
        (folder / name).write_bytes(bytes.fromhex(content))
    return (*request.param, folder)


def test_a_frozen_folder_is_read(golden, tmp_path):
    _, _, folder = golden
    apply_delta(folder, write(tmp_path / "base", tensors(0)), tmp_path / "out")
    truth = write(tmp_path / "truth", tensors(1))
    for path in truth.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_the_same_change_is_written_as_it_was_frozen(golden, tmp_path):
    encoding, checksum, folder = golden
    base, truth = write(tmp_path / "base", tensors(0)), write(tmp_path / "truth", tensors(1))
    assert write_delta(base, truth, tmp_path / "out", version=1, base_version=0, encoding=encoding, checksum=checksum)
    assert json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text()) == json.loads(
        (folder / "model.safetensors.index.json").read_text()
    )
    assert unpacked(tmp_path / "out") == unpacked(folder)
