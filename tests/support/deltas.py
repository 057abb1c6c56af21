"""Deltas between made-up tensors, by the code that makes them for real, and tensors as torch and numpy have them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from patchswarm.daemon.local.delta_file import Delta
from patchswarm.daemon.local.tensors import NUMPY, TORCH, storage_shape
from patchswarm.storage.checkpoint import scan
from patchswarm.storage.delta import common_tensors, compare, write_delta
from patchswarm.storage.files import Files
from patchswarm.storage.mapped import MappedFiles

from .checkpoints import BITS
from .streams import Tensor, safetensors_bytes


def delta_bytes(before: dict[str, Tensor], after: dict[str, Tensor], **words: str) -> bytes:
    """The delta's whole file."""
    with tempfile.TemporaryDirectory() as root:
        files = []
        for name, tensors in (("a", before), ("b", after)):
            folder = Path(root, name)
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
            with scan(folder) as source:
                files.append(MappedFiles(folder, source.layout, Files(), writable=False))
        common = common_tensors(files[0].layout, files[1].layout)
        given = {
            "format": "patchswarm delta 1",
            "stream": "qwen",
            "from": "1",
            "from_manifest": "a" * 64,
            "to": "2",
            "to_manifest": "b" * 64,
            "label": "step 2",
        }
        with write_delta(common, compare(common, *files), Path(root), given | words, 1) as out:
            out.seek(0)
            return out.read()


def delta_between(before: dict[str, Tensor], after: dict[str, Tensor], **words: str) -> Delta:
    """The same, as its reader has it."""
    return Delta(np.frombuffer(bytearray(delta_bytes(before, after, **words)), np.uint8))


def every_dtype(seed: int, steps: int, shape: tuple[int, ...] = (16, 24)) -> dict[str, Tensor]:
    """A tensor of each dtype, random bits, some of which move at each step; and the odd shapes."""
    random = np.random.default_rng(seed)
    tensors: dict[str, Tensor] = {}
    count = int(np.prod(shape))
    for dtype, bits in BITS.items():
        data = random.integers(0, 2 if dtype == "BOOL" else 256, count * bits // 8, dtype=np.uint8)
        for step in range(steps):
            moves = np.random.default_rng((seed, step, bits)).random(data.size) < 0.03
            data[moves] ^= 1
        tensors[dtype] = (dtype, shape, data.tobytes())
    tensors["scalar"] = ("F64", (), bytes([steps] * 8))
    tensors["empty"] = ("F16", (0, 3), b"")
    return tensors


def specials(flip: bool) -> Tensor:
    """BF16: NaNs with payloads, infinities and both zeros, moved about when `flip`."""
    bits = np.array([0x7FC0, 0x7FC1, 0xFFFF, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x0001], np.uint16)
    return "BF16", (8,), (np.roll(bits, 3) if flip else bits).tobytes()


def as_numpy(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Writable arrays as `Tensors` gives them."""
    made = {}
    for name, (dtype, shape, data) in tensors.items():
        array = np.frombuffer(bytearray(data), NUMPY.get(dtype, "u1"))
        made[name] = array.reshape(storage_shape(list(shape), array.size))
    return made


def as_torch(tensors: dict[str, Tensor]):
    """Tensors as torch has them."""
    import torch

    made = {}
    for name, (dtype, shape, data) in tensors.items():
        kind = getattr(torch, TORCH.get(dtype, "uint8"))
        if data:
            tensor = torch.frombuffer(bytearray(data), dtype=kind)
            made[name] = tensor.reshape(storage_shape(list(shape), tensor.numel()))
        else:
            made[name] = torch.empty(shape, dtype=kind)
    return made
