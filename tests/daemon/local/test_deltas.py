"""GET …/delta over HTTP: ranges, conditions, and every way to ask for what is not there."""

import pytest
from support.local_service import STREAM

CONTENT = bytes(range(256)) * 40
PATH = f"/v1/streams/{STREAM}/delta"


@pytest.fixture
def delta_api(api):
    api.commit(1)
    api.commit(2, proven=False)
    api.service.deltas[1, 2] = CONTENT
    return api


@pytest.mark.parametrize("query", ["?from=1&to=2", "?from=1"])
def test_a_delta_says_from_where_to_where_it_leads(delta_api, query):
    answer = delta_api.ask("GET", PATH + query)
    assert answer.status == 200
    assert answer.body == CONTENT
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert (answer.headers["patchswarm-from"], answer.headers["patchswarm-version"]) == ("1", "2")
    assert answer.headers["patchswarm-proven"] == "false"


def test_a_part_of_it_can_be_asked_for_and_a_transfer_taken_up_again(delta_api):
    whole = delta_api.ask("GET", PATH + "?from=1&to=2")
    etag = whole.headers["etag"]
    part = delta_api.ask("GET", PATH + "?from=1&to=2", headers={"Range": "bytes=1000-", "If-Range": etag})
    assert part.status == 206
    assert part.body == CONTENT[1000:]
    assert delta_api.ask("GET", PATH + "?from=1&to=2", headers={"If-None-Match": etag}).status == 304
    assert delta_api.ask("GET", PATH + "?from=1&to=2", headers={"If-Match": '"other"'}).problem == "precondition-failed"
    assert delta_api.ask("GET", PATH + "?from=1&to=2", headers={"Range": "bytes=99999-"}).status == 416
    assert delta_api.ask("HEAD", PATH + "?from=1&to=2").headers["content-length"] == str(len(CONTENT))


@pytest.mark.parametrize(
    ("query", "status", "problem", "said"),
    [
        ("?from=7&to=2", 404, "unknown-version", "7"),
        ("?from=1&to=7", 404, "unknown-version", "7"),
        ("?from=2&to=1", 409, "load-in-full", "load in full"),
        ("", 400, "invalid-request", "from"),
        ("?from=x", 400, "invalid-request", "from"),
        ("?from=-1", 400, "invalid-request", "from"),
        ("?from=1&to=2&from=1", 400, "invalid-request", "more than once"),
        ("?start=1&to=2", 400, "invalid-request", "start"),
    ],
)
def test_what_cannot_be_is_a_problem_that_names_it(delta_api, query, status, problem, said):
    answer = delta_api.ask("GET", PATH + query)
    assert (answer.status, answer.problem) == (status, problem)
    assert said in answer.json()["detail"]


def test_an_unknown_stream_is_a_problem(delta_api):
    assert delta_api.ask("GET", "/v1/streams/llama/delta?from=1").problem == "unknown-stream"


def test_what_is_kept_for_readers_goes_with_the_api(delta_api):
    delta_api.stop()
    assert delta_api.service.closed
