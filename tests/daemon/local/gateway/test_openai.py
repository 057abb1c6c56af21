"""Any other server: told of new weights at its own path, or not at all."""

import json

import pytest
from aiohttp import web
from daemon.local.contract_engine import read_weights
from daemon.local.contract_vllm import ContractVllm


class OtherServer(ContractVllm):
    """OpenAI's completions, and one path of its own for weights."""

    kind = "openai"

    def routes(self, app):
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/weights", self.reload)

    async def reload(self, request):
        body = json.loads(await request.text())
        self.calls.append((request.path, body))
        if await self.fault(request.path) == "other_version":
            return web.json_response({"weight_version": "0"})
        self.weights = read_weights(body["model_path"])
        return web.json_response({"weight_version": body["weight_version"]})


@pytest.fixture
async def server():
    async with OtherServer() as engine:
        yield engine


async def test_it_is_told_of_new_weights_when_no_request_runs(open_gateway, node, server):
    await node.commit(1)
    gateway = await open_gateway(server, reload_path="/weights")
    await gateway.at(1)
    await node.commit(2)
    await gateway.at(2)
    assert server.calls[-1] == (
        "/weights",
        {"model_path": str(node.slots / "qwen" / "v2"), "weight_version": "2"},
    )
    answer = (await gateway.generate("/v1/completions", weight_version={"exact_version": 2})).json()
    assert answer["weight_version_end"] == 2
    assert "cache_salt" not in server.generated[0]
    assert "weight_version" not in server.generated[0]
    assert (await gateway.ask("/weights", {})).status == 403


async def test_what_it_answers_must_name_the_version(open_gateway, node, server):
    await node.commit(1)
    server.faults["/weights"] = ["other_version"]
    gateway = await open_gateway(server, reload_path="/weights")
    status = await gateway.at(1)
    assert status.moves[-1].loads == 2


async def test_without_such_a_path_requests_pass_and_versions_are_refused(open_gateway, node, server):
    await node.commit(1)
    gateway = await open_gateway(server)
    await gateway.until(lambda s: s.streams[0].held == [1] and "asked" not in str(s.reasons))
    assert "weight_version_end" not in (await gateway.generate("/v1/completions")).json()
    answer = await gateway.generate("/v1/completions", weight_version={"min_version": 1})
    assert answer.status == 409
    assert "cannot be moved" in answer.json()["message"]
