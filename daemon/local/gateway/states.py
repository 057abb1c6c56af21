"""The state machine of an engine and its weights: every transition in one literal table. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """What is being done about the next version."""

    IDLE = "idle"
    """Nothing newer is known."""
    FETCHING = "fetching"
    """A newer version is announced, and not here yet."""
    REBUILT = "rebuilt"
    """A newer version is committed on this host; the hosts of the group are asked for it."""
    PAUSING = "pausing"
    """New requests wait; those that the version would break are drained, then the engine is paused."""
    LOADING = "loading"
    RESUMING = "resuming"
    """The engine has confirmed the weights: the label has moved."""
    ERROR = "error"
    """The last move failed; the reason is kept, and the move is tried again."""


class Event(StrEnum):
    """What happens."""

    ANNOUNCED = "announced"
    COMMITTED = "committed"
    """A newer version can be leased on this host."""
    GONE = "gone"
    """The newer version is not wanted, or not here, any more."""
    HELD = "held"
    """Every host holds it: the move begins."""
    PAUSED = "paused"
    RETRY = "retry"
    """A load failed and is tried again."""
    CONFIRMED = "confirmed"
    """The engine says that it has the weights it was given."""
    RESUMED = "resumed"
    FAILED = "failed"


S, E = State, Event
TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    S.IDLE: {E.ANNOUNCED: S.FETCHING, E.COMMITTED: S.REBUILT, E.GONE: S.IDLE},
    S.FETCHING: {E.ANNOUNCED: S.FETCHING, E.COMMITTED: S.REBUILT, E.GONE: S.IDLE},
    S.REBUILT: {E.ANNOUNCED: S.REBUILT, E.COMMITTED: S.REBUILT, E.GONE: S.IDLE, E.HELD: S.PAUSING},
    S.PAUSING: {E.PAUSED: S.LOADING, E.FAILED: S.ERROR},
    S.LOADING: {E.RETRY: S.LOADING, E.CONFIRMED: S.RESUMING, E.FAILED: S.ERROR},
    S.RESUMING: {E.RESUMED: S.IDLE, E.FAILED: S.ERROR},
    S.ERROR: {E.ANNOUNCED: S.ERROR, E.COMMITTED: S.REBUILT, E.GONE: S.ERROR},
}
"""State, event: next state. What is not in the table cannot happen."""

MOVING: Final = frozenset({State.PAUSING, State.LOADING, State.RESUMING})


class Machine:
    """One machine's state."""

    def __init__(self) -> None:
        self.state = State.IDLE

    def take(self, event: Event) -> State:
        """Go on. An event that the table does not have in this state is a bug of ours, and raises AssertionError."""
        after = TRANSITIONS[self.state].get(event)
        assert after is not None, f"{event} cannot happen while {self.state}"
        self.state = after
        return after
