"""`docs/trainers.md` is true: its Python runs, its commands are understood, its hooks can be imported."""

import asyncio
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from patchswarm.daemon.cli import main
from patchswarm.daemon.local.client import Client

from .single import head_of, short_path

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text()
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


def examples(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def commands():
    lines = "\n".join(examples("sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("patchswarm ")]


@pytest.fixture
async def environment(tmp_path):
    """A head, the frameworks' stand-ins, and what an example finds in its environment."""
    for name, text in STUBS.items():
        (tmp_path / "stubs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stubs" / name).write_text(text)
    with short_path() as root:
        async with head_of(root) as head:
            yield {
                **os.environ,
                "PATCHSWARM_SOCKET": str(head.config.local.socket),
                "PYTHONPATH": str(tmp_path / "stubs"),
            }


@pytest.mark.parametrize("number", range(len(examples("python"))))
async def test_every_python_example_runs_as_it_stands(environment, number):
    code = examples("python")[number]
    if "import torch\n" in code and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install '.[torch]' to run this example")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    client = Client(environment["PATCHSWARM_SOCKET"])
    published = {status.stream: status.current.version for status in await asyncio.to_thread(client.streams)}
    if "Publisher(" in code:
        stream = re.search(r'Publisher\("(\w+)"', code)[1]
        assert published == {stream: 3 if "range(3)" in code else 1}


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_command_is_understood(arguments):
    command = main.commands[arguments[0]]
    command.make_context(arguments[0], arguments[1:])  # a wrong option or value is a UsageError


@pytest.mark.parametrize("path", sorted(set(re.findall(r"patchswarm\.daemon\.local\.hooks\.[a-z.]+[a-z_]*", PAGE))))
def test_every_hook_that_is_named_can_be_loaded(path):
    if path.count(".") == 5:  # a function in a module
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
    else:
        importlib.import_module(path)
