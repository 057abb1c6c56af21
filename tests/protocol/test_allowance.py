"""Allowance: who says too much is heard more slowly, and what is useful is free."""

import pytest

from patchswarm.protocol.allowance import BUCKETS, BURST, PING, RANGES, RATE, REFUSAL, Allowance
from patchswarm.protocol.messages import Buckets, Have, Piece, Ping, Reason, Reject, Request

NAME, ATTEMPT = bytes(32), bytes(16)
HAVE = Have(ATTEMPT, ((0, 1),))
NO = Reject(1, Reason.MISSING)


@pytest.fixture
def allowance():
    return Allowance(0.0)


def test_a_newcomer_may_say_much_at_once_and_more_is_heard_at_a_steady_rate(allowance):
    for _ in range(int(BURST)):
        allowance.heard(HAVE, 0.0)
    assert allowance.wait_s(0.0) == 0.0
    for _ in range(100):
        allowance.heard(HAVE, 0.0)
    assert allowance.wait_s(0.0) == pytest.approx(100 / RATE)
    assert allowance.wait_s(100 / RATE) == 0.0


def test_many_ranges_are_dear(allowance):
    """They are put together one by one, on the event loop."""
    many = Have(ATTEMPT, tuple((4 * number, 4 * number) for number in range(4096)))
    for _ in range(int(BURST / (1 + 4096 / RANGES))):
        allowance.heard(many, 0.0)
    assert allowance.wait_s(0.0) == 0.0
    allowance.heard(many, 0.0)
    assert allowance.wait_s(0.0) > 0.0


def test_sums_that_are_answered_by_names_are_dear(allowance):
    for _ in range(int(BURST / BUCKETS)):
        allowance.heard(Buckets(bytes(2048)), 0.0)
    assert allowance.wait_s(0.0) == 0.0
    allowance.heard(Buckets(bytes(2048)), 0.0)
    assert allowance.wait_s(0.0) > 0.0


def test_requests_that_are_served_and_pieces_that_were_asked_for_are_free(allowance):
    for number in range(100_000):
        allowance.heard(Request(number, NAME), 0.0)
        allowance.heard(Piece(number, 0, 1, b"x"), 0.0)
    assert allowance.wait_s(0.0) == 0.0


def test_refusals_and_pings_are_dear(allowance):
    for _ in range(int(BURST / (REFUSAL + PING))):
        allowance.answered(NO, 0.0)
        allowance.heard(Ping(1), 0.0)
    assert allowance.wait_s(0.0) == 0.0
    allowance.answered(NO, 0.0)
    assert allowance.wait_s(0.0) > 0.0


def test_what_is_answered_with_anything_else_costs_nothing_more(allowance):
    for _ in range(2 * int(BURST)):
        allowance.answered(HAVE, 0.0)
    assert allowance.wait_s(0.0) == 0.0


def test_bytes_that_nobody_asked_for_are_paid_for(allowance):
    for _ in range(int(BURST) + 10):
        allowance.unasked(0.0)
    assert allowance.wait_s(0.0) == pytest.approx(10 / RATE)


def test_no_more_gathers_than_a_burst(allowance):
    assert allowance.wait_s(1e6) == 0.0
    for _ in range(int(BURST) + 10):
        allowance.heard(HAVE, 1e6)
    assert allowance.wait_s(1e6) == pytest.approx(10 / RATE)
