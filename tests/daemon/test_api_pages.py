"""`docs/python-api.md` and `docs/http-api.md` are true: their examples run, and every endpoint has its line."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import model, stepped, write

from patchswarm.daemon.local.api import endpoints

from .single import head_of, short_path

DOCS = Path(__file__).parents[2] / "docs"


def examples(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
async def socket():
    """A head that holds versions 1 and 2 of a stream, leased."""
    with short_path() as root:
        async with head_of(root) as head:
            before = model(1)
            for number, tensors in ((1, before), (2, stepped(before, np.random.default_rng(1)))):
                await head.publish("qwen", write(root / f"c{number}", tensors), label=f"step {number}")
                await head.node.service.lease("qwen", number, 600)
            yield head.config.local.socket


@pytest.mark.parametrize("number", range(len(examples("python-api.md", "python"))))
async def test_every_python_example_runs_as_it_stands(socket, number):
    code = examples("python-api.md", "python")[number]
    env = {**os.environ, "PATCHSWARM_SOCKET": str(socket)}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_every_command_of_the_http_page_is_answered(socket, tmp_path):
    (script,) = examples("http-api.md", "sh")
    script = script.replace("curl -s", "curl -sS --fail-with-body")
    env = {**os.environ, "SOCKET": str(socket)}
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-ec", script],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "delta.safetensors").stat().st_size > 1000
    assert (tmp_path / "config.json").is_file()


def test_the_http_page_has_every_endpoint():
    pages = (DOCS / "http-api.md").read_text() + (DOCS / "operations.md").read_text()
    for endpoint in endpoints(None, None):
        path = re.sub(r":[^}]*}", "}", endpoint.path)
        tail = path.removeprefix("/v1/streams/{stream}") or path
        assert re.search(re.escape(tail) + r"[`?, ]", pages), f"{endpoint.method} {path}"
