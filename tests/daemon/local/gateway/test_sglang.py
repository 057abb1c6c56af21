"""Requests and versions through a gateway before the SGLang contract server."""

import asyncio

import pytest

from patchswarm.daemon.local.gateway.choice import Staleness


async def test_an_answer_says_which_weights_made_it_in_meta_info_and_headers(gateway):
    answer = await gateway.generate(sampling_params={"max_new_tokens": 3})
    meta = answer.json()["meta_info"]
    assert answer.json()["output_ids"] == [1, 1, 1]
    assert (meta["weight_version"], meta["weight_version_start"], meta["weight_version_end"]) == ("1", 1, 1)
    assert answer.headers["X-Weight-Version-Start"] == answer.headers["X-Weight-Version-End"] == "1"


async def test_everything_else_in_an_answer_keeps_its_bytes(gateway):
    body = (await gateway.generate(sampling_params={"max_new_tokens": 2})).body.decode()
    assert '"output_token_logprobs":[[-0.12345678901234567,1,null],[-0.12345678901234567,1,null]]' in body
    assert '"routed_experts":"AAEC/+=="' in body
    assert '"e2e_latency":1.50e-3' in body


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_openai_answers_say_it_at_the_top_level(gateway, path):
    answer = (await gateway.generate(path, model="model", max_tokens=2)).json()
    assert (answer["weight_version"], answer["weight_version_start"], answer["weight_version_end"]) == ("1", 1, 1)
    assert answer["metadata"] == {"weight_version": "1"}


async def test_every_answer_of_a_batch_says_it(gateway):
    answers = (await gateway.generate(text=["a", "b"])).json()
    assert [each["meta_info"]["weight_version_end"] for each in answers] == [1, 1]


async def test_a_stream_says_it_in_its_last_chunk_and_passes_the_others_as_they_are(gateway):
    events = (await gateway.generate(stream=True, sampling_params={"max_new_tokens": 3})).events()
    assert events[-1] == "[DONE]"
    assert [("weight_version_start" in each["meta_info"]) for each in events[:-1]] == [False, False, True]
    assert events[2]["meta_info"]["weight_version_end"] == 1


async def test_an_openai_stream_says_it_in_its_last_chunk_and_beside_the_usage(gateway):
    answer = await gateway.generate(
        "/v1/chat/completions", stream=True, max_tokens=2, stream_options={"include_usage": True}
    )
    events = answer.events()
    assert ["weight_version_end" in each for each in events[:-1]] == [False, False, True, True]


async def test_a_chunk_is_passed_on_before_the_next_one_exists(gateway, sglang):
    await sglang.allow(1)
    async with gateway.session.post(gateway.url + "/generate", json={"text": "hi", "stream": True}) as response:
        first = await response.content.readuntil(b"\n\n")
        assert b'"output_ids":[1]' in first.replace(b" ", b"")
        await sglang.allow(None)
        assert b"[DONE]" in await response.read()


async def test_the_engine_gets_no_weight_version_but_an_id_and_a_key_for_its_cache(gateway, sglang):
    await gateway.generate(weight_version={"min_version": 1}, extra_key="tenant")
    sent = sglang.generated[0]
    assert "weight_version" not in sent
    assert sent["rid"]
    assert sent["extra_key"].startswith("wv1.1.")
    assert sent["extra_key"].endswith(";tenant")
    await gateway.generate(text=["a", "b"], extra_key=["one", "two"], rid=["r1", "r2"])
    assert [key.rpartition(";")[2] for key in sglang.generated[1]["extra_key"]] == ["one", "two"]
    assert sglang.generated[1]["rid"] == ["r1", "r2"]


async def test_prefixes_cached_under_other_weights_have_another_key(gateway, node, sglang):
    await gateway.generate()
    await node.commit(2)
    await gateway.at(2)
    await gateway.generate()
    first, second = (each["extra_key"] for each in sglang.generated)
    assert first != second


