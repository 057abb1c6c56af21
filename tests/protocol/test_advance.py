"""Requests in advance: one for each chunk, where it comes soonest."""

from types import SimpleNamespace

import pytest
from support.plans import NODES, node_of

from patchswarm.protocol.advance import Advance
from patchswarm.protocol.effects import Send
from patchswarm.protocol.link import Link
from patchswarm.protocol.messages import Cancel, Request
from patchswarm.protocol.series import ChunkSet

SIZE, CHUNK = 500_000, b"chunk"


class Desk:
    """A node that has asked a border of site a in advance for a chunk; it knows a mate of that one and another site."""

    def __init__(self):
        self.sent = []
        self.asked, self.mate, self.other = (
            Link(number, bytes(32), node, True, 0.0, 0.0, NODES[node])
            for number, node in enumerate((node_of("a", 0), node_of("a", 1), node_of("b", 0)))
        )
        for link in (self.asked, self.mate, self.other):
            link.measured_rtt(0.1)
            link.goodput = 1e6
        self.series = SimpleNamespace(
            attempt=bytes(16), awaited=0, asked=ChunkSet(), missing_data=lambda: 1, entry=lambda _: (CHUNK, SIZE)
        )
        plan = SimpleNamespace(to_come=lambda node: int(node == self.asked.node))
        plans = SimpleNamespace(get=lambda _: (plan, plan))
        self.advance = Advance(SimpleNamespace(series={}), plans, self.sent.append)
        self.advance.ask(self.asked, self.series, 0.0)
        assert self.done() == [Send(0, Request(0, CHUNK))]

    def done(self):
        done = self.sent[:]
        self.sent.clear()
        return done


@pytest.fixture
def desk():
    return Desk()


def test_when_its_site_has_the_chunk_it_counts_as_on_its_way(desk):
    desk.advance.begin(desk.series, 1, desk.mate, 0.5)
    assert desk.done() == []
    assert 0 in desk.series.asked
    assert [*desk.asked.flights] == [0]


def test_when_another_site_has_it_and_brings_it_sooner_the_request_is_taken_back(desk):
    desk.asked.rate = 1e5
    desk.advance.begin(desk.series, 1, desk.other, 0.5)
    assert desk.done() == [Send(0, Cancel(0))]
    assert 0 not in desk.series.asked, "it is asked of that one next"
    assert not desk.series.awaited


def test_when_another_site_has_it_and_brings_it_later_it_is_waited_for_where_it_was_asked(desk):
    desk.other.rate = 1e5
    desk.advance.begin(desk.series, 1, desk.other, 0.5)
    assert desk.done() == []
    assert 0 in desk.series.asked
