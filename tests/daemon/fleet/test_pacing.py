"""Limits and meters: bytes over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.daemon.fleet.meter import Meter
from patchswarm.daemon.fleet.pacing import Pacer


def test_without_a_limit_nothing_waits():
    pacer = Pacer(0)
    assert [pacer.book(10**9, 0.0) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_a_burst_goes_at_once_and_the_rest_at_the_rate():
    pacer = Pacer(1000)
    assert pacer.book(100, 50.0) == 0.0
    assert pacer.book(500, 50.0) == pytest.approx(0.5)
    assert pacer.book(500, 50.0) == pytest.approx(1.0)
    assert pacer.book(500, 51.0) == pytest.approx(0.5)


def test_a_pause_saves_up_no_more_than_one_burst():
    pacer = Pacer(1000)
    pacer.book(100, 0.0)
    assert pacer.book(600, 1000.0) == pytest.approx(0.5)


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 2)), min_size=1, max_size=40))
def test_the_rate_is_kept_whatever_the_pattern(moves):
    pacer, now_s, moved = Pacer(1000), 10.0, 0
    for size, pause_s in moves:
        now_s += pause_s
        moved += size
        now_s += pacer.book(size, now_s)
    assert moved <= 1000 * (now_s - 10.0 + 0.1) + 1e-6


def test_a_steady_flow_is_metered_at_its_rate():
    meter = Meter()
    for tick in range(200):
        meter.add(100, tick / 10)
    assert meter.rate(20.0) == pytest.approx(1000, rel=0.05)


def test_a_flow_that_ended_fades():
    meter = Meter()
    meter.add(3000, 0.0)
    assert meter.rate(0.0) == 1000
    assert meter.rate(3.0) == pytest.approx(1000 / 2.718, rel=0.01)
    assert meter.rate(60.0) < 1e-3


def test_a_clock_that_steps_back_changes_nothing():
    meter = Meter()
    meter.add(3000, 10.0)
    assert meter.rate(9.0) == 1000
