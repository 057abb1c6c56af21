"""An engine that misbehaves: one clear error or the documented fall-back, never wrong weights under a right label."""

import asyncio

import pytest
from daemon.local.contract_sglang import ContractSglang

LOAD = "/update_weights_from_disk"


async def test_a_failed_load_is_tried_again(gateway, node, sglang):
    sglang.faults[LOAD] = ["refuse"]
    await node.commit(2)
    status = await gateway.at(2)
    assert status.moves[-1].loads == 2
    assert status.ready


async def test_a_load_that_fails_twice_is_done_in_full(gateway, node, sglang):
    sglang.faults[LOAD] = ["refuse", "garbage"]
    await node.commit(2)
    await gateway.at(2)
    full = [body for path, body in sglang.calls if path == LOAD][-1]
    assert (full["abort_all_requests"], full["load_format"]) == (True, "auto")


@pytest.mark.parametrize("fault", ["refuse", "garbage", "other_version", "label_only", "no_label"])
async def test_a_load_that_never_succeeds_leaves_the_node_not_ready_and_nobody_served(gateway, node, sglang, fault):
    sglang.faults[LOAD] = [fault] * 3
    # The next attempt would come a moment later: it waits here until the test has looked.
    sglang.faults[LOAD] += ["hang"]
    await node.commit(2)
    await gateway.until(lambda s: s.last_error is not None)
    health = await gateway.ask("/health")
    assert health.status == 503
    assert "loading version 2 failed" in health.json()["reasons"][0]
    for body in ({}, {"weight_version": {"min_version": 1}}):
        answer = await gateway.generate(**body)
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert answer.json()["error"]["type"] == "EngineUnavailable"
    assert not sglang.generated


async def test_after_a_load_that_failed_for_good_the_next_one_may_succeed(gateway, node, sglang):
    sglang.faults[LOAD] = ["refuse"] * 3
    await node.commit(2)
    status = await gateway.at(2)
    assert status.ready
    assert status.last_error is None
    assert (await gateway.generate()).json()["output_ids"][0] == 2


async def test_a_full_load_ends_what_was_in_the_engine_with_an_error_not_with_half_an_answer(gateway, node, sglang):
    await sglang.allow(0)
    whole = asyncio.create_task(gateway.generate(rid="whole"))
    streamed = asyncio.create_task(gateway.generate(rid="streamed", stream=True))
    await sglang.until(lambda: len(sglang.running) == 2)
    sglang.faults[LOAD] = ["refuse", "refuse"]
    await node.commit(2)
    answer = await whole
    assert answer.status == 503
    assert answer.json()["error"]["type"] == "WeightVersionMoved"
    assert (await streamed).events()[-1]["error"]["type"] == "WeightVersionMoved"
    await gateway.at(2)


async def test_what_was_in_the_engine_when_its_weights_became_unknown_gets_no_answer(gateway, node, sglang):
    await sglang.allow(0)
    asked = asyncio.create_task(gateway.generate(rid="r"))
    await sglang.until(lambda: sglang.running)
    sglang.faults["/continue_generation"] = ["refuse"] * 3
    await node.commit(2)
    answer = await asked
    assert answer.status == 503
    assert "did not resume with version 2" in answer.json()["error"]["message"]


async def test_an_engine_that_hangs_in_a_load_is_given_up_after_the_time_limit(open_gateway, node, sglang):
    await node.commit(1)
    gateway = await open_gateway(sglang, load_timeout_s=0.2)
    await gateway.at(1)
    sglang.faults[LOAD] = ["hang"]
    await node.commit(2)
    status = await gateway.at(2)
    assert status.moves[-1].loads == 2


async def test_an_engine_that_dies_in_a_load_is_loaded_when_it_is_back(gateway, node, sglang):
    sglang.faults[LOAD] = ["die"]
    await node.commit(2)
    await gateway.until(lambda s: s.last_error is not None)
    assert (await gateway.generate()).status == 503
    await sglang.start()
    await gateway.at(2)
    assert (await gateway.generate()).json()["output_ids"][0] == 2


async def test_an_engine_that_is_gone_is_503_with_retry_after(gateway, sglang):
    await sglang.stop()
    answer = await gateway.generate()
    assert answer.status == 503
    assert answer.headers["Retry-After"] == "1"
    assert answer.json()["error"]["type"] == "EngineUnavailable"
    status = await gateway.until(lambda s: not s.ready)
    assert "not available" in status.reasons[0]


async def test_an_engine_that_was_started_anew_serves_nothing_before_it_has_its_weights_again(gateway, sglang):
    await sglang.stop()
    assert (await gateway.generate()).status == 503
    sglang.faults[LOAD] = ["hang"]
    await sglang.start()
    await gateway.until(lambda s: s.state == "loading")
    assert sglang.weights == 0
    asked = asyncio.create_task(gateway.generate())
    assert (await asked).status == 503
    assert not sglang.generated


async def test_an_engine_that_was_replaced_unseen_is_noticed_by_its_label(gateway, sglang):
    sglang.weights, sglang.label, sglang.path = 0, "default", "/boot"
    await gateway.until(lambda s: len(s.moves) == 2)
    await gateway.at(1)
    assert sglang.weights == 1


async def test_an_engine_whose_label_was_set_without_weights_is_noticed_by_its_path(gateway, sglang):
    sglang.weights, sglang.path = 0, "/elsewhere"
    await gateway.until(lambda s: len(s.moves) == 2)
    assert sglang.weights == 1


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
async def test_an_answer_of_other_weights_than_the_label_is_an_error(gateway, sglang, path):
    sglang.faults[path] = ["other_version"]
    answer = await gateway.generate(path)
    assert answer.status == 502
    assert answer.json()["error"]["type"] == "WeightVersionMismatch"
    assert "'5000'" in answer.json()["error"]["message"]


