"""A causal language model small enough for a test: its configuration, how it is trained, and how it makes tokens.

The engine and whoever checks the engine make tokens by the same code, one sequence at a time and on one thread, so the
same weights give the same tokens and the same log-probabilities to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCAB = 257
"""Every byte, and the end."""


@dataclass(frozen=True)
class Token:
    """One token, and the log of its probability when it was made."""

    id: int
    logprob: float

    @property
    def text(self) -> str:
        """It, readable: the model has not learned to write."""
        return f"{self.id} "


def new_model(seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 with random weights, FP32."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        use_cache=True,
    )
    return Qwen2ForCausalLM(config).eval()


class Trainer:
    """FP32 masters, AdamW, next-token loss on random text. Of what it serves, BF16, a step moves a few percent."""

    def __init__(self, seed: int, learning_rate: float = 5e-6) -> None:
        self.model = new_model(seed)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate)
        self._random = torch.Generator().manual_seed(seed)
        self.steps = 0

    def step(self) -> None:
        """One step on one batch."""
        tokens = torch.randint(0, VOCAB, (4, 32), generator=self._random)
        self.model.train()
        loss = self.model(input_ids=tokens, labels=tokens).loss
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.model.eval()
        self.steps += 1

    def served(self) -> nn.Module:
        """The model as it is served now, its own copy."""
        model = new_model(0).to(torch.bfloat16)
        model.load_state_dict({name: value.to(torch.bfloat16) for name, value in self.model.state_dict().items()})
        return model

    def write(self, directory: Path) -> Path:
        """Write the served model as a checkpoint directory."""
        directory.mkdir(parents=True)
        self.model.config.save_pretrained(directory)
        tensors = {name: value.contiguous() for name, value in self.served().state_dict().items()}
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        return directory


class Sequence:
    """One answer in the making. `next` makes one token; weights may change in between, as they do in an engine."""

    def __init__(self, model: nn.Module, prompt: list[int], temperature: float, seed: int) -> None:
        self._model = model
        self._pending = prompt
        self._cache: object = None
        self._temperature = temperature
        self._random = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def next(self) -> Token:
        """The next token: the likeliest at temperature 0, else drawn."""
        output = self._model(input_ids=torch.tensor([self._pending]), cache=self._cache, use_cache=True)
        self._cache = output.cache
        logprobs = torch.log_softmax(output.logits[0, -1].float(), -1)
        if self._temperature == 0:
            token = int(logprobs.argmax())
        else:
            weights = torch.softmax(logprobs / self._temperature, -1)
            token = int(torch.multinomial(weights, 1, generator=self._random))
        self._pending = [token]
        return Token(token, float(logprobs[token]))


def complete(model: nn.Module, prompt: list[int], count: int, *, temperature: float = 0, seed: int = 0) -> list[Token]:
    """A whole answer of `count` tokens."""
    sequence = Sequence(model, prompt, temperature, seed)
    return [sequence.next() for _ in range(count)]


def tokens_of(text: str) -> list[int]:
    """A prompt's tokens: its bytes."""
    return list(text.encode()) or [VOCAB - 1]


def tokens_of_chat(messages: list[dict[str, str]]) -> list[int]:
    """A conversation's tokens."""
    return tokens_of("".join(f"{message['role']}: {message['content']}\n" for message in messages))


def parameters_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Its tensors by the checkpoint's names."""
    yield from model.state_dict().items()
