"""Retention keeps what it must, frees the oldest first, and can be stopped anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.protocol.ids import digest
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.errors import StorageError
from patchswarm.storage.retention import Kept, Limits, space_needed, surplus, sweep


def things(count=5, size=10):
    return [Kept(b"%d" % number, (1, number), size, float(number)) for number in range(count)]


def keys(gone):
    return [each.key for each in gone]


def test_without_limits_all_stays():
    assert surplus(things(), Limits(), set(), now=1e9) == []


def test_the_oldest_go_when_there_are_too_many():
    assert keys(surplus(reversed(things()), Limits(count=3), set(), 0)) == [b"0", b"1"]


def test_the_oldest_go_when_they_are_too_large():
    assert keys(surplus(things(), Limits(size_bytes=35), set(), 0)) == [b"0", b"1"]
    assert surplus(things(), Limits(size_bytes=50), set(), 0) == []


def test_what_is_too_old_goes():
    assert keys(surplus(things(), Limits(age_s=2.5), set(), now=4)) == [b"0", b"1"]


def test_what_is_pinned_stays_and_others_make_up_for_it():
    assert keys(surplus(things(), Limits(count=3), {b"0", b"2"}, 0)) == [b"1", b"3"]
    assert keys(surplus(things(), Limits(count=0), {b"%d" % n for n in range(5)}, 0)) == []


def test_versions_go_by_their_order_and_not_by_when_they_were_fetched():
    late = Kept(b"late", (1, 0), 10, made_at=100.0)
    assert keys(surplus([*things()[1:], late], Limits(count=4), set(), 0)) == [b"late"]


def test_space_is_made_from_the_oldest():
    assert keys(space_needed(things(), {b"0"}, 15)) == [b"1", b"2"]
    assert keys(space_needed(things(), set(), 0)) == []
    assert len(space_needed(things(), set(), 10_000)) == 5


def test_a_limit_below_zero_is_refused():
    with pytest.raises(StorageError, match="below zero"):
        Limits(count=-1)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 100), st.integers(0, 100)), max_size=20),
    st.sets(st.integers(0, 19)),
    st.integers(0, 10) | st.none(),
    st.integers(0, 500) | st.none(),
)
def test_what_stays_is_within_the_limits_or_pinned(drawn, pinned, count, size):
    kept = [Kept(bytes([n]), (1, version), size_, float(at)) for n, (version, size_, at) in enumerate(drawn)]
    pins = {bytes([n]) for n in pinned}
    gone = surplus(kept, Limits(count, size), pins, 0)
    assert not {each.key for each in gone} & pins
    stays = [each for each in kept if each not in gone]
    if any(each.key not in pins for each in stays):
        assert count is None or len(stays) <= count
        assert size is None or sum(each.size_bytes for each in stays) <= size


def test_a_sweep_removes_exactly_what_nobody_wants(tmp_path):
    store = ChunkStore(tmp_path)
    for number in range(6):
        store.put(digest(b"%d" % number), b"%d" % number)
    wanted = {digest(b"%d" % number) for number in (1, 4)}
    assert sweep(store, wanted.__contains__) == 4
    assert set(store.names()) == wanted
