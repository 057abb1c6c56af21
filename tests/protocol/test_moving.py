"""Moving: what is queued at another site is asked where it comes sooner, or left to a mate who claims it."""

import pytest
from support.border import ATTEMPT, Desk

from patchswarm.protocol.link import HOPE_S
from patchswarm.protocol.messages import Cancel, Request
from patchswarm.protocol.ranges import bits_of, iterate


@pytest.fixture
def desk():
    return Desk()


@pytest.fixture
def others(desk):
    return desk.borders_elsewhere()


@pytest.fixture
def queue(desk, others):
    """Four chunks queued at a peer that has become slow, all of which another one has, too."""
    slow, quick = others
    ordinals = list(iterate(desk.plan.mine & ~desk.plan.owned))[:4]
    slow.goodput, quick.goodput = 1e5, 10e6
    for link in others:
        link.offers.remember(ATTEMPT, tuple((ordinal, ordinal) for ordinal in ordinals))
    for ordinal in ordinals:
        desk.series.asked.add(ordinal)
        slow.depart(ATTEMPT, ordinal, *desk.series.entry(ordinal), 0.0)
    return ordinals


def moved(desk):
    """Ordinals asked for and requests taken back since the last call, by link."""
    desk.moving.move(desk.series, 1.0)
    asked = [(effect.link, int(e.name)) for effect in desk.sent if isinstance(e := effect.message, Request)]
    cancelled = [(effect.link, e.request) for effect in desk.sent if isinstance(e := effect.message, Cancel)]
    desk.sent.clear()
    return asked, cancelled


def test_what_is_queued_at_a_slow_peer_is_asked_for_where_it_comes_much_sooner(desk, others, queue):
    slow, quick = others
    numbers = {flight.ordinal: number for number, flight in slow.flights.items()}
    asked, cancelled = moved(desk)
    assert {link for link, _ in asked} == {quick.number}
    assert [ordinal for _, ordinal in asked] == queue[: -len(asked) - 1 : -1], "the last one has longest to wait"
    assert cancelled == [(slow.number, numbers[ordinal]) for _, ordinal in asked]
    assert desk.series.asked.data == bits_of(queue)
    assert not slow.strikes
    while quick.flights:
        quick.land(next(iter(quick.flights)), 1.0, arrived=False)
    again, _ = moved(desk)
    assert not {ordinal for _, ordinal in again} & {ordinal for _, ordinal in asked}, "no chunk moves twice"


def test_nothing_moves_to_whom_it_would_not_be_quicker_from_or_who_has_brought_nothing(desk, others, queue):
    _, quick = others
    quick.goodput = 0.0
    assert moved(desk) == ([], [])
    quick.goodput = 2e4
    quick.measured_rtt(10.0)
    quick.min_rtt_s = 10.0
    assert moved(desk) == ([], [])


def test_what_has_begun_to_come_stays_where_it_is(desk, others, queue):
    slow, _ = others
    for flight in list(slow.flights.values())[1:]:
        slow.move(flight)
    slow.rate = 1.0
    assert moved(desk) == ([], [])


def test_what_a_border_was_to_get_from_its_mates_and_has_not_got_is_asked_of_another(desk, others):
    slow, quick = others
    ordinal = next(iterate(desk.plan.mine & ~desk.plan.owned))
    number = slow.expect(ATTEMPT, ordinal, *desk.series.entry(ordinal), 0.0)
    slow.begin(number, 1.0)
    desk.series.asked.add(ordinal)
    quick.goodput = 10e6
    quick.offers.remember(ATTEMPT, ((ordinal, ordinal),))
    since_s = slow.flights[number].sent_at_s
    desk.moving.move(desk.series, since_s + HOPE_S)
    assert desk.sent == [], "it may be on its way"
    desk.moving.move(desk.series, since_s + HOPE_S + 2 * slow.min_rtt_s)
    assert [(effect.link, type(effect.message)) for effect in desk.sent] == [
        (slow.number, Cancel),
        (quick.number, Request),
    ]


def test_what_waits_long_is_spare_and_is_taken_back_when_a_mate_brings_it(desk, others, queue):
    slow, _ = others
    assert desk.moving.waiting_long(desk.series) == bits_of(queue[1:]), "the first one is on its way"
    desk.moving.yield_queued(desk.series, bits_of(queue[:2]))
    assert [effect.message for effect in desk.sent] == [Cancel(1)]
    assert desk.series.asked.data == bits_of([queue[0], *queue[2:]])
    slow.goodput = 100e6
    assert desk.moving.waiting_long(desk.series) == 0
