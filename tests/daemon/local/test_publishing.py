"""Publishing over HTTP: progress line by line, then exactly one end."""

import asyncio
import json
import urllib.parse

import pytest

from patchswarm.daemon.local.errors import BadSourceError, VersionNotRisingError
from patchswarm.daemon.local.model import PublishProgress, PublishResult
from patchswarm.storage.errors import SourceChangedError

VERSIONS = "/v1/streams/qwen/versions"
RESULT = PublishResult(
    stream="qwen",
    epoch=1,
    version=8,
    label="step 8",
    manifest="ab" * 32,
    changed_fraction=0.01,
    changed_elements=12,
    full_bytes=1000,
    patch_bytes=10,
    ratio=100.0,
    chunks=1,
    seconds={"read": 0.1, "encode": 0.2},
)


def at(stage, done=0):
    return PublishProgress(stage=stage, done_bytes=done, total_bytes=1000)


def lines(answer):
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


def test_progress_comes_line_by_line_and_the_result_last(api):
    told = asyncio.Event()
    requests = []

    async def publishing(request, progress):
        requests.append(request)
        progress(at("read", 500))
        await told.wait()
        progress(at("encode", 1000))
        return RESULT

    api.service.publishing = publishing
    connection = api.connection()
    body = {"directory": "/models/new", "version": 8, "label": "step 8"}
    connection.request("POST", VERSIONS, json.dumps(body))
    response = connection.getresponse()
    assert response.status == 200
    first = json.loads(response.readline())
    assert first == {"progress": {"stage": "read", "done_bytes": 500, "total_bytes": 1000}}
    api.loop.call_soon_threadsafe(told.set)
    assert "encode" in json.loads(response.readline())["progress"]["stage"]
    last = json.loads(response.readline())
    assert last["result"]["version"] == 8
    assert last["result"]["seconds"] == {"read": 0.1, "encode": 0.2}
    assert response.readline() == b""
    (request,) = requests
    assert (request.directory, request.version, request.label, request.base) == ("/models/new", 8, "step 8", False)


def test_a_slow_caller_gets_the_newest_progress_not_a_backlog(api):
    async def publishing(request, progress):
        for done in range(1000):
            progress(at("read", done))
        return RESULT

    api.service.publishing = publishing
    told = lines(api.ask("POST", VERSIONS, {"directory": "/models/new"}))
    assert len(told) == 2
    assert told[0]["progress"]["done_bytes"] == 999
    assert told[1]["result"]["version"] == 8


def test_a_publish_without_progress_still_has_its_result(api):
    async def publishing(request, progress):
        return RESULT

    api.service.publishing = publishing
    assert [list(line) for line in lines(api.ask("POST", VERSIONS, {"directory": "/m"}))] == [["result"]]


@pytest.mark.parametrize(
    ("error", "status", "slug"),
    [
        (VersionNotRisingError("version 8 is not above 9; leave --version out"), 409, "version-not-rising"),
        (BadSourceError("/m: no such directory"), 422, "bad-source"),
        (SourceChangedError("/m/model.safetensors changed while it was read"), 422, "bad-source"),
    ],
)
def test_what_fails_at_once_has_its_own_status(api, error, status, slug):
    async def publishing(request, progress):
        raise error

    api.service.publishing = publishing
    answer = api.ask("POST", VERSIONS, {"directory": "/m"})
    assert (answer.status, answer.problem) == (status, slug)
    assert str(error).startswith(answer.json()["detail"])
    assert str(error).endswith(answer.json()["remedy"])


def test_what_fails_later_is_the_last_line(api):
    async def publishing(request, progress):
        progress(at("read"))
        await asyncio.sleep(0)
        raise SourceChangedError("/m/model.safetensors changed while it was read")

    api.service.publishing = publishing
    *told, last = lines(api.ask("POST", VERSIONS, {"directory": "/m"}))
    assert [list(line) for line in told] == [["progress"]]
    assert last["problem"]["type"] == "urn:patchswarm:problem:bad-source"
    assert last["problem"]["status"] == 422
    assert "changed while" in last["problem"]["detail"]


def test_a_bug_is_told_without_its_inside(api):
    async def publishing(request, progress):
        raise RuntimeError("secret inside")

    api.service.publishing = publishing
    answer = api.ask("POST", VERSIONS, {"directory": "/m"})
    assert (answer.status, answer.problem) == (500, "internal-error")
    assert b"secret inside" not in answer.body
    (entry,) = api.logged
    assert (entry["event"], entry["stream"], entry["exc_info"]) == ("publish failed", "qwen", True)
    api.logged.clear()


def test_a_caller_that_hangs_up_cancels_the_publish(api):
    cancelled = asyncio.Event()

    async def publishing(request, progress):
        progress(at("read"))
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    api.service.publishing = publishing
    connection = api.connection()
    connection.request("POST", VERSIONS, json.dumps({"directory": "/m"}))
    with connection.getresponse() as response:
        assert b"progress" in response.readline()
        connection.close()
    api.run(asyncio.wait_for(cancelled.wait(), 30))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "directory"),
        ({"directory": ""}, "directory"),
        ({"directory": "relative/path"}, "directory"),
        ({"directory": "/m", "label": "x" * 257}, "label"),
        ({"directory": "/m", "force": True}, "force"),
        ({"directory": "/m", "base": "yes"}, "base"),
    ],
)
def test_a_wrong_field_is_named_before_anything_starts(api, body, named):
    answer = api.ask("POST", VERSIONS, body)
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert named in answer.json()["detail"]


def test_publishing_in_an_unknown_stream_is_a_problem(api):
    answer = api.ask("POST", "/v1/streams/llama/versions", {"directory": "/m"})
    assert (answer.status, answer.problem) == (404, "unknown-stream")


@pytest.mark.parametrize("name", ["..", ".hidden", "a b", "x" * 65, "a/b"])
def test_what_can_be_no_streams_name_is_said_to_be_none(api, name):
    answer = api.ask("POST", f"/v1/streams/{urllib.parse.quote(name, safe='')}/versions", {"directory": "/m"})
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert repr(name) in answer.json()["detail"]