async def test_a_new_version_is_loaded_from_the_leased_directory_and_read_back(gateway, node, sglang):
    await node.commit(2)
    status = await gateway.at(2)
    loads = [body for path, body in sglang.calls if path == "/update_weights_from_disk"]
    assert loads[-1] == {
        "model_path": str(node.slots / "qwen" / "v2"),
        "weight_version": "2",
        "abort_all_requests": False,
        "keep_pause": True,
        "flush_cache": False,
    }
    assert [path for path, _ in sglang.calls][-4:] == [
        "/pause_generation",
        "/update_weights_from_disk",
        "/flush_cache",
        "/continue_generation",
    ]
    assert status.moves[-1].version == 2
    assert (await gateway.generate()).json()["output_ids"][0] == 2
    assert node.open_leases == 0


async def test_a_request_for_a_version_on_its_way_waits_for_it(gateway, node):
    await node.announce(2)
    asked = asyncio.create_task(gateway.generate(weight_version={"min_version": 2}))
    await gateway.until(lambda s: s.state == "fetching")
    assert not asked.done()
    await node.commit(2)
    answer = (await asked).json()
    assert answer["meta_info"]["weight_version_start"] == 2
    assert set(answer["output_ids"]) == {2}


async def test_a_request_that_loses_its_patience_is_told_what_is_on_its_way(gateway, node):
    await node.announce(3)
    answer = await gateway.generate(weight_version={"min_version": 3, "wait_s": 0.05})
    assert answer.status == 409
    assert answer.headers["Retry-After"] == "1"
    problem = answer.json()
    assert (problem["type"], problem["target_version"], problem["applied"]) == ("WeightVersionNotReady", 3, 1)
    assert problem["on_its_way"]["version"] == 3
    assert "version 3 is on its way" in problem["message"]


async def test_a_version_that_was_never_announced_is_not_waited_for_long(gateway):
    asked = await asyncio.wait_for(gateway.generate(weight_version={"min_version": 999}), 10)
    assert asked.status == 409
    assert "nothing newer has been announced" in asked.json()["message"]


async def test_a_version_that_has_passed_is_refused_at_once_and_for_good(gateway, node):
    await node.commit(5)
    await gateway.at(5)
    answer = await gateway.generate(weight_version={"exact_version": 3, "wait_s": 60})
    assert answer.status == 409
    assert "Retry-After" not in answer.headers
    assert "has passed" in answer.json()["message"]


async def test_a_request_for_a_version_that_the_newest_would_pass_by_gets_it_first(gateway, node):
    await node.announce(4)
    asked = asyncio.create_task(gateway.generate(weight_version={"any_of": [2, 3]}))
    await gateway.until(lambda s: s.state == "fetching")
    await asyncio.gather(node.commit(2), node.commit(4))
    answer = (await asked).json()
    assert answer["meta_info"]["weight_version_start"] == 2
    await gateway.at(4)


@pytest.mark.parametrize(
    ("constraint", "kind"),
    [
        ({"min_version": 5, "max_version": 4}, "ContradictoryConstraint"),
        ({"exact_version": 5, "any_of": [1, 2]}, "ContradictoryConstraint"),
        ({"min_version": -1}, "InvalidConstraint"),
        ({"minimum": 1}, "InvalidConstraint"),
        ({"any_of": []}, "InvalidConstraint"),
        (7, "InvalidConstraint"),
        ({"min_version": "7"}, "InvalidConstraint"),
    ],
)
async def test_a_constraint_that_cannot_be_is_refused_and_reaches_no_engine(gateway, sglang, constraint, kind):
    answer = await gateway.generate(weight_version=constraint)
    assert answer.status == 400
    assert answer.json()["error"]["type"] == kind
    assert not sglang.generated


