"""Which congestion control a path calls for: loss without a queue tells."""

import itertools
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.daemon.fleet.congestion import LEAST_STRAY, Reading, Uplink, read

LEAST_S = 0.1


def seen(congestion, *looks, least_s=LEAST_S):
    """Readings of one connection: pairs of the queue in seconds and how many packets were sent again."""
    readings = [Reading(least_s + queue_s, least_s, resent) for queue_s, resent in looks]
    for before, now in itertools.pairwise(readings):
        congestion.look(before, now)
    return congestion.uplink.is_lossy


@pytest.fixture
def congestion():
    return Uplink(lambda _: None).path_to("far")


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


def test_what_is_known_stays_known_and_holds_for_all_paths_from_here():
    uplink = Uplink(lambda _: None)
    assert uplink.path_to("near") is uplink.path_to("near")
    assert uplink.path_to("near") is not uplink.path_to("far")
    assert uplink.path_to("") is not uplink.path_to("")
    assert seen(uplink.path_to("far"), *((0.0, number) for number in range(LEAST_STRAY + 1)))
    assert seen(uplink.path_to("near"), *((0.05, number) for number in range(9)))


def test_what_is_seen_here_is_said_once_and_what_was_heard_of_is_not_said_again():
    said = []
    uplink = Uplink(said.append)
    for _ in range(2):
        assert seen(uplink.path_to("far"), *((0.0, number) for number in range(LEAST_STRAY + 1)))
    assert said == ["far"]
    heard = Uplink(said.append)
    heard.is_lossy = True
    assert seen(heard.path_to("far"), *((0.0, number) for number in range(LEAST_STRAY + 1)))
    assert said == ["far"]


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), max_size=30))
def test_a_path_within_one_place_is_never_lossy(looks):
    total, said = 0, []
    for queue_s, more in looks:
        total += more
        said.append((queue_s, total))
    assert not seen(Uplink(lambda _: None).path_to("near"), *said, least_s=0.001)


def control_of(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def test_a_connection_begins_with_cubic_and_changes_to_bbr_where_the_kernel_lets_it(congestion):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        congestion.choose(connection)
        assert control_of(connection) == "cubic"
        congestion.uplink.is_lossy = True
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
