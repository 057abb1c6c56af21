"""What a peer says it has, and what of that is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.protocol.offers import DOUBT_S, MAX_HAVES_BYTES, MAX_SERIES, Offers
from patchswarm.protocol.series import MAX_CHUNKS, ChunkSet

ATTEMPT = b"a" * 16


@pytest.fixture
def offers():
    return Offers()


def test_an_offer_that_was_not_kept_is_not_believed_for_a_while_however_often_it_is_repeated(offers):
    offers.remember(ATTEMPT, ((0, 3),))
    offers.doubt(ATTEMPT, 2, 0.0)
    assert offers.of(ATTEMPT).data == 0b1011
    assert offers.remember(ATTEMPT, ((0, 3),)).data == 0, "nothing of this is new"
    assert offers.of(ATTEMPT).data == 0b1011
    offers.forgive(DOUBT_S + 1)
    assert offers.of(ATTEMPT).data == 0b1111


def test_a_doubt_can_be_taken_back(offers):
    offers.remember(ATTEMPT, ((0, 3),))
    offers.doubt(ATTEMPT, 2, 0.0)
    offers.trust(ATTEMPT, 2)
    assert offers.of(ATTEMPT).data == 0b1111


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_haves_add_up(said):
    offers = Offers()
    known = {}
    for number, first, more in said:
        attempt = bytes([number]) * 16
        new = set(range(first, first + more + 1)) - known.setdefault(attempt, set())
        heard = offers.remember(attempt, ((first, first + more),))
        assert {ordinal for ordinal in range(120) if ordinal in heard} == new
        known[attempt] |= new
    for attempt, ordinals in known.items():
        assert {ordinal for ordinal in range(120) if ordinal in offers.of(attempt)} == ordinals
    assert offers._said_bytes == sum(each.size_bytes() for each in offers._said.values())


def test_what_a_peer_says_takes_bounded_memory(offers):
    for number in range(MAX_SERIES + 200):
        offers.remember(number.to_bytes(16, "big"), ((0, 10),))
    assert len(offers._said) == MAX_SERIES
    for number in range(300):
        offers.remember(number.to_bytes(16, "little"), ((MAX_CHUNKS - 1, MAX_CHUNKS - 1),))
    assert sum(each.size_bytes() for each in offers._said.values()) <= MAX_HAVES_BYTES
    assert offers.of((299).to_bytes(16, "little")) == ChunkSet(1 << MAX_CHUNKS - 1)


def test_what_a_peer_has_no_time_for_and_what_it_has_not_are_told_apart(offers):
    offers.remember(ATTEMPT, ((0, 3),))
    offers.defer(ATTEMPT, 1)
    assert offers.deferred(ATTEMPT) == ChunkSet(0b10)
    assert offers.of(ATTEMPT).data == 0b1111, "it has it still"
    offers.undefer()
    assert offers.deferred(ATTEMPT) is None
    assert offers.take_back(ATTEMPT, 2, 0.0)
    assert not offers.take_back(ATTEMPT, 2, 0.0), "it offers that no more"
    assert offers.said(ATTEMPT).data == 0b1011
    offers.forgive(DOUBT_S + 1)
    assert offers.of(ATTEMPT).data == 0b1011
