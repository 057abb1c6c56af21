"""The examples of the reference pages run as they stand, beside a head that has two versions of a stream."""

import asyncio
import importlib.util

import numpy as np
import pytest
from daemon.single import head_of
from support.checkpoints import model, stepped, write

from .machines import Machine
from .markdown import Page
from .plan import EXAMPLES, Run, plan_of

STUBS = {
    "trl.py": (
        "class GRPOTrainer:\n"
        "    def __init__(self, model, callbacks):\n"
        "        self.callbacks = callbacks\n"
        "    def train(self):\n"
        "        for callback in self.callbacks:\n"
        "            callback.on_train_begin(None, None, None, model=None)\n"
    ),
    "openrlhf/__init__.py": "",
    "openrlhf/utils/__init__.py": (
        "class Strategy:\n"
        "    def save_model(self, model, tokenizer, output_dir, **kwargs): pass\n"
        "    def is_rank_0(self): return True\n"
        "def get_strategy(args):\n"
        "    return Strategy()\n"
    ),
}
"""What the examples touch of frameworks that are not installed here."""


@pytest.fixture
async def machine(root):
    """A head that holds versions 1 and 2 of stream qwen, leased; checkpoints that lie about; frameworks' stand-ins."""
    for name, text in STUBS.items():
        (root / "stubs" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "stubs" / name).write_text(text)
    tensors = model(1)
    for number in (41, 42, 43):
        write(root / "checkpoints" / f"step-{number}", tensors)
        tensors = stepped(tensors, np.random.default_rng(number))
    for folder in ("run17/step_1", "run18/step_1", "run17/broadcasts/step_1", "openrlhf/global_step1_hf"):
        (write(root / "checkpoints" / folder, tensors) / "STABLE").touch()
    async with head_of(root) as head:
        for version in (1, 2):
            await head.publish("qwen", root / "checkpoints" / f"step-{40 + version}", label=f"step {version}")
            await head.node.service.lease("qwen", version, 600)
        env = {"PATCHSWARM_HOME": str(head.home.root), "PYTHONPATH": str(root / "stubs")}
        machine = Machine(root, "head", {"head": head.config.node.listen}, env=env)
        try:
            yield machine
        finally:
            await asyncio.to_thread(machine.close)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
async def test_every_example_of_the_page_runs_as_it_stands(machine, name):
    left_out = []
    for block in Page(name).blocks:
        if block.language not in {"sh", "python"} or not isinstance(run := plan_of(block), Run):
            continue
        if "import torch\n" in block.text and importlib.util.find_spec("torch") is None:
            left_out.append(block.line)
        elif block.language == "python":
            await asyncio.to_thread(machine.python, block)
        else:
            await asyncio.to_thread(machine.shell, block, run.until)
    if left_out:
        pytest.skip(f"torch is not installed: pip install '.[torch]' to run the examples of lines {left_out}")
