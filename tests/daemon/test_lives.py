"""What is noted of a version's life, and who hears of it."""

import pytest

from patchswarm.daemon.lives import KEPT, Lives, Moment

STREAM = "qwen"


@pytest.fixture
def observed():
    return []


@pytest.fixture
def lives(observed):
    clock = iter(range(1000, 100_000))
    return Lives(lambda *seen: observed.append(seen), lambda: float(next(clock)))


def note(lives, version, moment, stream=STREAM):
    lives.note(stream, 1, version, f"{version:032x}", moment)


def test_moments_are_kept_with_their_times_and_counted_from_the_one_before(lives, observed):
    note(lives, 7, Moment.ANNOUNCED)
    note(lives, 7, Moment.COMPLETE)
    (life,) = lives.of(STREAM)
    assert life.moments == {"announced": 1000.0, "complete": 1001.0}
    assert (life.version, life.trace) == (7, f"{7:032x}")
    assert observed == [(STREAM, Moment.ANNOUNCED, 0.0), (STREAM, Moment.COMPLETE, 1.0)]


def test_only_the_first_time_counts(lives, observed):
    note(lives, 7, Moment.ANNOUNCED)
    note(lives, 7, Moment.ANNOUNCED)
    assert len(observed) == 1


def test_the_newest_lives_are_kept(lives):
    for version in range(KEPT + 5):
        note(lives, version, Moment.ANNOUNCED)
    assert [life.version for life in lives.of(STREAM)] == list(range(KEPT + 4, 4, -1))
    assert lives.of("other") == []


def test_listeners_hear_of_their_stream_and_a_slow_one_misses_the_oldest(lives):
    with lives.listening(STREAM) as queue:
        note(lives, 1, Moment.ANNOUNCED, stream="other")
        for version in range(queue.maxsize + 3):
            note(lives, version, Moment.ANNOUNCED)
        heard = [queue.get_nowait().version for _ in range(queue.qsize())]
        assert heard == list(range(3, queue.maxsize + 3))
    note(lives, 1000, Moment.ANNOUNCED)
    assert queue.empty()
