"""Which congestion control a path calls for: loss without a queue tells."""

import itertools
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.daemon.fleet.congestion import LEAST_STRAY, LOSSY_S, Reading, Uplink, read

LEAST_S = 0.1


def seen(congestion, *looks, least_s=LEAST_S):
    """Readings of one connection: pairs of the queue in seconds and how many packets were sent again."""
    readings = [Reading(least_s + queue_s, least_s, resent) for queue_s, resent in looks]
    for before, now in itertools.pairwise(readings):
        congestion.look(before, now)
    return congestion.uplink.is_lossy


class Here:
    """This host's uplink, the clock it reads, and the sites that it has spoken of."""

    def __init__(self):
        self.now_s, self.said = 0.0, []
        self.uplink = Uplink(self.said.append, lambda: self.now_s)

    def to(self, site, node=b"one"):
        return self.uplink.path_to(site, node)


@pytest.fixture
def here():
    return Here()


@pytest.fixture
def congestion(here):
    return here.to("far")


def loses(congestion):
    """A path shows that it loses packets."""
    return seen(congestion, *((0.0, number) for number in range(LEAST_STRAY + 1)))


def test_loss_in_a_long_queue_is_congestion_however_often_it_happens(congestion):
    assert not seen(congestion, *((0.05 + 0.001 * (number % 9), 10 * number) for number in range(100)))


def test_loss_in_a_short_queue_is_believed_the_second_time(congestion):
    assert not seen(congestion, (0.0, 0), (0.05, 0), (0.001, 0), (0.001, 1))
    assert seen(congestion, (0.001, 1), (0.001, 3))


def test_a_queue_just_before_the_loss_counts(congestion):
    for number in range(9):
        assert not seen(congestion, (0.05, number), (0.001, number + 1))


def test_now_and_then_a_repeat_is_late_and_finds_the_queue_gone(congestion):
    for number in range(40):
        assert not seen(congestion, (0.05, 10 * number), *((0.05, 10 * number + more) for more in range(1, 6)))
        assert not seen(congestion, (0.001, number), (0.001, number + (number % 2)))


def test_what_is_known_of_one_path_holds_for_all_from_here_until_it_is_old(here):
    assert loses(here.to("far"))
    assert here.to("near").uplink.is_lossy
    here.now_s = LOSSY_S - 1
    assert loses(here.to("far"))
    here.now_s = 2 * LOSSY_S - 2
    assert here.uplink.is_lossy, "it was seen again"
    here.now_s = 2 * LOSSY_S - 1
    assert not here.uplink.is_lossy


def test_lanes_to_one_site_are_counted_together_and_others_apart(here):
    assert not seen(here.to("far"), (0.0, 0), (0.0, 1))
    assert not seen(here.to("near"), (0.0, 0), (0.0, 1))
    assert not seen(here.to(""), (0.0, 0), (0.0, 1))
    assert not seen(here.to(""), (0.0, 0), (0.0, 1))
    assert seen(here.to("far", b"other"), (0.0, 0), (0.0, 1))


def test_others_are_told_when_it_was_seen_on_the_way_to_two_and_once(here):
    assert not seen(here.to("far", b"two"), (0.0, 0), (0.0, 0))
    assert loses(here.to("far", b"one"))
    assert here.said == [], "one alone may be at fault"
    for _ in range(2):
        assert loses(here.to("far", b"two"))
    assert here.said == ["far"]
    here.now_s = LOSSY_S
    assert loses(here.to("far", b"two"))
    assert here.said == ["far"], "what was seen of the first one then is over"
    assert loses(here.to("far", b"one"))
    assert here.said == ["far", "far"]


def test_where_there_is_only_one_its_word_is_enough(here):
    assert loses(here.to("far"))
    assert here.said == ["far"]


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), max_size=30))
def test_a_path_within_one_place_is_never_lossy(looks):
    total, said = 0, []
    for queue_s, more in looks:
        total += more
        said.append((queue_s, total))
    assert not seen(Here().to("near"), *said, least_s=0.001)


def control_of(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def test_a_connection_begins_with_cubic_and_changes_to_bbr_where_the_kernel_lets_it(congestion):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        congestion.choose(connection)
        assert control_of(connection) == "cubic"
        congestion.uplink.bear_loss()
        congestion.choose(connection)
        available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
        assert control_of(connection) == ("bbr" if "bbr" in available else "cubic")


def test_the_kernel_says_how_a_connection_fares():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        accepted, _ = server.accept()
        with accepted:
            connection.sendall(bytes(100_000))
            while accepted.recv(65536) and not connection.send(b"x"):
                pass
        said = read(connection)
    assert 0.0 < said.least_rtt_s <= said.rtt_s < 1.0
    assert said.resent == 0


def test_of_a_connection_that_is_gone_nothing_is_said():
    connection = socket.socket()
    connection.close()
    assert read(connection) is None


def test_a_queue_is_told_from_an_idle_path_but_not_within_a_site():
    assert Reading(0.21, 0.2, 0).queue_is_short
    assert not Reading(0.25, 0.2, 0).queue_is_short
    assert not Reading(0.25, 0.2, 0).is_near
    assert Reading(0.002, 0.0002, 0).is_near
