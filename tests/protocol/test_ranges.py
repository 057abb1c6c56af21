"""Sets of ordinals, as bitmaps and as ranges."""

import time

from hypothesis import given
from hypothesis import strategies as st

from patchswarm.protocol.messages import Have, check_message
from patchswarm.protocol.ranges import bits_of, bits_of_ranges, iterate, mask, to_ranges

ordinals = st.sets(st.integers(0, 5000) | st.integers(0, 80))


@given(ordinals)
def test_a_bitmap_gives_back_what_it_was_made_of_in_order(chosen):
    assert list(iterate(bits_of(chosen))) == sorted(chosen)


@given(ordinals)
def test_ranges_cover_the_same_ordinals_rise_and_do_not_touch(chosen):
    ranges = to_ranges(bits_of(chosen))
    assert [ordinal for first, last in ranges for ordinal in range(first, last + 1)] == sorted(chosen)
    check_message(Have(bytes(16), tuple(ranges)))


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_mask_holds_both_ends(first, more):
    assert list(iterate(mask(first, first + more))) == list(range(first, first + more + 1))


@given(ordinals)
def test_ranges_become_the_bitmap_that_they_were_made_of(chosen):
    bitmap = bits_of(chosen)
    assert bits_of_ranges(to_ranges(bitmap)) == bitmap


def test_as_many_ranges_as_fit_a_frame_take_no_time_to_speak_of():
    """One by one each would make a bitmap of 128 KiB: 60 ms of an event loop for one message."""
    ranges = [(number, number) for number in range(2**20 - 8192, 2**20, 2)]
    began_s = time.process_time()
    bits = bits_of_ranges(ranges)
    mine_s = time.process_time() - began_s
    began_s, one_by_one = time.process_time(), 0
    for first, last in ranges:
        one_by_one |= mask(first, last)
    assert bits == one_by_one
    assert mine_s < (time.process_time() - began_s) / 4


def test_nothing_is_nothing():
    assert bits_of([]) == 0
    assert bits_of_ranges([]) == 0
    assert list(iterate(0)) == []
    assert to_ranges(0) == []