async def test_headers_say_what_a_body_cannot(gateway):
    answer = await gateway.ask("/generate", {"text": "hi"}, headers={"X-Weight-Version-Min": "7"})
    assert answer.status == 409
    assert answer.json()["target_version"] == 7
    answer = await gateway.ask(
        "/generate", {"text": "hi", "weight_version": {"min_version": 1}}, headers={"X-Weight-Version-Min": "2"}
    )
    assert answer.json()["error"]["type"] == "ContradictoryConstraint"
    answer = await gateway.ask("/generate", {"text": "hi"}, headers={"X-Weight-Version-Min": "soon"})
    assert "X-Weight-Version-Min" in answer.json()["error"]["message"]


async def test_any_other_route_passes_untouched_both_ways(gateway):
    sent = b"\x00not json\xff" * 100_000
    headers = {"Content-Type": "application/x-thing", "X-Mine": "1", "Accept-Encoding": "br"}
    answer = await gateway.ask("/echo/a%2Fb?x=%20y", data=sent, method="PUT", headers=headers)
    assert (answer.status, answer.body) == (207, sent)
    assert answer.headers["X-Path"] == "/echo/a%2Fb?x=%20y"
    assert answer.headers["X-Method"] == "PUT"
    assert {"x-mine", "accept-encoding"} <= set(answer.headers["X-Seen"].strip('[]"').split('", "'))
    assert (await gateway.ask("/model_info")).json()["weight_version"] == "1"
    assert (await gateway.ask("/nowhere")).status == 404


async def test_an_error_of_the_engine_is_passed_on_as_it_is(gateway):
    answer = await gateway.ask("/generate", {"sampling_params": {}})
    assert answer.status == 400
    assert answer.json() == {"error": {"message": "Either text, input_ids or input_embeds should be provided."}}


@pytest.mark.parametrize("path", ["/update_weights_from_disk", "/pause_generation", "/load_lora_adapter"])
async def test_routes_that_change_weights_are_the_gateways_own(gateway, sglang, path):
    before = len(sglang.calls)
    answer = await gateway.ask(path, {"model_path": "/elsewhere"})
    assert answer.status == 403
    assert answer.json()["error"]["type"] == "RouteBlocked"
    assert len(sglang.calls) == before


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_ends_its_request_in_the_engine(gateway, sglang, stream):
    await sglang.allow(0)
    asked = asyncio.create_task(gateway.generate(rid="mine", stream=stream))
    await sglang.until(lambda: "mine" in sglang.running)
    asked.cancel()
    await sglang.until(lambda: "mine" in sglang.aborted)
    await gateway.until(lambda s: s.active_requests == 0)


async def test_in_place_a_version_change_in_mid_answer_is_visible(gateway, node, sglang):
    await sglang.allow(2)
    asked = asyncio.create_task(gateway.generate(rid="r", sampling_params={"max_new_tokens": 4}))
    await sglang.until(lambda: sglang.running.get("r") == 2)
    await node.commit(2)
    await gateway.at(2)
    await sglang.allow(None)
    answer = (await asked).json()
    assert answer["output_ids"] == [1, 1, 2, 2]
    meta = answer["meta_info"]
    assert (meta["weight_version"], meta["weight_version_start"], meta["weight_version_end"]) == ("1", 1, 2)


async def test_in_place_only_requests_that_the_version_would_break_are_drained(gateway, node, sglang):
    await sglang.allow(0)
    free = asyncio.create_task(gateway.generate(rid="free", weight_version={"min_version": 1}))
    pinned = asyncio.create_task(gateway.generate(rid="pinned", weight_version={"exact_version": 1}))
    bounded = asyncio.create_task(gateway.generate(rid="bounded", weight_version={"max_version": 1}))
    await sglang.until(lambda: len(sglang.running) == 3)
    await node.commit(2)
    await gateway.until(lambda s: s.state == "pausing")
    assert sglang.count("/update_weights_from_disk") == 1
    await sglang.allow(8)  # what the three need together is 12: two can end, whichever they are
    await sglang.allow(None)
    await gateway.at(2)
    for task in (pinned, bounded):
        meta = (await task).json()["meta_info"]
        assert (meta["weight_version_start"], meta["weight_version_end"]) == (1, 1)
    assert (await free).json()["meta_info"]["weight_version_start"] == 1


