"""Streams, versions and leases over HTTP."""

from concurrent.futures import ThreadPoolExecutor

import pytest


def test_a_node_lists_the_streams_it_follows(api):
    api.commit(3)
    answer = api.ask("GET", "/v1/streams")
    (stream,) = answer.json()["streams"]
    assert answer.headers["content-type"] == "application/json"
    assert stream["stream"] == "qwen"
    assert stream["state"] == "current"
    assert stream["current"]["version"] == 3
    assert stream["current"]["label"] == "step 3"


def test_a_stream_tells_its_state_and_current_version(api):
    assert api.ask("GET", "/v1/streams/qwen").json()["state"] == "waiting"
    api.commit(1, proven=False)
    status = api.ask("GET", "/v1/streams/qwen").json()
    assert status["state"] == "current"
    assert status["proven"] is False
    assert status["head"] == {"epoch": 1, "version": 1, "manifest": status["current"]["manifest"]}


@pytest.mark.parametrize("path", ["", "/version", "/versions", "/versions/1/files", "/versions/1/tensors/x"])
def test_an_unknown_stream_is_a_problem_that_names_it(api, path):
    answer = api.ask("GET", "/v1/streams/llama" + path)
    assert answer.status == 404
    assert answer.problem == "unknown-stream"
    assert "'llama'" in answer.json()["detail"]


def test_versions_are_listed_newest_first(api):
    for version in (1, 2, 5):
        api.commit(version)
    listed = api.ask("GET", "/v1/streams/qwen/versions").json()["versions"]
    assert [version["version"] for version in listed] == [5, 2, 1]


def test_the_current_version_is_answered_at_once(api):
    api.commit(7)
    answer = api.ask("GET", "/v1/streams/qwen/version")
    assert answer.status == 200
    assert answer.json()["version"] == 7


def test_no_version_yet_is_a_problem(api):
    answer = api.ask("GET", "/v1/streams/qwen/version")
    assert answer.status == 404
    assert answer.problem == "version-not-ready"
    assert answer.json()["context"]["current"] is None


def test_a_long_poll_answers_when_the_version_is_committed(api):
    api.commit(1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.ask, "GET", "/v1/streams/qwen/version?min=3&wait=60")
        api.wait_for(lambda service: service.waiters == 1)
        api.commit(2)
        api.wait_for(lambda service: service.waiters == 1)
        assert not waiting.done()
        api.commit(3)
        assert waiting.result(30).json()["version"] == 3


def test_a_long_poll_in_vain_says_what_is_here(api):
    api.commit(1)
    answer = api.ask("GET", "/v1/streams/qwen/version?min=3&wait=0.01")
    assert answer.status == 404
    assert answer.problem == "version-not-ready"
    assert answer.json()["context"]["current"]["version"] == 1
    assert answer.json()["context"]["head"]["version"] == 1


def test_a_long_poll_ends_when_the_caller_hangs_up(api):
    connection = api.connect()
    connection.sendall(b"GET /v1/streams/qwen/version?min=3&wait=3600 HTTP/1.1\r\nHost: x\r\n\r\n")
    api.wait_for(lambda service: service.waiters == 1)
    connection.close()
    api.wait_for(lambda service: service.waiters == 0)


def test_a_follower_sees_numbers_start_anew_in_a_higher_epoch(api):
    api.commit(9)
    target = "/v1/streams/qwen/version?min=10&wait=60&epoch=1"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.ask, "GET", target)
        api.wait_for(lambda service: service.waiters == 1)
        api.service.epoch = 2
        api.commit(1)
        assert waiting.result(30).json()["epoch"] == 2


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("min=x", "min"),
        ("min=-1", "min"),
        ("min=9223372036854775808", "min"),
        ("wait=nan", "wait"),
        ("wait=inf", "wait"),
        ("wait=3601", "wait"),
        ("minimum=3", "minimum"),
        ("min=1&min=2", "min"),
    ],
)
def test_a_wrong_query_parameter_is_named(api, query, named):
    api.commit(1)
    answer = api.ask("GET", f"/v1/streams/qwen/version?{query}")
    assert answer.status == 400
    assert answer.problem == "invalid-request"
    assert named in answer.json()["detail"]


