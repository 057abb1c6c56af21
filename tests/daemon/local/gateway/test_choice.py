"""Which version comes next, who waits how long, and when a node is stale."""

import pytest
from daemon.local.gateway.test_constraint import constraints
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.daemon.local.gateway.choice import ANNOUNCE_S, Staleness, has_passed, next_version, patience_s
from patchswarm.daemon.local.gateway.constraint import Constraint

orders = st.tuples(st.integers(1, 2), st.integers(0, 12))


@given(st.none() | orders, st.sets(orders), st.lists(constraints, max_size=3))
def test_versions_only_go_forward_and_only_to_what_is_held(applied, held, waiting):
    chosen = next_version(applied, held, waiting)
    newer = {order for order in held if applied is None or order > applied}
    assert (chosen in newer) if newer else chosen is None
    if not waiting and newer:
        assert chosen == max(newer)


@given(st.sets(orders, min_size=1), constraints)
def test_whoever_waits_for_something_that_is_held_gets_it_in_the_end(held, constraint):
    applied, seen = None, []
    while (applied := next_version(applied, held, [constraint])) is not None:
        seen.append(applied)
    assert seen == sorted(seen)
    assert seen[-1] == max(held)
    if any(constraint.satisfied_by(order[1]) for order in held):
        assert any(constraint.satisfied_by(order[1]) for order in seen)


@given(constraints, orders, st.none() | orders)
def test_what_has_passed_can_not_come_any_more(constraint, applied, head):
    possible = [version for version in range(applied[1], 40) if constraint.satisfied_by(version)]
    if has_passed(constraint, applied, head):
        assert not possible
        assert head is None or head[0] <= applied[0]


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Constraint(min_version=6), 30.0),
        (Constraint(min_version=8), ANNOUNCE_S),
        (Constraint(min_version=8, wait_s=50.0), 50.0),
        (Constraint(min_version=6, wait_s=0.0), 0.0),
        (Constraint(exact_version=4, wait_s=50.0), 0.0),
        (Constraint(max_version=3), 0.0),
    ],
)
def test_patience(constraint, expected):
    """At version 5 of epoch 1, with 7 announced and 30 s by default."""
    assert patience_s(constraint, (1, 5), (1, 7), 30.0) == expected


def test_in_a_new_epoch_numbers_begin_anew_so_nothing_has_passed():
    assert not has_passed(Constraint(exact_version=2), (1, 5), (2, 1))
    assert patience_s(Constraint(exact_version=2), (1, 5), (2, 2), 30.0) == 30.0


def test_staleness():
    assert Staleness().reason(10**9, 1e9) is None
    assert Staleness(versions=2).reason(2, 1e9) is None
    assert "3 versions behind" in Staleness(versions=2).reason(3, 0.0)
    assert "behind for 61.0 s" in Staleness(seconds=60).reason(1, 61.0)
