"""`status --watch`: what is drawn, and that it goes on until interrupted."""

import json

import click
import pytest
from rich.console import Console

from patchswarm.daemon.errors import DaemonError
from patchswarm.daemon.local.model import (
    HeadInfo,
    LastError,
    NodeStatus,
    PeerHead,
    PeerStatus,
    Progress,
    StreamState,
    StreamStatus,
)
from patchswarm.daemon.screen import _pictures, picture, watch
from patchswarm.daemon.units import format_size

BEHIND = StreamStatus(
    stream="qwen",
    state=StreamState.FETCHING,
    current=None,
    head=HeadInfo(epoch=1, version=9, manifest="ab"),
    lag=2,
    lag_s=31.0,
    proven=False,
    progress=Progress(version=9, stage="fetch", done_bytes=5 << 20, total_bytes=20 << 20),
    last_error=LastError(at=0.0, detail="the disk is full"),
)
PEERS = [
    PeerStatus(node=f"{number:02x}" * 32, site=site, addresses=[], connected=True, rtt_ms=1.5, heads=heads)
    for number, (site, heads) in enumerate(
        [("eu/b", []), ("us/a", [PeerHead(stream="qwen", epoch=1, version=9)]), ("eu/b", [])]
    )
]


class Node:
    """A daemon that answers so often, and is interrupted then."""

    def __init__(self, answers):
        self.answers = answers

    def streams(self):
        self.answers -= 1
        if self.answers < 0:
            raise KeyboardInterrupt
        return [BEHIND]

    def peers(self):
        return PEERS

    def node(self):
        return NodeStatus(node="cd" * 32, site="eu/b", certificate_ends_at=2e9, problems=["its clock is slow"])


def drawn(renderable):
    display = Console(width=140, force_terminal=False)
    with display.capture() as captured:
        display.print(renderable)
    return captured.get()


def test_streams_their_progress_and_peers_by_site_are_drawn():
    text = drawn(picture([BEHIND], PEERS, ["its clock is slow"]))
    assert "problem: its clock is slow" in text
    assert "2 (31 s)" in text
    assert f"{format_size(5 << 20)} of {format_size(20 << 20)}" in text
    assert "the disk is full" in text
    assert text.count("eu/b") == 1
    assert "qwen 9" in text
    assert "no streams yet" in drawn(picture([], [], []))


def test_it_goes_on_line_by_line_where_there_is_no_terminal(capsys):
    with pytest.raises(click.exceptions.Exit) as ended:
        watch(Node(3), as_json=False, sleep=lambda _: None)
    assert ended.value.exit_code == 130
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["problems"] for line in lines] == [["its clock is slow"]] * 3


def test_a_daemon_that_is_away_is_waited_for():
    class Away(Node):
        def streams(self):
            raise DaemonError("no daemon answers")

    assert "waiting for it" in drawn(next(_pictures(Away(0))))
