"""Serving: every request is answered once, some of them not before their chunk has come."""

import math

import pytest

from patchswarm.protocol.effects import Send, Serve, Withdraw
from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.messages import Reason, Reject, Request
from patchswarm.protocol.serving import (
    AGAIN_SHARE,
    CHAIN_S,
    CROSSING_S,
    FASTER,
    LEAVING_S,
    MAX_COPIES,
    MAX_WAITING,
    SLOW_STARTS,
    WAITING_S,
    Serving,
)

ME, CHUNK = digest(b"me"), digest(b"chunk")


class Desk:
    """A `Serving` with six peers of other sites, and what it wants done."""

    def __init__(self, *, seeding=False):
        self.effects, self.store, self.coming = [], set(), {CHUNK}
        self.links = {number: Link(number, bytes(32), digest(b"%d" % number), True, 0.0, 0.0) for number in range(6)}
        for number, link in self.links.items():
            link.goodput = number * 1e6
        self.serving = Serving(
            self, self.links, self.effects.append, self.store.__contains__, lambda name, _: name in self.coming, ME
        )
        self._seeding = seeding
        self.chunk_size = 500_000

    def is_seeding(self, *_):
        return self._seeding

    def size(self, _):
        return self.chunk_size

    def ask(self, number, name=CHUNK, now_s=0.0, request=1):
        self.serving.asked(self.links[number], Request(request, name), "here", now_s)

    def come(self, name=CHUNK, now_s=0.0):
        self.store.add(name)
        self.serving.stored(name, now_s)

    def leave(self, number, name=CHUNK):
        self.serving.served(self.links[number].node, name)

    def done(self):
        done = self.effects[:]
        self.effects.clear()
        return done

    def served_to(self):
        return [effect.link for effect in self.done() if isinstance(effect, Serve)]


@pytest.fixture
def desk():
    return Desk()


def refused(number, reason=Reason.BUSY, holders=()):
    return Send(number, Reject(1, reason, tuple(holders)))


def test_a_request_for_what_is_on_its_way_waits_and_is_served_when_it_comes(desk):
    desk.ask(0)
    assert desk.done() == []
    desk.come()
    assert desk.done() == [Serve(0, 1, CHUNK, False)]
    desk.leave(0)
    assert desk.serving.idle


def test_a_request_for_what_is_not_to_come_is_rejected(desk):
    desk.coming.clear()
    desk.ask(0)
    assert desk.done() == [refused(0, Reason.MISSING)]


def test_those_who_wait_are_served_as_many_at_a_time_as_may(desk):
    for number in range(6):
        desk.ask(number)
    desk.come()
    assert desk.served_to() == list(range(MAX_COPIES))
    desk.leave(0)
    assert desk.served_to() == [MAX_COPIES]


def test_who_asks_while_enough_copies_are_under_way_is_told_where(desk):
    desk.come()
    for number in range(MAX_COPIES + 1):
        desk.ask(number)
    *_, last = desk.done()
    assert last == refused(MAX_COPIES, holders=[desk.links[number].node for number in range(MAX_COPIES)])


def test_a_node_that_is_behind_sends_to_the_fastest_and_the_others_there(desk):
    first, second = digest(b"first"), digest(b"second")
    desk.coming.update({first, second})
    desk.ask(0, first)
    for number in (1, 4, 2):
        desk.ask(number, second)
    desk.come(first)
    desk.come(second, 2 * CHAIN_S)
    assert desk.serving.behind_s(2 * CHAIN_S) == 2 * CHAIN_S
    sent = desk.done()
    fastest = [desk.links[4].node]
    assert sent == [Serve(0, 1, first, False), refused(1, holders=fastest), refused(2, holders=fastest), sent[-1]]
    assert sent[-1] == Serve(4, 1, second, False)


def test_a_node_is_behind_until_half_of_those_who_waited_have_theirs(desk):
    for number in range(4):
        desk.ask(number)
    desk.come()
    desk.leave(0)
    assert desk.serving.behind_s(5.0) == 5.0
    desk.leave(1)
    assert desk.serving.behind_s(5.0) == 0.0


