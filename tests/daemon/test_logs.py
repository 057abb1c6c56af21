"""What log lines look like, and what never stands in them."""

import io
import json
import logging
from pathlib import Path

import pytest
import structlog
from support.logs import logging_restored

from patchswarm.daemon import logs


@pytest.fixture(autouse=True)
def restored():
    with logging_restored():
        yield


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines(level="info", style="json", stream=None):
    out = stream or io.StringIO()
    logs.configure(level, style, out)
    return structlog.get_logger("test"), out


def only(out):
    (line,) = out.getvalue().splitlines()
    return json.loads(line)


def test_a_line_is_one_json_object_with_time_level_and_message_first():
    log, out = lines()
    log.info("node enrolled", peers=3, path=Path("/a/b"), node=bytes(range(32)))
    entry = only(out)
    assert list(entry)[:3] == ["timestamp", "level", "message"]
    assert entry["message"] == "node enrolled"
    assert (entry["peers"], entry["path"], entry["node"]) == (3, "/a/b", "0001020304")


def test_people_on_a_terminal_get_text_and_pipes_get_json():
    log, out = lines(style="auto", stream=Terminal())
    log.info("ready", port=7340)
    assert "ready" in out.getvalue()
    assert not out.getvalue().startswith("{")
    log, out = lines(style="auto")
    log.info("ready", port=7340)
    assert only(out)["port"] == 7340


def test_levels_below_the_chosen_one_are_dropped():
    log, out = lines("warning")
    log.info("unimportant")
    logging.getLogger("library").info("unimportant")
    log.warning("important")
    assert only(out)["message"] == "important"


def test_libraries_log_in_the_same_form():
    _, out = lines()
    logging.getLogger("aiohttp.server").warning("odd %s", "request", extra={"peer": b"\x01" * 32})
    entry = only(out)
    assert (entry["message"], entry["level"], entry["peer"]) == ("odd request", "warning", "0101010101")


@pytest.mark.parametrize(
    "name", ["secret", "token", "bearer_token", "publisher_key", "private", "Authorization", "key"]
)
@pytest.mark.parametrize("style", ["json", "human"])
def test_secrets_are_hidden_by_name(name, style):
    log, out = lines(style=style)
    log.info("event", **{name: "hunter2"})
    logging.getLogger("library").warning("event", extra={name: "hunter2"})
    assert "hunter2" not in out.getvalue()
    assert out.getvalue().count("(hidden)") == 2


def test_words_that_only_contain_such_a_name_are_not_hidden():
    log, out = lines()
    log.info("event", keys=3, tokens=4, monkey="george")
    entry = only(out)
    assert (entry["keys"], entry["tokens"], entry["monkey"]) == (3, 4, "george")


@pytest.mark.parametrize("style", ["json", "human"])
def test_a_traceback_never_shows_local_variables(style):
    log, out = lines(style=style)

    def fail():
        secret = "hunter2"
        raise ValueError(f"a secret of {len(secret)} letters")

    try:
        fail()
    except ValueError:
        log.exception("failed")
    text = out.getvalue()
    assert "ValueError: a secret of 7 letters" in text
    assert "in fail" in text
    assert "hunter2" not in text.replace('secret = "hunter2"', "")


def test_a_traceback_in_json_is_one_line():
    log, out = lines()
    try:
        int("x")
    except ValueError:
        log.exception("failed")
    assert "ValueError: invalid literal" in only(out)["exception"]
