"""Conduct: strikes, benches, and how they pass."""

import pytest

from patchswarm.protocol.conduct import (
    BENCH_S,
    BROKEN_OFFERS,
    FORGIVE_S,
    MAX_BENCH_S,
    ONE_EVENT_S,
    SECOND_CHANCES,
    Conduct,
    Conducts,
)

NODE = bytes(32)


@pytest.fixture
def conduct():
    return Conduct()


def test_a_strike_benches_for_a_while(conduct):
    conduct.strike(5.0)
    conduct.forgive(5.0 + BENCH_S - 0.1)
    assert conduct.is_benched
    conduct.forgive(5.0 + BENCH_S)
    assert not conduct.is_benched


def test_each_bench_is_twice_as_long_as_the_last_up_to_a_limit(conduct):
    now_s, benches = 0.0, []
    for _ in range(8):
        conduct.strike(now_s)
        benches.append(conduct.benched_until_s - now_s)
        now_s += ONE_EVENT_S
    assert benches == [min(BENCH_S * 2**at, MAX_BENCH_S) for at in range(8)]
    assert benches[-1] == MAX_BENCH_S


def test_what_fails_at_one_time_is_one_strike(conduct):
    for at in range(8):
        conduct.strike(3.0 + at * ONE_EVENT_S / 10)
    assert conduct.strikes == 1


def test_strikes_are_forgiven_one_by_one(conduct):
    conduct.strike(0.0)
    conduct.strike(ONE_EVENT_S)
    conduct.forgive(FORGIVE_S)
    assert conduct.strikes == 2
    conduct.forgive(FORGIVE_S + 2)
    conduct.forgive(FORGIVE_S + 3)
    assert conduct.strikes == 1
    conduct.forgive(2 * FORGIVE_S + 4)
    assert conduct.strikes == 0


def test_who_brings_it_after_all_is_taken_back_the_first_times_only(conduct):
    for count in range(SECOND_CHANCES + 1):
        conduct.strike(count * 2 * ONE_EVENT_S)
        conduct.kept_word()
        assert conduct.is_benched == (count == SECOND_CHANCES)


def test_offers_that_are_not_stood_by_add_up_to_a_strike_and_a_chunk_that_comes_makes_up_for_them(conduct):
    for _ in range(BROKEN_OFFERS - 1):
        conduct.broke_offer(1.0)
    conduct.kept_word()
    for _ in range(BROKEN_OFFERS - 1):
        conduct.broke_offer(1.0)
    assert not conduct.strikes
    conduct.broke_offer(1.0)
    assert conduct.strikes == 1
    assert conduct.is_benched


def test_conduct_outlives_a_connection_and_is_forgotten_when_all_is_forgiven():
    conducts = Conducts()
    conducts.of(NODE).strike(0.0)
    conducts.forgive(frozenset(), 5.0)
    assert conducts.of(NODE).is_benched
    conducts.forgive(frozenset(), FORGIVE_S + 5)
    assert len(conducts) == 0
    conducts.of(NODE)
    conducts.forgive(frozenset({NODE}), FORGIVE_S + 6)
    assert len(conducts) == 1, "as long as it is linked"
