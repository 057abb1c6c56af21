"""The table of states."""

import pytest

from patchswarm.daemon.local.gateway.states import MOVING, TRANSITIONS, Event, Machine, State


def test_every_state_and_every_event_is_in_the_table():
    assert set(TRANSITIONS) == set(State)
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)
    assert {after for row in TRANSITIONS.values() for after in row.values()} == set(State)


def test_the_label_can_only_move_after_a_pause_and_a_load():
    """CONFIRMED is where it moves."""
    assert [state for state, row in TRANSITIONS.items() if Event.CONFIRMED in row] == [State.LOADING]
    assert [state for state, row in TRANSITIONS.items() if State.LOADING in row.values()] == [
        State.PAUSING,
        State.LOADING,
    ]
    assert [state for state, row in TRANSITIONS.items() if State.PAUSING in row.values()] == [State.REBUILT]


def test_from_everywhere_a_way_leads_back_to_idle():
    for start in State:
        reached, frontier = {start}, [start]
        while frontier:
            for after in TRANSITIONS[frontier.pop()].values():
                if after not in reached:
                    reached.add(after)
                    frontier.append(after)
        assert State.IDLE in reached


def test_while_moving_only_the_move_itself_goes_on():
    news = {Event.ANNOUNCED, Event.COMMITTED, Event.GONE}
    assert all(not news & set(TRANSITIONS[state]) for state in MOVING)


def test_a_whole_move():
    machine = Machine()
    events = ["announced", "committed", "held", "paused", "retry", "confirmed", "resumed"]
    states = [machine.take(Event(event)) for event in events]
    assert states == ["fetching", "rebuilt", "pausing", "loading", "loading", "resuming", "idle"]


def test_what_is_not_in_the_table_is_a_bug():
    with pytest.raises(AssertionError, match="confirmed cannot happen while idle"):
        Machine().take(Event.CONFIRMED)
