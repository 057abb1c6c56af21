"""What is held against a peer whose chunk is late, and what is not."""

import pytest
from support.border import ATTEMPT, record

from patchswarm.protocol.link import Link
from patchswarm.protocol.watch import Watch

NAME, SIZE = b"c" * 32, 4_000_000


@pytest.fixture
def link():
    link = Link(0, bytes(32), b"n" * 32, True, 0.0, 0.0, record("a"))
    link.measured_rtt(0.01)
    link.goodput = 1e8
    link.depart(ATTEMPT, 0, NAME, SIZE, 0.0)
    return link


def late(link, for_s, each=lambda now_s: None):
    """Ordinals that were given up while time passed, a tenth of a second at a time."""
    given_up = []
    watch = Watch({0: link}, lambda _: None, lambda flight: given_up.append(flight.ordinal))
    for tenth in range(1, int(for_s * 10) + 1):
        each(tenth / 10)
        watch.look(tenth / 10)
        if tenth % 10 == 0:
            watch.check_deadlines(tenth / 10)
    return given_up


def test_a_peer_that_sends_nothing_is_late(link):
    assert late(link, 4.0) == [0]
    assert link.strikes == 1


def test_a_chunk_that_is_here_is_not_late_however_long_the_disk_takes(link):
    link.progressed(SIZE, 0.05)
    link.came_whole(NAME)
    assert late(link, 60.0) == []
    assert not link.conduct.is_benched


def test_while_this_node_does_not_read_nobody_is_late(link):
    assert late(link, 10.0, link.excuse) == []
    assert not link.conduct.is_benched
