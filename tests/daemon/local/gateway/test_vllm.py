"""Requests and versions through a gateway before the vLLM contract server."""

import asyncio

import pytest


@pytest.fixture
async def gateway(open_gateway, node, vllm):
    await node.commit(1)
    running = await open_gateway(vllm)
    await running.at(1)
    return running


async def test_weights_are_reloaded_in_every_worker_labelled_and_read_back(gateway, node, vllm):
    vllm.calls.clear()
    await node.commit(2)
    await gateway.at(2)
    assert vllm.calls == [
        ("/pause", {"mode": "keep"}),
        (
            "/collective_rpc",
            {
                "method": "reload_weights",
                "kwargs": {"weights_path": str(node.slots / "qwen" / "v2"), "is_checkpoint_format": True},
            },
        ),
        ("/update_weight_version", {"new_version": "2"}),
        ("/reset_prefix_cache", {}),
        ("/resume", {}),
    ]
    assert vllm.weights == 2
    assert not vllm.paused


async def test_answers_say_which_weights_made_them(gateway):
    answer = await gateway.generate("/v1/completions", model="model", max_tokens=2)
    assert answer.json()["choices"][0]["text"] == "1 1 "
    assert answer.json()["weight_version_start"] == answer.json()["weight_version_end"] == 1
    events = (await gateway.generate("/v1/completions", stream=True, max_tokens=2)).events()
    assert ["weight_version_end" in each for each in events[:-1]] == [False, True]


async def test_a_version_change_in_mid_stream_is_visible(gateway, node, vllm):
    await vllm.allow(1)
    asked = asyncio.create_task(gateway.generate("/v1/completions", stream=True, max_tokens=2))
    await vllm.until(lambda: list(vllm.running.values()) == [1])
    await node.commit(2)
    await gateway.at(2)
    await vllm.allow(None)
    events = (await asked).events()
    assert [each["choices"][0]["text"] for each in events[:-1]] == ["1 ", "2 "]
    assert (events[1]["weight_version_start"], events[1]["weight_version_end"]) == (1, 2)


async def test_prefixes_are_kept_apart_by_salt(gateway, vllm):
    await gateway.generate("/v1/completions", cache_salt="tenant")
    await gateway.generate("/v1/completions")
    first, second = (each["cache_salt"] for each in vllm.generated)
    assert first.endswith(";tenant")
    assert second.startswith("wv1.1.")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_closes_the_connection_to_the_engine(gateway, vllm, stream):
    await vllm.allow(0)
    asked = asyncio.create_task(gateway.generate("/v1/completions", stream=stream))
    await vllm.until(lambda: vllm.running)
    asked.cancel()
    await vllm.until(lambda: vllm.broken_off == 1 and not vllm.running)


async def test_quiesced_the_engine_itself_waits_for_its_last_request(open_gateway, node, vllm):
    await node.commit(1)
    gateway = await open_gateway(vllm, quiesce=True)
    await gateway.at(1)
    await node.commit(2)
    await gateway.at(2)
    assert [query for path, query in vllm.calls if path == "/pause"] == [{"mode": "wait"}, {"mode": "wait"}]


@pytest.mark.parametrize(
    ("path", "fault"),
    [("/collective_rpc", "refuse"), ("/collective_rpc", "no_workers"), ("/update_weight_version", "no_label")],
)
async def test_a_load_that_cannot_be_confirmed_does_not_move_the_label(gateway, node, vllm, path, fault):
    vllm.faults[path] = [fault] * 3
    vllm.faults["/pause"] = ["", "hang"]  # the next attempt waits until the test has looked
    await node.commit(2)
    status = await gateway.until(lambda s: s.last_error is not None)
    assert status.applied is None
    assert (await gateway.generate("/v1/completions")).status == 503


async def test_the_last_attempt_frees_every_cached_block(gateway, node, vllm):
    vllm.faults["/collective_rpc"] = ["refuse", "refuse"]
    await node.commit(2)
    await gateway.at(2)
    assert ("/reset_prefix_cache", {"reset_running_requests": "true"}) in vllm.calls


async def test_an_engine_that_was_started_anew_is_loaded_again(gateway, vllm):
    await vllm.stop()
    await gateway.until(lambda s: not s.ready)
    await vllm.start()
    await gateway.until(lambda s: len(s.moves) == 2)
    await gateway.at(1)
    assert vllm.weights == 1


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/v1/load_lora_adapter", "/sleep"])
async def test_routes_that_change_weights_are_the_gateways_own(gateway, path):
    assert (await gateway.ask(path, {})).status == 403
