"""What the pages say of the daemon is what it says and has: its endpoints, and the messages that people look up."""

import errno
import os
import re

import pytest

from patchswarm.daemon.local.api import endpoints

from .markdown import ROOT, Page

SOURCE = re.sub(r'"\s*f?"', "", "".join(path.read_text() for path in sorted((ROOT / "daemon").rglob("*.py"))))
"""The daemon's source, string literals over several lines joined."""


@pytest.mark.parametrize("endpoint", endpoints(None, None), ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
def test_an_endpoint_has_its_line(endpoint):
    text = (ROOT / "docs" / "http-api.md").read_text() + (ROOT / "docs" / "operations.md").read_text()
    path = re.sub(r":[^}]*}", "}", endpoint.path)
    assert re.search(re.escape(path.removeprefix("/v1/streams/{stream}") or path) + r"[`?, ]", text)


def messages():
    """The messages in the first column of the quickstart's last table."""
    table = Page("docs/quickstart.md").path.read_text().partition("## When it does not work")[2]
    for row in table.splitlines():
        if row.startswith("| "):
            yield from (span for span in re.findall(r"`([^`]+)`", row.split(" | ")[0]) if " " in span)


@pytest.mark.parametrize("message", [*messages()])
def test_a_message_that_the_quickstart_explains_is_one_that_is_given(message):
    assert message in SOURCE or message == os.strerror(errno.ECONNREFUSED)


def test_there_are_messages():
    assert len([*messages()]) > 5
