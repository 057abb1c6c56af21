"""docs/gateway.md's commands bring an engine to a version, and its request is answered with that version's weights."""

import asyncio
import json

import numpy as np
import pytest
from daemon.local.contract_sglang import ContractSglang
from daemon.single import head_of
from local_fleet import free_port
from safetensors.numpy import save_file

from .machines import Machine
from .markdown import Page
from .plan import Run, plan_of

TO_RUN = [
    block for block in Page("docs/gateway.md").blocks if block.language == "sh" and isinstance(plan_of(block), Run)
]


@pytest.fixture
async def engine():
    """SGLang, as its sources document it; its tokens name the weights that made them."""
    engine = ContractSglang()
    await engine.start()
    yield engine
    await engine.stop()


async def test_the_page_leads_to_an_answer_that_says_which_weights_made_it(root, engine):
    gateway, ask = TO_RUN
    checkpoint = root / "checkpoint"
    checkpoint.mkdir()
    save_file({"w": np.full(4096, 1, np.float32)}, checkpoint / "model.safetensors")
    (checkpoint / "weights.txt").write_text("1")
    listen = f"127.0.0.1:{free_port()}"
    words = {"http://127.0.0.1:30000": engine.url, "0.0.0.0:9000": listen, "127.0.0.1:9000": listen}
    async with head_of(root) as head:
        env = {"PATCHSWARM_HOME": str(head.home.root)}
        machine = Machine(root, "head", {"head": head.config.node.listen}, env=env, words=words)
        try:
            await asyncio.to_thread(machine.keep, gateway, "gateway ready")
            await head.publish("qwen", checkpoint)
            answer = json.loads(await asyncio.to_thread(machine.shell, ask))
        finally:
            await asyncio.to_thread(machine.close)
    assert answer["weight_version"] == "1"
    assert answer["weight_version_start"] == answer["weight_version_end"] == 1
