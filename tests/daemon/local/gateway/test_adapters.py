"""LoRA adapters: a stream each, loaded under a stable name, replaced under it."""

import asyncio

import pytest


@pytest.fixture(params=["sglang", "vllm"])
def engine(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
async def gateway(open_gateway, node, engine):
    await node.commit(1)
    await node.commit(11, stream="poet")
    running = await open_gateway(engine, adapters={"poet": "poet"})
    await running.at(1)
    await adapter_at(running, 11)
    return running


def adapter_at(gateway, version):
    return gateway.until(
        lambda s: s.streams[1].applied and s.streams[1].applied.version == version and s.state == "idle"
    )


async def test_an_adapter_is_loaded_under_its_name_and_replaced(gateway, node, engine):
    assert engine.adapters == {"poet": str(node.slots / "poet" / "v11")}
    await node.commit(12, stream="poet")
    await adapter_at(gateway, 12)
    assert engine.adapters == {"poet": str(node.slots / "poet" / "v12")}
    assert gateway.status.applied.version == 1


async def test_requests_for_the_adapter_name_its_versions_others_the_models(gateway, node):
    await node.announce(12, stream="poet")
    asked = asyncio.create_task(
        gateway.generate("/v1/completions", model="poet", weight_version={"min_version": 12, "wait_s": 20})
    )
    assert (await gateway.generate("/v1/completions", model="model")).json()["weight_version_end"] == 1
    await node.commit(12, stream="poet")
    assert (await asked).json()["weight_version_start"] == 12


async def test_an_adapter_that_an_earlier_gateway_loaded_is_replaced(open_gateway, node, engine):
    engine.adapters["poet"] = "/from/before"
    await node.commit(1)
    await node.commit(11, stream="poet")
    gateway = await open_gateway(engine, adapters={"poet": "poet"})
    await adapter_at(gateway, 11)
    assert engine.adapters == {"poet": str(node.slots / "poet" / "v11")}


async def test_a_failed_adapter_leaves_the_model_serving(gateway, node, engine):
    path = "/v1/load_lora_adapter" if engine.kind == "vllm" else "/load_lora_adapter"
    engine.faults[path] = ["refuse"] * 1000
    await node.commit(12, stream="poet")
    status = await gateway.until(lambda s: s.last_error is not None)
    assert not status.ready
    assert (await gateway.generate("/v1/completions", model="model")).json()["weight_version_end"] == 1
    asked = {"model": "poet", "weight_version": {"min_version": 11, "wait_s": 0}}
    assert (await gateway.generate("/v1/completions", **asked)).status == 409
    engine.faults.clear()
    await adapter_at(gateway, 12)


async def test_an_adapter_waits_for_the_requests_that_use_it_and_for_no_other(gateway, node, engine):
    await engine.allow(0)
    poet = asyncio.create_task(gateway.generate("/v1/completions", model="poet"))
    await engine.until(lambda: len(engine.running) == 1)
    other = asyncio.create_task(gateway.generate("/v1/completions", model="model"))
    await engine.until(lambda: len(engine.running) == 2)
    await node.commit(12, stream="poet")
    await gateway.until(lambda s: s.state == "pausing")
    assert engine.adapters["poet"].endswith("v11")
    engine.aborted.append(next(iter(engine.running)))
    await engine.tell()
    await adapter_at(gateway, 12)
    await engine.allow(None)
    assert (await poet).status == (await other).status == 200


async def test_lora_path_names_the_adapter_on_sglangs_own_route(open_gateway, node, sglang):
    await node.commit(1)
    await node.commit(11, stream="poet")
    gateway = await open_gateway(sglang, adapters={"poet": "poet"})
    await adapter_at(gateway, 11)
    answer = (await gateway.generate(lora_path="poet")).json()
    assert answer["meta_info"]["weight_version_end"] == 11
    assert set(answer["output_ids"]) == {11}