def test_a_lease_gives_the_directory_and_is_renewed_and_released(api):
    api.commit(4, proven=False)
    answer = api.ask("POST", "/v1/streams/qwen/leases", {"version": 4, "ttl_s": 10})
    assert answer.status == 201
    lease = answer.json()
    assert lease["path"].endswith("/qwen/v4")
    assert lease["proven"] is False
    assert api.ask("PUT", f"/v1/streams/qwen/leases/{lease['lease']}", {"ttl_s": 20}).json()["version"] == 4
    released = api.ask("DELETE", f"/v1/streams/qwen/leases/{lease['lease']}")
    assert (released.status, released.body) == (204, b"")


def test_a_lease_without_a_body_is_of_the_current_version(api):
    api.commit(1)
    api.commit(2)
    assert api.ask("POST", "/v1/streams/qwen/leases").json()["version"] == 2


def test_a_lease_that_is_gone_answers_410_and_an_unknown_one_404(api):
    api.commit(1)
    lease = api.ask("POST", "/v1/streams/qwen/leases").json()["lease"]
    api.service.leases[lease].gone = True
    for method in ("PUT", "DELETE"):
        gone = api.ask(method, f"/v1/streams/qwen/leases/{lease}")
        assert (gone.status, gone.problem) == (410, "lease-gone")
        unknown = api.ask(method, "/v1/streams/qwen/leases/nobody's")
        assert (unknown.status, unknown.problem) == (404, "unknown-lease")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"version": "4"}, "version"),
        ({"version": -1}, "version"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 1e9}, "ttl_s"),
        ({"ttl": 5}, "ttl"),
        (b"{", "not JSON"),
        (b"[]", "array"),
        (b"\xff", "not JSON"),
    ],
)
def test_a_wrong_field_is_named(api, body, named):
    api.commit(4)
    answer = api.ask("POST", "/v1/streams/qwen/leases", body)
    assert answer.status == 400
    assert answer.problem == "invalid-request"
    assert named in answer.json()["detail"]
    assert api.service.leases == {}


def test_a_body_over_the_limit_is_refused(api):
    api.commit(1)
    answer = api.ask("POST", "/v1/streams/qwen/leases", b" " * (64 * 1024 + 1))
    assert (answer.status, answer.problem) == (413, "body-too-large")
    assert api.ask("POST", "/v1/streams/qwen/leases", b" " * (64 * 1024 - 2) + b"{}").status == 201


def test_leasing_a_version_that_is_not_here_is_a_problem(api):
    api.commit(1)
    answer = api.ask("POST", "/v1/streams/qwen/leases", {"version": 2})
    assert (answer.status, answer.problem) == (404, "unknown-version")


def test_a_label_finds_the_newest_version_that_has_it(api):
    for version, label in ((1, "step 10"), (2, "step 20"), (3, "step 10"), (4, "step 30")):
        api.commit(version, label=label)
    found = api.ask("GET", "/v1/streams/qwen/version?label=step%2010").json()
    assert (found["version"], found["label"]) == (3, "step 10")
    assert api.ask("GET", "/v1/streams/qwen/version?label=step%2020&min=2").json()["version"] == 2


def test_a_label_that_nobody_published_is_a_problem_that_names_it(api):
    api.commit(1)
    answer = api.ask("GET", "/v1/streams/qwen/version?label=step%209")
    assert (answer.status, answer.problem) == (404, "version-not-ready")
    assert "'step 9'" in answer.json()["detail"]
    assert answer.json()["context"]["current"]["version"] == 1
    older = api.ask("GET", "/v1/streams/qwen/version?label=step%201&min=2")
    assert older.problem == "version-not-ready", "min bounds a label from below"
    assert api.ask("GET", "/v1/streams/qwen/version?label=").problem == "invalid-request"


def test_a_label_can_be_waited_for(api):
    api.commit(1, label="a")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.ask, "GET", "/v1/streams/qwen/version?label=c&wait=60")
        api.wait_for(lambda service: service.waiters == 1)
        api.commit(2, label="b")
        api.wait_for(lambda service: service.waiters == 1)
        api.commit(3, label="c")
        assert waiting.result(30).json()["version"] == 3


def test_a_version_that_is_not_committed_here_yet_is_not_found_by_its_label(api):
    api.commit(1, label="a")
    api.commit(2, label="b")
    api.service.current = 1  # the manifest of 2 is known, its bytes are on their way
    assert api.ask("GET", "/v1/streams/qwen/version?label=b").problem == "version-not-ready"
