"""Waits double, up to a limit, and go on to be numbers however long failures go on."""

from types import SimpleNamespace

import pytest

from patchswarm.daemon.fleet.shun import LAST_S, Shunned
from patchswarm.protocol.backoff import doubled
from patchswarm.protocol.conduct import MAX_BENCH_S, Conduct
from patchswarm.protocol.dialer import LAST_RETRY_S, Dialer

DAYS = 100_000
"""Failures of a day and more, every second or so: no float holds two to that power."""


def test_a_wait_doubles_up_to_its_limit():
    assert [doubled(0.25, times, 15.0) for times in range(8)] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert doubled(0.25, DAYS, 15.0) == 15.0


def test_a_seed_that_is_down_for_days_is_dialled_still():
    dialer = Dialer(["seed:1"], SimpleNamespace(uniform=lambda _, most: most))
    for failure in range(2000):
        now_s = failure * LAST_RETRY_S
        assert dialer.due({}, bytes(32), frozenset(), frozenset(), now_s) == ["seed:1"]
        dialer.failed("seed:1", now_s)


def test_a_node_that_breaks_rules_for_days_is_shunned_still():
    shunned, key = Shunned(), bytes(32)
    for offence in range(2000):
        shunned.offended(key, offence * LAST_S)
        assert shunned.is_shunned(key, offence * LAST_S)
    assert not shunned.is_shunned(key, 2000 * LAST_S)


def test_a_node_that_is_struck_for_days_is_benched_still():
    conduct = Conduct()
    for strike in range(2000):
        conduct.strike(2.0 * strike)
    assert conduct.benched_until_s == pytest.approx(2.0 * 1999 + MAX_BENCH_S)
