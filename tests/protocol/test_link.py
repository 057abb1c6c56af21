"""Links: windows, deadlines, strikes and what is remembered of a peer's word."""

import math

import pytest

from patchswarm.protocol.link import (
    FIRST_WINDOW_BYTES,
    LEAST_RTT_S,
    MAX_DEADLINE_S,
    MAX_STALL_S,
    MIN_DEADLINE_S,
    MIN_WINDOW_BYTES,
    NEAR_MEMORY_S,
    PACE_S,
    RATE_MEMORY_S,
    RATED_S,
    REFUSING_S,
    STALL_S,
    Link,
)

ATTEMPT = bytes(16)
CHUNK = 40_000


@pytest.fixture
def link():
    return Link(0, bytes(32), bytes(32), True, 0.0, 0.0)


def ask(link, count, now_s=0.0, size=CHUNK):
    return [link.depart(ATTEMPT, number, b"%032d" % number, size, now_s) for number in range(count)]


def test_the_window_is_small_until_a_rate_is_known(link):
    assert link.window_bytes() == MIN_WINDOW_BYTES
    asked = 0
    while link.has_room():
        ask(link, 1)
        asked += 1
    assert (asked - 1) * CHUNK < MIN_WINDOW_BYTES <= asked * CHUNK


def test_two_chunks_are_asked_for_however_large_they_are(link):
    ask(link, 1, size=4 * MIN_WINDOW_BYTES)
    assert link.has_room()
    ask(link, 1, size=4 * MIN_WINDOW_BYTES)
    assert not link.has_room()


def test_a_slow_peer_has_one_chunk_to_send_until_most_of_it_has_come(link):
    link.measured_rtt(0.2)
    link.goodput = MIN_WINDOW_BYTES
    ask(link, 1, size=4 * MIN_WINDOW_BYTES)
    assert not link.has_room()
    link.progressed(2 * MIN_WINDOW_BYTES, 1.0)
    assert link.left_bytes() == 2 * MIN_WINDOW_BYTES
    assert not link.has_room()
    link.progressed(3 * MIN_WINDOW_BYTES + 1, 2.0)
    assert link.has_room()


def test_a_fast_peer_has_two_chunks_to_send_however_small_its_window(link):
    link.measured_rtt(0.001)
    link.goodput = 1e9
    ask(link, 1, size=16 * MIN_WINDOW_BYTES)
    assert link.has_room(), "it would be through before anyone looks"


def test_what_has_come_whole_is_not_left_to_come_nor_what_was_moved(link):
    first, _, third = ask(link, 3)
    link.progressed(CHUNK + 100, 0.1)
    link.came_whole(link.flight(first).name)
    link.came_whole(link.flight(first).name)
    assert link.left_bytes() == 2 * CHUNK - 100
    assert link.move(link.flight(third)) == third
    assert link.left_bytes() == CHUNK - 100
    link.land(first, 0.2, arrived=True)
    assert link.left_bytes() == CHUNK - 100


def test_the_bytes_of_headers_do_not_add_up_over_time(link):
    for second in range(9):
        (number,) = ask(link, 1, now_s=second)
        link.came_whole(link.flight(number).name)
        link.land(number, second + 0.5, arrived=True)
        link.progressed((second + 1) * (CHUNK + 100), second + 0.6)
    ask(link, 1, now_s=10.0)
    assert link.left_bytes() == CHUNK