async def test_quiesced_every_answer_is_of_one_version(open_gateway, node, sglang):
    await node.commit(1)
    gateway = await open_gateway(sglang, quiesce=True)
    await gateway.at(1)
    await sglang.allow(1)
    early = asyncio.create_task(gateway.generate(rid="early"))
    await sglang.until(lambda: sglang.running.get("early") == 1)
    await node.commit(2)
    await gateway.until(lambda s: s.state == "pausing")
    late = asyncio.create_task(gateway.generate(rid="late"))
    await sglang.allow(None)
    assert (await early).json()["output_ids"] == [1, 1, 1, 1]
    assert (await late).json()["output_ids"] == [2, 2, 2, 2]


async def test_who_holds_a_version_back_for_too_long_is_cut(open_gateway, node, sglang):
    await node.commit(1)
    gateway = await open_gateway(sglang, drain_s=0.05)
    await gateway.at(1)
    await sglang.allow(0)
    whole = asyncio.create_task(gateway.generate(rid="whole", weight_version={"exact_version": 1}))
    streamed = asyncio.create_task(gateway.generate(rid="streamed", stream=True, weight_version={"exact_version": 1}))
    await sglang.until(lambda: len(sglang.running) == 2)
    await node.commit(2)
    await gateway.at(2)
    answer = await whole
    assert answer.status == 503
    assert answer.json()["error"]["type"] == "WeightVersionMoved"
    assert (await streamed).events()[-1]["error"]["type"] == "WeightVersionMoved"
    assert set(sglang.aborted) == {"whole", "streamed"}


async def test_a_gateway_that_starts_anew_takes_the_engine_as_it_is(gateway, open_gateway, sglang):
    loads = sglang.count("/update_weights_from_disk")
    sglang.paused = True  # the one before may have ended before it could resume
    second = await open_gateway(sglang)
    await second.at(1)
    assert sglang.count("/update_weights_from_disk") == loads
    assert (await second.generate()).json()["meta_info"]["weight_version_end"] == 1


async def test_before_any_version_requests_pass_without_a_label(open_gateway, node, sglang):
    gateway = await open_gateway(sglang)
    await gateway.until(lambda s: "asked" not in str(s.reasons))
    answer = await gateway.generate()
    assert answer.status == 200
    assert "weight_version_start" not in answer.json()["meta_info"]
    assert "X-Weight-Version" not in answer.headers
    assert (await gateway.generate(weight_version={"min_version": 0, "wait_s": 0})).status == 409
    assert (await gateway.ask("/health")).status == 503


async def test_a_new_epoch_counts_anew_and_is_newer_all_the_same(gateway, node):
    await node.commit(9)
    await gateway.at(9)
    await node.commit(2, epoch=2)
    status = await gateway.at(2)
    assert status.applied.epoch == 2


async def test_server_info_and_health_tell_how_far_behind_the_node_is(open_gateway, node, sglang):
    await node.commit(1)
    gateway = await open_gateway(sglang, staleness=Staleness(versions=2, seconds=60))
    await gateway.at(1)
    assert (await gateway.ask("/health")).json() == {"ready": True, "reasons": []}
    await node.announce(3)
    await gateway.until(lambda s: s.streams[0].lag == 2)
    assert (await gateway.ask("/health")).status == 200
    await node.announce(4)
    await gateway.until(lambda s: s.streams[0].lag == 3)
    health = await gateway.ask("/health")
    assert health.status == 503
    assert "3 versions behind" in health.json()["reasons"][0]
    info = (await gateway.ask("/server_info")).json()
    assert (info["applied"]["version"], info["streams"][0]["head"], info["ready"]) == (1, 4, False)
    await node.announce(2, lag_s=61.0)
    await gateway.until(lambda s: s.streams[0].lag == 1)
    assert "behind for 61.0 s" in (await gateway.ask("/health")).json()["reasons"][0]