def test_who_has_waited_for_long_is_sent_away(desk):
    desk.ask(0)
    desk.serving.tick(WAITING_S - 0.1)
    assert desk.done() == []
    desk.serving.tick(WAITING_S)
    assert desk.done() == [refused(0)]
    desk.come()
    assert desk.done() == []


def test_a_request_that_waits_can_be_taken_back(desk):
    desk.ask(0)
    desk.serving.cancelled(desk.links[0], 7)
    assert desk.done() == [Withdraw(0, 7)], "its chunk may be queued still"
    desk.serving.cancelled(desk.links[0], 1)
    assert desk.done() == [refused(0)]
    assert desk.serving.idle


def test_who_waits_is_told_who_has_it_instead(desk):
    desk.ask(0)
    desk.serving.refused(CHUNK, (desk.links[3].node,))
    assert desk.done() == [refused(0, holders=[desk.links[3].node])]


def test_one_peer_cannot_have_any_number_of_requests_wait(desk):
    names = [digest(b"%d" % number) for number in range(MAX_WAITING + 1)]
    desk.coming.update(names)
    for name in names:
        desk.ask(0, name)
    assert desk.done() == [refused(0, Reason.MISSING)]


def test_nothing_is_kept_of_a_link_that_is_gone(desk):
    desk.ask(0)
    desk.ask(1)
    desk.come()
    other = digest(b"other")
    desk.coming.add(other)
    desk.ask(0, other)
    for number in (0, 1):
        desk.serving.lost(desk.links.pop(number))
    assert desk.serving.idle


def test_a_seed_sends_a_chunk_across_once_and_says_to_whom():
    desk = Desk(seeding=True)
    desk.come()
    desk.ask(0)
    desk.leave(0)
    desk.ask(1, now_s=CROSSING_S / 2)
    desk.ask(1, now_s=CROSSING_S)
    assert desk.done() == [
        Serve(0, 1, CHUNK, False),
        refused(1, holders=[desk.links[0].node]),
        Serve(1, 1, CHUNK, False),
    ]


def test_a_large_chunk_has_as_long_to_cross_as_slow_start_takes_on_a_long_path():
    desk = Desk(seeding=True)
    desk.chunk_size = 4_000_000
    desk.links[0].measured_rtt(0.25)
    slow_start_s = desk.links[0].slow_start_s(desk.chunk_size)
    assert 8 * 0.25 < slow_start_s < 10 * 0.25
    desk.come()
    desk.ask(0)
    desk.leave(0)
    desk.ask(1, now_s=SLOW_STARTS * slow_start_s - 0.1)
    assert desk.done() == [Serve(0, 1, CHUNK, False), refused(1, holders=[desk.links[0].node])]
    desk.ask(1, now_s=SLOW_STARTS * slow_start_s)
    assert desk.served_to() == [1]


def test_a_chunk_that_is_still_leaving_on_a_slow_link_is_not_sent_across_a_second_time_for_a_while():
    desk = Desk(seeding=True)
    desk.come()
    desk.ask(0)
    desk.serving.tick(LEAVING_S - 0.1)
    desk.ask(1, now_s=LEAVING_S - 0.1)
    desk.ask(1, now_s=LEAVING_S)
    assert desk.done() == [
        Serve(0, 1, CHUNK, False),
        refused(1, holders=[desk.links[0].node]),
        Serve(1, 1, CHUNK, False),
    ]


@pytest.fixture
def paced():
    """A seed that has given the first node a chunk each second, and others chunks more often; it is 20 s."""
    desk = Desk(seeding=True)
    for number, gap_s in ((0, 1.0), (1, 0.9 / FASTER), (2, 1.1 / FASTER)):
        for at in range(20):
            name = digest(b"%d %d" % (number, at))
            desk.come(name)
            desk.ask(number, name, now_s=20 - gap_s * (20 - at))
            desk.leave(number, name)
    desk.come()
    desk.done()
    desk.ask(0, now_s=20.0)
    assert desk.served_to() == [0]
    return desk


