"""Lives, events and metrics over the local API."""

import json

import pytest

from patchswarm.daemon.lives import Moment

STREAM = "qwen"


@pytest.fixture
def events(api):
    """The events of the stream, as they come: (name, data)."""
    connection = api.connection()
    connection.request("GET", f"/v1/streams/{STREAM}/events")
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("Content-Type") == "text/event-stream"

    def read():
        while True:
            lines = []
            while (line := response.readline()) != b"\n":
                assert line, "the events ended"
                lines.append(line.decode().rstrip("\n"))
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if fields:
                yield fields["event"], json.loads(fields["data"])

    return read()


async def note(service, version, moment):
    service.told.note(STREAM, 1, version, "ab" * 16, moment)


def test_the_first_event_is_the_present_state_and_changes_follow(api, events):
    name, status = next(events)
    assert (name, status["state"]) == ("status", "waiting")
    api.commit(3)
    name, status = next(events)
    assert (name, status["current"]["version"]) == ("status", 3)


def test_what_happens_to_a_version_is_an_event_and_is_remembered(api, events):
    next(events)
    api.run(note(api.service, 4, Moment.ANNOUNCED))
    name, life = next(events)
    assert (name, life["version"], list(life["moments"])) == ("version", 4, ["announced"])
    found = api.ask("GET", f"/v1/streams/{STREAM}/lives").json()["lives"]
    assert found == [life]


def test_an_unknown_stream_is_a_problem(api):
    assert api.ask("GET", "/v1/streams/other/events").problem == "unknown-stream"
    assert api.ask("GET", "/v1/streams/other/lives").problem == "unknown-stream"


def test_metrics_are_text(api):
    answer = api.ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