def test_chunks_come_in_turn_at_the_rate_of_the_moment(link):
    link.measured_rtt(0.2)
    link.goodput = 10e6
    ask(link, 2, now_s=1.0)
    assert [left_s for _, left_s in link.queue()] == pytest.approx([CHUNK / 10e6, 2 * CHUNK / 10e6])
    link.progressed(CHUNK // 4, 1.3)
    assert link.rate is None, "it cannot have come before a round trip: that is too short a time to measure"
    link.progressed(CHUNK // 2, 1.2 + RATED_S)
    assert link.rate == pytest.approx(CHUNK / 2 / RATED_S)
    assert [left_s for _, left_s in link.queue()] == pytest.approx([RATED_S, 3 * RATED_S])
    link.progressed(CHUNK // 2, 1.3 + 2 * RATED_S)
    assert next(left_s for _, left_s in link.queue()) > 3600, "nothing comes"
    assert link.wait_s(CHUNK) > 3600


def test_the_window_holds_twice_what_fills_the_path(link):
    link.measured_rtt(0.2)
    (number,) = ask(link, 1, size=1_000_000)
    link.land(number, 0.2, arrived=True)
    assert link.goodput == pytest.approx(5e6)
    assert link.window_bytes() == pytest.approx(2 * 5e6 * 0.2, rel=0.01)


def test_within_a_site_the_window_holds_more_than_the_path_does(link):
    link.measured_rtt(0.0002)
    link.goodput = 100e6
    assert link.window_bytes() == pytest.approx(2 * 100e6 * LEAST_RTT_S)


def test_a_chunk_takes_a_round_trip_and_its_turn_behind_what_is_under_way(link):
    link.measured_rtt(0.2)
    assert link.wait_s(9 * FIRST_WINDOW_BYTES) == pytest.approx(0.2 + 0.2 * math.log2(10)), "as long as slow start"
    link.goodput = 10e6
    ask(link, 3)
    assert link.wait_s(CHUNK) == pytest.approx(0.2 + 4 * CHUNK / 10e6)


def test_what_a_peer_has_yet_to_get_stays_outside_the_window_until_it_has_it(link):
    link.measured_rtt(0.2)
    number = link.expect(ATTEMPT, 7, b"name", MIN_WINDOW_BYTES, 1.0)
    assert link.inflight_bytes == 0
    assert not link.is_stuck
    assert math.isinf(link.flight(number).deadline_s)
    link.begin(number, 5.0)
    assert link.awaited_bytes == 0
    assert link.inflight_bytes == MIN_WINDOW_BYTES
    assert 5.0 < link.flight(number).deadline_s < 5.0 + MAX_DEADLINE_S
    link.land(number, 5.2, arrived=True)
    assert link.goodput == pytest.approx(MIN_WINDOW_BYTES / 0.4), "as if asked for a round trip before"


def test_what_comes_before_the_peer_has_said_so_measures_nothing(link):
    number = link.expect(ATTEMPT, 7, b"name", CHUNK, 1.0)
    assert link.land(number, 1.5, arrived=True).ordinal == 7
    assert link.goodput == 0.0
    assert (link.inflight_bytes, link.awaited_bytes, link.by_name) == (0, 0, {})


def test_as_much_is_asked_for_in_advance_as_a_window_holds(link):
    asked = 0
    while link.has_room_to_await():
        link.expect(ATTEMPT, asked, b"%032d" % asked, CHUNK, 0.0)
        asked += 1
    assert (asked - 1) * CHUNK < MIN_WINDOW_BYTES <= asked * CHUNK


def test_within_a_site_the_best_rate_is_forgotten_soon_for_mates_share_their_links(link):
    link.measured_rtt(0.0002)
    (quick,) = ask(link, 1, 0.0)
    link.land(quick, 0.001, arrived=True)
    best = link.goodput
    (slow,) = ask(link, 1, 0.5)
    link.land(slow, 1.0, arrived=True)
    assert link.goodput == best
    (slow,) = ask(link, 1, NEAR_MEMORY_S)
    link.land(slow, NEAR_MEMORY_S + 0.5, arrived=True)
    assert link.goodput < best / 10


def test_our_own_queues_do_not_widen_the_window(link):
    link.measured_rtt(0.1)
    for _ in range(50):
        link.measured_rtt(3.0)
    link.goodput = 10e6
    assert link.window_bytes() == pytest.approx(2 * 10e6 * 0.1, rel=0.01)


def test_the_best_rate_counts_for_a_while(link):
    link.measured_rtt(0.1)
    (fast,) = ask(link, 1)
    link.land(fast, 0.01, arrived=True)
    best = link.goodput
    (slow,) = ask(link, 1, 1.0)
    link.land(slow, 2.0, arrived=True)
    assert link.goodput == best
    (slow,) = ask(link, 1, RATE_MEMORY_S + 1)
    link.land(slow, RATE_MEMORY_S + 2, arrived=True)
    assert link.goodput < best


def test_a_request_that_is_rejected_gives_its_room_back_and_measures_nothing(link):
    numbers = ask(link, 3)
    for number in numbers:
        assert link.land(number, 1.0, arrived=False) is not None
        assert link.land(number, 1.0, arrived=False) is None, "closed once"
    assert link.inflight_bytes == 0
    assert link.goodput == 0
    assert not link.by_name


def test_deadlines_grow_with_what_is_asked_and_have_an_end(link):
    numbers = ask(link, 200, size=4_000_000)
    deadlines = [link.flights[number].deadline_s for number in numbers]
    assert deadlines == sorted(deadlines)
    assert deadlines[0] >= MIN_DEADLINE_S
    assert deadlines[-1] == MAX_DEADLINE_S


def test_a_deadline_moves_on_with_what_comes_and_not_without(link):
    link.measured_rtt(0.1)
    link.goodput = 20e6
    numbers = ask(link, 2, size=2_000_000)
    first, second = (link.flights[number] for number in numbers)
    assert second.deadline_s == MIN_DEADLINE_S
    assert not link.prolong(first, MIN_DEADLINE_S), "nothing has come"
    for tenth in range(1, 21):
        link.progressed(tenth * 100_000, tenth / 10)
    assert link.prolong(second, MIN_DEADLINE_S)
    assert MIN_DEADLINE_S + 3 * 2.0 < second.deadline_s < MIN_DEADLINE_S + 5 * 2.0, (
        "as long as the rest takes at 1 MB/s"
    )
    assert not link.prolong(second, MAX_DEADLINE_S), "not for ever"


def test_a_trickle_cannot_make_a_deadline_of_days(link):
    link.goodput = 1.0
    (number,) = ask(link, 1)
    assert link.flights[number].deadline_s <= MAX_DEADLINE_S


def test_round_trips_are_smoothed_as_rfc_6298_says(link):
    link.measured_rtt(0.1)
    assert (link.srtt_s, link.rttvar_s) == (0.1, 0.05)
    link.measured_rtt(0.2)
    assert link.rttvar_s == pytest.approx(0.75 * 0.05 + 0.25 * 0.1)
    assert link.srtt_s == pytest.approx(0.875 * 0.1 + 0.125 * 0.2)
    assert link.min_rtt_s == 0.1


def test_a_request_stalls_when_nothing_of_any_chunk_comes_for_a_while(link):
    link.measured_rtt(0.05)
    patience_s = STALL_S + 4 * 0.05
    first, second = ask(link, 2, 10.0)
    assert not link.stalls(link.flights[first], 10.0 + patience_s)
    assert link.stalls(link.flights[first], 10.1 + patience_s)
    link.progressed(1, 11.0)
    assert not link.stalls(link.flights[second], 11.0 + patience_s), "what comes of another chunk counts"
    link.progressed(1, 12.0)
    assert link.stalls(link.flights[second], 11.1 + patience_s), "the same bytes do not count again"


def test_what_was_just_asked_for_does_not_stall_because_of_a_pause_before(link):
    (number,) = ask(link, 1, 100.0)
    assert not link.stalls(link.flights[number], 100.5)


def test_a_peer_that_makes_its_round_trips_look_long_is_not_waited_for_longer(link):
    link.measured_rtt(5.0)
    (number,) = ask(link, 1)
    assert link.stalls(link.flights[number], MAX_STALL_S + 0.1)


def test_a_chunk_that_is_here_and_being_verified_does_not_stall(link):
    first, second = ask(link, 2)
    link.came_whole(link.flights[first].name)
    assert not link.stalls(link.flights[first], 60.0)
    assert link.stalls(link.flights[second], 60.0)


def test_nobody_is_blamed_for_what_this_node_did_not_read(link):
    (number,) = ask(link, 1)
    link.excuse(9.9)
    assert not link.stalls(link.flights[number], 10.0)


def test_the_pace_is_what_came_while_something_was_asked_for(link):
    link.measured_rtt(0.01)
    link.progressed(500_000, 4.0)
    ask(link, 1, 5.0)
    link.measure_pace(5.0 + PACE_S)
    assert link.pace is None, "too early to say"
    link.progressed(520_000, 6.0)
    link.measure_pace(7.0)
    assert link.pace == pytest.approx(10_000)


def test_a_peer_is_stuck_when_all_it_was_asked_is_late(link):
    numbers = ask(link, 2)
    assert not link.is_stuck
    link.mark_late(link.flights[numbers[0]], 5.0)
    assert not link.is_stuck
    link.mark_late(link.flights[numbers[1]], 5.0)
    assert link.is_stuck
    link.land(numbers[0], 6.0, arrived=True)
    assert link.is_stuck
    link.land(numbers[1], 6.0, arrived=True)
    assert not link.is_stuck
    assert link.late_flights == 0


def test_a_peer_that_never_has_time_is_not_waited_for_until_it_sends_something(link):
    link.refused(10.0)
    link.refused(10.0 + REFUSING_S - 0.1)
    assert not link.is_doubtful
    link.refused(10.0 + REFUSING_S)
    assert link.is_doubtful
    (number,) = ask(link, 1, 20.0)
    link.land(number, 21.0, arrived=True)
    assert not link.is_doubtful
    link.refused(22.0)
    link.progressed(link.moved_bytes + 1000, 24.0)
    link.refused(22.0 + REFUSING_S)
    assert not link.is_doubtful, "a part of a chunk has come meanwhile"