def test_a_chunk_on_its_way_to_a_slow_node_is_sent_to_a_much_faster_one_at_once(paced):
    paced.ask(2, now_s=20.1)
    assert paced.done() == [refused(2, holders=[paced.links[0].node])]
    paced.ask(3, now_s=20.1)
    assert paced.done() == [refused(3, holders=[paced.links[0].node])], "nothing is known of that one"
    paced.ask(1, now_s=20.1)
    assert paced.served_to() == [1]
    paced.ask(2, now_s=20.2)
    assert paced.done() == [refused(2, holders=[paced.links[1].node])]


def test_who_asks_for_one_chunk_again_and_again_is_no_faster_for_it(paced):
    other = digest(b"its own")
    paced.come(other)
    for at in range(50):
        paced.ask(2, other, now_s=20.0 + at / 500)
        paced.leave(2, other)
    paced.done()
    paced.ask(2, now_s=20.1)
    assert paced.done() == [refused(2, holders=[paced.links[0].node])]


def test_few_chunks_are_sent_again_because_somebody_is_faster(paced):
    names = [digest(b"more %d" % number) for number in range(5)]
    for at, name in enumerate(names):
        paced.come(name)
        paced.ask(0, name, now_s=21.0 + at)
    paced.done()
    for at, name in enumerate(names):
        paced.ask(1, name, now_s=25.1 + at / 100)
    again = len(paced.served_to())
    assert again == math.ceil(AGAIN_SHARE * (60 + 1 + len(names))) < len(names)


def test_a_node_that_stops_turns_away_who_waits_and_whoever_asks_even_for_what_it_has(desk):
    desk.ask(0)
    desk.serving.stop()
    assert desk.done() == [refused(0, Reason.STOPPING)]
    desk.come()
    desk.ask(1)
    assert desk.done() == [refused(1, Reason.STOPPING)]


def test_who_asks_a_seed_again_and_again_does_not_keep_a_chunk_from_the_others():
    desk = Desk(seeding=True)
    desk.come()
    for at in range(4):
        desk.ask(0, now_s=at * CROSSING_S / 4)
        desk.leave(0)
    desk.ask(1, now_s=CROSSING_S)
    assert desk.served_to() == [0, 0, 0, 0, 1]


def test_who_is_being_sent_a_chunk_is_not_sent_it_again_meanwhile(desk):
    """It would take the places of others."""
    desk.come()
    desk.ask(0)
    desk.ask(0)
    assert desk.done() == [Serve(0, 1, CHUNK, False), refused(0, holders=[desk.links[0].node])]
    desk.leave(0)
    desk.ask(0)
    assert desk.served_to() == [0]


def test_who_waits_for_a_chunk_waits_once(desk):
    desk.ask(0)
    desk.ask(0, request=2)
    assert desk.done() == [Send(0, Reject(2, Reason.BUSY))]
    desk.ask(1)
    desk.come()
    assert desk.served_to() == [0, 1], "one peer that asks again and again keeps nobody else off"


def test_a_chunk_is_passed_on_when_those_who_have_not_got_it_yet_want_it_no_more(desk):
    for number in range(6):
        desk.ask(number)
    desk.come(now_s=1.0)
    desk.served_to()
    for number in range(3, 6):
        desk.serving.cancelled(desk.links[number], 1)
    assert desk.serving.behind_s(9.0) == 8.0, "three copies have not left yet"
    for number in range(3):
        desk.leave(number)
    assert desk.serving.behind_s(9.0) == 0.0
    assert desk.serving.idle


def test_a_chunk_is_passed_on_when_those_who_waited_too_long_were_sent_away(desk):
    for number in range(6):
        desk.ask(number)
    desk.come(now_s=1.0)
    desk.serving.tick(WAITING_S + 1.0)
    for number in range(3):
        desk.leave(number)
    assert desk.serving.behind_s(WAITING_S + 2.0) == 0.0
