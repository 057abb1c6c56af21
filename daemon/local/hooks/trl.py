"""TRL, and every other trainer with transformers' callbacks: checkpoints, or the weights themselves, become versions.

    trainer = GRPOTrainer(..., callbacks=[PatchswarmCallback("qwen", every_steps=1, dtype=torch.bfloat16)])

transformers is not imported: what it calls is there, by the names that it documents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import BadInputError
from ..trainer.publisher import Publisher, share
from .settings import publisher_for


class PatchswarmCallback:
    """A TrainerCallback that publishes.

    Without `every_steps`: the folder of each checkpoint that the trainer saves, which works with every kind of
    parallelism and with adapters. With it: the model's own state dict after so many steps, without a checkpoint on
    disk; FSDP2's DTensors are gathered one by one, each rank writing its share. `version` is the newest version's
    number, on the first rank.
    """

    def __init__(
        self,
        stream: str | Publisher | None = None,
        *,
        every_steps: int | None = None,
        dtype: Any = None,
        keep: tuple[str, ...] = (),
        label: str = "step {step}",
    ) -> None:
        if every_steps is not None and every_steps < 1:
            raise BadInputError(f"every_steps={every_steps}: give a number of steps, or None for saved checkpoints")
        self.version: int | None = None
        self._publisher = stream if isinstance(stream, Publisher) else None
        self._stream = stream if isinstance(stream, str) else None
        self._every_steps = every_steps
        self._dtype = dtype
        self._keep = keep
        self._label = label

    @property
    def publisher(self) -> Publisher:
        """Made when it is first needed: the trainer may run elsewhere than where the callback was made."""
        if self._publisher is None:
            self._publisher = publisher_for(self._stream)
        return self._publisher

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """A checkpoint has been saved, in the folder that transformers gives it."""
        if self._every_steps is None and state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.version = self.publisher.publish(folder, label=self._labelled(state))
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> Any:
        """A step has been made."""
        del args
        if self._every_steps is not None and state.global_step % self._every_steps == 0:
            self._publish_model(
                getattr(model, "module", model), self._labelled(state), first=state.is_world_process_zero
            )
        return control

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Every other event, those of later versions too: nothing to do."""
        if name.startswith("on_"):
            return _ignore
        raise AttributeError(name)

    def _publish_model(self, model: Any, label: str, *, first: bool) -> None:
        if hasattr(model, "peft_config"):
            raise BadInputError(
                "the model has adapters, whose names are not those that engines load: leave every_steps out, and the "
                "adapter is published as the trainer saves it"
            )
        if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
            raise BadInputError(
                "DeepSpeed ZeRO-3 holds a part of each weight: leave every_steps out and set "
                "stage3_gather_16bit_weights_on_model_save, and saved checkpoints are published"
            )
        state = model.state_dict()
        if any(hasattr(tensor, "full_tensor") for tensor in state.values()):
            self._publish_shares(state, label)
        elif first:
            self.version = self.publisher.publish(state, label=label, dtype=self._dtype, keep=self._keep)

    def _publish_shares(self, state: Any, label: str) -> None:
        distributed = sys.modules["torch"].distributed
        rank, world = distributed.get_rank(), distributed.get_world_size()
        shares = share(state, rank, world)
        self.publisher.stage(shares, rank=rank, world=world, label=label, dtype=self._dtype, keep=self._keep)
        distributed.barrier()
        if rank == 0:
            self.version = self.publisher.commit(world=world, label=label)
        distributed.barrier()

    def _labelled(self, state: Any) -> str:
        return self._label.format(step=state.global_step)


def _ignore(_args: Any, _state: Any, control: Any, **_: Any) -> Any:
    return control
