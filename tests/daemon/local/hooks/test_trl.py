"""transformers' callbacks: each event gets (args, state, control, **kwargs), and `model` among those."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.checkpoints import files_of, model, write
from support.trainer_head import tensors_of

from patchswarm.daemon.errors import BadInputError
from patchswarm.daemon.local.hooks.trl import PatchswarmCallback
from patchswarm.daemon.local.trainer.publisher import Publisher

BEFORE = ("on_init_end", "on_train_begin", "on_epoch_begin")
STEP = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end")


class Trainer:
    """Calls back as transformers' CallbackHandler does: whatever an event returns, unless None, is the new control."""

    def __init__(self, callback, output_dir, model=None, *, first=True):
        self.callback = callback
        self.model = model
        self.args = SimpleNamespace(output_dir=str(output_dir))
        self.state = SimpleNamespace(global_step=0, is_world_process_zero=first)
        self.control = SimpleNamespace()

    def call_event(self, event, **kwargs):
        result = getattr(self.callback, event)(
            self.args,
            self.state,
            self.control,
            model=self.model,
            processing_class=None,
            optimizer=None,
            lr_scheduler=None,
            train_dataloader=None,
            eval_dataloader=None,
            **kwargs,
        )
        assert result is None or result is self.control

    def train(self, steps, save=()):
        for event in BEFORE:
            self.call_event(event)
        for _ in range(steps):
            self.state.global_step += 1
            for event in STEP:
                self.call_event(event)
            if self.state.global_step in save:
                folder = f"{self.args.output_dir}/checkpoint-{self.state.global_step}"
                write_checkpoint(folder, self.state.global_step)
                self.call_event("on_save")
            self.call_event("on_log", logs={})
        self.call_event("on_evaluate", metrics={})
        self.call_event("on_prediction_step")
        self.call_event("on_an_event_of_a_later_version")
        self.call_event("on_train_end")


def write_checkpoint(folder, seed):
    write(Path(folder), model(seed=seed, layers=1, width=16), side={"optimizer.pt": b"not for engines"})


class Model:
    """A module's two methods that matter, over numpy."""

    def __init__(self, random):
        self.weights = {"up": random.normal(size=(4, 4)).astype(np.float32), "norm": np.ones(4, np.float32)}

    def state_dict(self):
        return self.weights

    def parameters(self):
        return iter(self.weights.values())


def test_saved_checkpoints_are_published_without_what_only_trainers_read(head, tmp_path):
    callback = PatchswarmCallback()
    Trainer(callback, tmp_path / "out").train(6, save=(2, 4))
    assert head.labels() == ["step 2", "step 4"]
    assert callback.version == 2
    truth = files_of(tmp_path / "out" / "checkpoint-4")
    assert files_of(head.path()) == {name: digest for name, digest in truth.items() if name != "optimizer.pt"}


def test_the_model_itself_is_published_after_so_many_steps(head, tmp_path, random):
    module = Model(random)
    callback = PatchswarmCallback("qwen", every_steps=2, dtype="float16", keep=("norm",), label="update {step}")
    Trainer(callback, tmp_path, SimpleNamespace(module=module), first=True).train(5, save=(4,))
    assert head.labels() == ["update 2", "update 4"]
    assert tensors_of(head.path())["up"] == ("F16", (4, 4), module.weights["up"].astype(np.float16).tobytes())
    assert tensors_of(head.path())["norm"][0] == "F32"


class Distributed:
    """torch.distributed of one rank; what is done at a barrier."""

    def __init__(self, rank, world):
        self.get_rank, self.get_world_size = (lambda: rank), (lambda: world)
        self.barriers = 0

    def barrier(self):
        self.barriers += 1


def test_ranks_of_fsdp_write_their_shares_and_the_first_commits(head, tmp_path, random, monkeypatch):
    class Sharded:
        """A DTensor's three members that matter."""

        def __init__(self, whole):
            self.whole, self.shape, self.dtype = whole, whole.shape, whole.dtype

        def full_tensor(self):
            return self.whole

    module = Model(random)
    truth = module.weights
    module.weights = {name: Sharded(array) for name, array in truth.items()}
    callbacks = [PatchswarmCallback("qwen", every_steps=1) for _ in range(2)]
    for rank in (1, 0):  # here one after the other: rank 0 commits when both have staged
        distributed = Distributed(rank, 2)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=type(None), distributed=distributed))
        Trainer(callbacks[rank], tmp_path, module, first=rank == 0).train(1)
        assert distributed.barriers == 2
    assert [callback.version for callback in callbacks] == [1, None]
    assert {name: data for name, (_, _, data) in tensors_of(head.path()).items()} == {
        name: array.tobytes() for name, array in truth.items()
    }


@pytest.mark.parametrize("every_steps", [None, 1])
def test_other_ranks_do_not_publish(head, tmp_path, random, every_steps):
    callback = PatchswarmCallback(Publisher("qwen", client=head.client), every_steps=every_steps)
    Trainer(callback, tmp_path, Model(random), first=False).train(2, save=(2,))
    assert head.labels() == []


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda module: setattr(module, "peft_config", {}), "has adapters"),
        (lambda module: setattr(module, "parameters", lambda: [SimpleNamespace(ds_id=1)]), "ZeRO-3"),
    ],
)
def test_models_whose_weights_are_not_whole_here_say_what_to_do(head, tmp_path, random, spoil, says):
    module = Model(random)
    spoil(module)
    with pytest.raises(BadInputError, match=f"{says}.*leave every_steps out"):
        Trainer(PatchswarmCallback(every_steps=1), tmp_path, module).train(1)
    assert head.labels() == []


def test_what_is_no_event_is_no_attribute():
    with pytest.raises(AttributeError):
        _ = PatchswarmCallback("qwen").save_state
    with pytest.raises(BadInputError, match="every_steps=0"):
        PatchswarmCallback("qwen", every_steps=0)
