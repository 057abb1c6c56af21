"""The API's own description, held against the running daemon."""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import pytest
from daemon.single import head_of
from support.streams import model, write_tree

SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"
STREAM = "qwen"

# Events never end, and a wait may take an hour: neither is what is asked here.
CONFIG = """
[parameters]
"query.wait" = 0
"path.stream" = "qwen"

[[operations]]
include-path-regex = "/events$"
enabled = false
"""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture
async def head(root):
    async with head_of(root, tcp=True) as running:
        await running.publish(STREAM, write_tree(root / "trainer", model(1)))
        yield running


def address_of(single):
    return f"http://{single.config.local.tcp}"


def authorization(single):
    return f"Bearer {single.config.local.admin_token_file.read_text().strip()}"


async def test_it_names_every_endpoint(head):
    async with (
        aiohttp.ClientSession(headers={"Authorization": authorization(head)}) as session,
        session.get(address_of(head) + "/openapi.json") as answer,
    ):
        document = json.loads(await answer.text())
    assert document["openapi"] == "3.1.0"
    assert {"/v1/streams/{stream}/version", "/v1/peers", "/metrics", "/openapi.json"} <= document["paths"].keys()


@pytest.mark.timeout(300)
async def test_the_daemon_answers_as_it_says(head, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    process = await asyncio.create_subprocess_exec(
        SCHEMATHESIS, "--config-file", tmp_path / "schemathesis.toml", "run", address_of(head) + "/openapi.json",
        "--header", f"Authorization: {authorization(head)}", "--checks", CHECKS, "--max-examples", "20",
        "--phases", "examples,coverage,fuzzing", "--seed", "7", "--request-timeout", "20", "--no-color",
        cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    print(said.decode())
    assert process.returncode == 0
