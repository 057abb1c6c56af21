"""Small checkpoints for tests: real safetensors files, made and stepped in milliseconds."""

import hashlib
import json
from pathlib import Path

import numpy as np
from trainer import Tensor, write_safetensors

BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Every dtype that safetensors knows, and the bits of one element."""


def tensor(dtype, shape, random):
    """A tensor of random bytes: for floats that means NaNs, infinities and both zeros too."""
    size = int(np.prod(shape, dtype=np.int64)) * BITS[dtype] // 8
    if dtype == "BOOL":
        return Tensor(dtype, shape, random.integers(0, 2, size, dtype=np.uint8))
    return Tensor(dtype, shape, random.integers(0, 256, size, dtype=np.uint8))


def weights(shape, random, scale=0.02):
    """A BF16 tensor of normal values, as weights are."""
    values = random.normal(0, scale, shape).astype(np.float32)
    return Tensor("BF16", shape, (values.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8))


def model(seed=0, layers=4, width=256):
    """Tensors by name of a little language model: about 0.5 MB per layer at the default width."""
    random = np.random.default_rng(seed)
    tensors = {"embed.weight": weights((500, width), random)}
    for layer in range(layers):
        tensors[f"layers.{layer}.up.weight"] = weights((2 * width, width), random)
        tensors[f"layers.{layer}.down.weight"] = weights((width, 2 * width), random)
        tensors[f"layers.{layer}.norm.weight"] = weights((width,), random)
    return tensors


def stepped(tensors, random, fraction=0.01):
    """The tensors one training step on: that share of their bytes is changed, by one where it fits."""
    after = {}
    for name, before in tensors.items():
        data = before.data.copy()
        if data.size:
            chosen = random.integers(0, data.size, max(1, int(data.size * fraction)))
            data[chosen] ^= 1
        after[name] = Tensor(before.dtype, before.shape, data)
    return after


def write(directory: Path, tensors, *, shards=1, side=None):
    """Write a Hugging Face checkpoint directory: shards, their index, and side files by path."""
    directory.mkdir(parents=True)
    names = sorted(tensors)
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors, {"format": "pt"})
    else:
        files = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
        parts = {file: names[number::shards] for number, file in enumerate(files)}
        for file, part in parts.items():
            write_safetensors(directory / file, {name: tensors[name] for name in part}, {"format": "pt"})
        index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    for path, content in {"config.json": b'{"architectures": ["Tiny"]}\n', **(side or {})}.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def files_of(directory: Path):
    """SHA-256 of every file below a directory by its path, symlinks followed, a slot's own state files aside."""
    sums = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not name.startswith(".patchswarm"):
            sums[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return sums
