"""A stand-in for a trainer: AdamW in numpy on real weights, FP32 masters, BF16 checkpoints.

The weights are real; the gradients are drawn, but shaped like real ones: sums of outer products over the tokens of a
batch, partly the same from step to step, and in a token table only the rows of tokens that occur. What reaches the
served BF16 values is then as sparse as in a real run, although every gradient and every master is dense.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Words = NDArray[np.uint16]

BETA1, BETA2, EPSILON, DECAY = 0.9, 0.999, 1e-8, 0.01
TOKENS = 64
"""Tokens per batch: the rank of a gradient."""
WARM_UP = 6
"""Gradients from which the moments of Adam start, as if training had gone on for long."""


@dataclass
class Parameter:
    """One trained tensor: its FP32 master, Adam's two moments, and the part of its gradient that stays."""

    master: Floats
    mean: Floats
    square: Floats
    trend: tuple[Floats, Floats] | Floats
    token_table: bool


@dataclass(frozen=True)
class Tensor:
    """One tensor of a safetensors file as it lies there."""

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class Trainer:
    """Trains the safetensors of a Hugging Face checkpoint directory; everything else in it is passed on."""

    def __init__(self, model: Path, *, learning_rate: float = 1e-6, seed: int = 1) -> None:
        self._model = model
        self._rate = np.float32(learning_rate)
        self._random = np.random.default_rng(seed)
        self._steps = 0
        self._files = {path.relative_to(model): read_safetensors(path) for path in sorted(model.rglob("*.safetensors"))}
        self._parameters = {
            (file, name): self._parameter(tensor)
            for file, (tensors, _) in self._files.items()
            for name, tensor in tensors.items()
            if tensor.dtype in ("F32", "BF16")
        }

    def step(self) -> None:
        """One step of AdamW on every parameter."""
        self._steps += 1
        for parameter in self._parameters.values():
            gradient = self._gradient(parameter)
            parameter.mean += np.float32(1 - BETA1) * (gradient - parameter.mean)
            parameter.square += np.float32(1 - BETA2) * (gradient * gradient - parameter.square)
            update = np.sqrt(parameter.square)
            update += np.float32(EPSILON)
            np.divide(parameter.mean, update, out=update)
            update += np.float32(DECAY) * parameter.master
            update *= self._rate
            parameter.master -= update

    def write(self, directory: Path) -> None:
        """Write a whole checkpoint, trained tensors as BF16. `directory` must not exist."""
        shutil.copytree(self._model, directory, ignore=shutil.ignore_patterns("*.safetensors"))
        for file, (tensors, metadata) in self._files.items():
            served = {
                name: Tensor("BF16", tensor.shape, to_bf16(self._parameters[file, name].master).view(np.uint8))
                if (file, name) in self._parameters
                else tensor
                for name, tensor in tensors.items()
            }
            write_safetensors(directory / file, served, metadata)
        state = {"global_step": self._steps, "learning_rate": float(self._rate)}
        (directory / "trainer_state.json").write_text(json.dumps(state, indent=2) + "\n")

    def _parameter(self, tensor: Tensor) -> Parameter:
        rows, columns = tensor.shape[0] if tensor.shape else 1, int(np.prod(tensor.shape[1:], dtype=np.int64))
        if tensor.dtype == "F32":
            master = tensor.data.view(np.float32).copy()
        else:  # a master lies anywhere between the rounding boundaries of its BF16 value
            low = self._random.integers(-(2**15) + 1, 2**15, tensor.data.size // 2, dtype=np.int32)
            master = ((tensor.data.view(np.uint16).astype(np.int32) << 16) + low).view(np.float32)
        master = master.reshape(rows, columns)
        matrix = rows > 1 and columns > 1
        trend = (self._normal(4, rows), self._normal(4, columns)) if matrix else self._normal(rows, columns)
        parameter = Parameter(
            master, np.zeros_like(master), np.zeros_like(master), trend, token_table=rows > 16 * columns > 16
        )
        for _ in range(WARM_UP):
            gradient = self._gradient(parameter)
            parameter.mean += np.float32(1 - BETA1) * (gradient - parameter.mean)
            parameter.square += gradient * gradient / np.float32(WARM_UP)
        parameter.mean /= np.float32(1 - BETA1**WARM_UP)
        return parameter

    def _gradient(self, parameter: Parameter) -> Floats:
        rows, columns = parameter.master.shape
        if not isinstance(parameter.trend, tuple):
            return parameter.trend + self._normal(rows, columns)
        errors, inputs = parameter.trend
        if parameter.token_table:  # words come with Zipf's law
            tokens = np.minimum(self._random.zipf(1.3, 8 * TOKENS), rows) - 1
            gradient = np.zeros((rows, columns), np.float32)
            np.add.at(gradient, tokens, errors[:, tokens].T @ inputs + self._normal(tokens.size, columns))
            return gradient
        # mostly noise: a batch says little about the direction that stays
        batch_errors, batch_inputs = self._normal(TOKENS, rows), self._normal(TOKENS, columns)
        return errors.T @ inputs + (batch_errors.T @ batch_inputs) * np.float32(TOKENS**-0.5 * 6)

    def _normal(self, rows: int, columns: int) -> Floats:
        return self._random.standard_normal((rows, columns), dtype=np.float32)


def to_bf16(values: Floats) -> Words:
    """BF16 bit patterns of `values`, rounded to nearest, ties to even; NaNs stay NaNs."""
    bits = values.ravel().view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> 16).astype(np.uint16)
    nan = np.isnan(values.ravel())
    rounded[nan] = (bits[nan] >> 16).astype(np.uint16) | np.uint16(0x0040)
    return rounded


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name and the metadata of a safetensors file; the data is mapped, not read."""
    raw = np.memmap(path, np.uint8, "r")
    start = 8 + int(raw[:8].view("<u8")[0])
    header = json.loads(raw[8:start].tobytes())
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), raw[start + first : start + last])
    return tensors, metadata


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file: widest elements first, so that all stay aligned, as the library does."""
    order = sorted(tensors, key=lambda name: (-_width(tensors[name]), name))
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.data.size
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            tensors[name].data.tofile(file)


def _width(tensor: Tensor) -> int:
    count = int(np.prod(tensor.shape, dtype=np.int64))
    return tensor.data.size // count if count else 1