async def test_a_stream_of_other_weights_than_the_label_ends_with_an_error(gateway, sglang):
    sglang.faults["/generate"] = ["other_version"]
    events = (await gateway.generate(stream=True)).events()
    assert events[-1]["error"]["type"] == "WeightVersionMismatch"


async def test_an_answer_that_is_garbage_is_502(gateway, sglang):
    sglang.faults["/generate"] = ["garbage"]
    answer = await gateway.generate()
    assert answer.status == 502
    assert answer.json()["error"]["type"] == "EngineGarbage"


async def test_a_body_that_is_garbage_is_400_and_reaches_no_engine(gateway, sglang):
    answer = await gateway.ask("/generate", data=b'{"text": ', headers={"Content-Type": "application/json"})
    assert answer.status == 400
    assert answer.json()["error"]["type"] == "InvalidRequest"
    assert not sglang.generated


async def test_an_engine_that_breaks_off_in_mid_stream_ends_it_with_an_error(gateway, sglang):
    sglang.faults["/v1/completions"] = ["die_in_answer"]
    events = (await gateway.generate("/v1/completions", stream=True)).events()
    assert events[-1]["error"]["type"] == "EngineUnavailable"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_hangs_in_an_answer_is_given_up_when_it_has_been_silent_for_too_long(
    open_gateway, node, sglang, stream
):
    await node.commit(1)
    gateway = await open_gateway(sglang, read_timeout_s=0.2)
    await gateway.at(1)
    await sglang.allow(1)
    answer = await gateway.generate(rid="r", stream=stream)
    error = answer.events()[-1] if stream else answer.json()
    assert error["error"]["type"] == "EngineUnavailable"
    assert "nothing for 0.2 s" in error["error"]["message"]
    await sglang.until(lambda: "r" in sglang.aborted)


async def test_an_engine_that_does_not_pause_keeps_its_old_weights_and_serves_on(gateway, node, sglang):
    sglang.faults["/pause_generation"] = ["refuse"] * 1000
    await node.commit(2)
    status = await gateway.until(lambda s: s.last_error is not None)
    assert status.state == "error"
    assert "/pause_generation" in status.last_error
    answer = await gateway.generate()
    assert answer.json()["output_ids"][0] == answer.json()["meta_info"]["weight_version_end"] == 1
    sglang.faults.clear()
    await gateway.at(2)


async def test_an_engine_that_does_not_resume_is_loaded_again(gateway, node, sglang):
    sglang.faults["/continue_generation"] = ["refuse"] * 3
    await node.commit(2)
    await gateway.until(lambda s: s.last_error is not None)
    await gateway.at(2)
    assert (await gateway.generate()).json()["output_ids"][0] == 2


async def test_a_lease_lost_during_the_load_means_that_the_weights_are_unknown(gateway, node, sglang):
    sglang.faults["/model_info"] = []
    load = sglang.update_weights_from_disk

    async def lose(request):
        node.end_leases()
        return await load(request)

    await sglang.stop()
    sglang.update_weights_from_disk = lose
    await sglang.start()
    await gateway.until(lambda s: "gone" in str(s.last_error))
    assert (await gateway.generate()).status == 503
    assert gateway.status.applied is None


async def test_a_version_that_is_withdrawn_before_it_was_proven_is_not_served_on(gateway, node):
    await node.commit(2, proven=False)
    await gateway.at(2)
    await node.withdraw()
    await gateway.until(lambda s: s.applied is None or s.applied.version == 1)
    await gateway.at(1)
    await node.commit(2)
    await gateway.at(2)


async def test_a_proven_version_is_served_on_whatever_becomes_of_the_daemons_copy(gateway, node):
    await node.commit(2)
    await gateway.at(2)
    await node.withdraw()
    await gateway.until(lambda s: s.streams[0].held == [1])
    assert (await gateway.generate()).json()["meta_info"]["weight_version_end"] == 2


async def test_without_the_daemon_what_is_applied_is_served_on(tmp_path, sglang):
    from daemon.local.gateway import host

    async with host.daemon(tmp_path) as (node, socket):
        await node.commit(1)
        opened = host.gateway(socket, engine_url=sglang.url)
        gateway = await opened.__aenter__()
        try:
            await gateway.at(1)
        except BaseException:
            await opened.__aexit__(None, None, None)
            raise
    try:
        answer = await gateway.generate(weight_version={"exact_version": 1})
        assert answer.json()["meta_info"]["weight_version_end"] == 1
        assert (await gateway.generate(weight_version={"min_version": 2, "wait_s": 0})).status == 409
    finally:
        await opened.__aexit__(None, None, None)


async def test_flushing_with_something_running_would_take_the_engine_down(sglang):
    """Of the contract: why the gateway never asks a load to flush."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        await sglang.allow(0)
        asked = asyncio.create_task(session.post(sglang.url + "/generate", json={"text": "a", "rid": "r"}))
        await sglang.until(lambda: sglang.running)
        with pytest.raises(aiohttp.ClientError):
            await session.post(sglang.url + LOAD, json={"model_path": "/x"})
        with pytest.raises(aiohttp.ClientError):
            await asked


async def test_an_engine_that_answers_garbage_when_asked_what_it_holds_is_not_trusted(gateway, sglang):
    assert isinstance(sglang, ContractSglang)
    sglang.faults["/model_info"] = ["garbage"] * 1000
    status = await gateway.until(lambda s: not s.ready)
    assert "not a JSON object" in status.reasons[0]
    assert (await gateway.generate()).status == 503
    sglang.faults.clear()
    await gateway.until(lambda s: s.ready)
