"""What the pages say of the daemon is what it says and has: its endpoints, and the messages that people look up."""

import errno
import os
import re

import pytest

from patchswarm.daemon.cli import main
from patchswarm.daemon.local.api import endpoints

from .markdown import ROOT, Page, pages

SOURCE = re.sub(r'"\s*f?"', "", "".join(path.read_text() for path in sorted((ROOT / "daemon").rglob("*.py"))))
"""The daemon's source, string literals over several lines joined."""


@pytest.mark.parametrize("endpoint", endpoints(None, None), ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
def test_an_endpoint_has_its_line(endpoint):
    text = (ROOT / "docs" / "http-api.md").read_text() + (ROOT / "docs" / "operations.md").read_text()
    path = re.sub(r":[^}]*}", "}", endpoint.path)
    assert re.search(re.escape(path.removeprefix("/v1/streams/{stream}") or path) + r"[`?, ]", text)


@pytest.mark.parametrize("name", sorted(main.commands))
def test_a_command_is_on_some_page(name):
    assert any(re.search(rf"patchswarm {name}\b", page.path.read_text()) for page in pages()), name


def measured():
    """Rows of the README's table of figures: each figure, and the page that the row links to."""
    table = Page("README.md").path.read_text().partition("## Measured")[2].partition("\n\n## ")[0]
    for row in table.splitlines():
        if link := re.search(r"\((docs/\w+\.md)\)", row):
            if not row.startswith("| "):
                continue
            figures = re.findall(r"(?<![\w.-])\d+\.\d+|\b\d+x", " ".join(row.split(" | ")[1:3]))
            yield from ((link[1], figure) for figure in figures)


@pytest.mark.parametrize(("page", "figure"), [*measured()])
def test_a_figure_in_the_readme_stands_on_the_page_that_it_comes_from(page, figure):
    assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", (ROOT / page).read_text())


def test_there_are_figures():
    assert len([*measured()]) > 10


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
