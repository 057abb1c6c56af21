"""Consecutive transitions make one: what a decoder lists, what two lists make, what comes back drops out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codec import Slot, changed_copy, random_bytes, spans_of

from patchswarm.protocol.codec.chunk import CodecOptions, Span, apply_chunk, chunk_events, compose, encode_spans
from patchswarm.protocol.codec.compose import RegionEvents, merge
from patchswarm.protocol.elements import Kind
from patchswarm.protocol.errors import BaseMismatchError

KINDS = [Kind.BF16, Kind.F8_E4M3, Kind.I4, Kind.F32, Kind.U64, Kind.BYTES]


def place(kind: Kind, data: np.ndarray, events: list[RegionEvents]) -> np.ndarray:
    """The bytes with events written into them, element by element."""
    out = data.copy()
    for event in events:
        if kind is Kind.I4:
            for position, new in zip(event.positions.tolist(), event.new.tolist(), strict=True):
                keep = 0xF0 if position % 2 == 0 else 0x0F
                out[position // 2] = (out[position // 2] & keep) | (new >> 4 if position % 2 == 0 else new)
        else:
            out.view(event.new.dtype)[event.positions] = event.new
    return out


def events_of(kind: Kind, before: np.ndarray, after: np.ndarray) -> list[RegionEvents]:
    slot = Slot({4: before.copy()})
    chunks = encode_spans(spans_of(kind, {4: before}, {4: after}, cut=4_096), CodecOptions(), 32 << 10)
    return [event for chunk in chunks for event in chunk_events(chunk.data, slot.resolve)]


@given(
    st.sampled_from(KINDS),
    st.lists(st.sampled_from([0.0, 0.01, 0.3, 1.0]), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
@settings(max_examples=60)
def test_composed_transitions_lead_where_the_single_ones_lead(kind, shares, seed):
    versions = [random_bytes(kind, 3_000, seed)]
    for i, share in enumerate(shares):
        versions.append(changed_copy(kind, versions[-1], share, seed + i))
    steps = [events_of(kind, a, b) for a, b in pairwise(versions)]
    merged = merge(steps)
    assert np.array_equal(place(kind, versions[0], merged), versions[-1])
    for event in merged:
        assert np.all(np.diff(event.positions) > 0)
        assert np.all(event.old != event.new)


def test_what_came_back_is_dropped():
    before = random_bytes(Kind.BF16, 5_000, seed=1)
    after = changed_copy(Kind.BF16, before, 0.05, seed=2)
    assert merge([events_of(Kind.BF16, before, after), events_of(Kind.BF16, after, before)]) == []


def test_transitions_that_do_not_meet_are_an_error():
    def event(old, new):
        return RegionEvents(0, Kind.BF16, np.array([3]), np.array([old], np.uint16), np.array([new], np.uint16))

    assert compose(event(1, 2), event(2, 3)).new.tolist() == [3]
    assert compose(event(1, 2), event(2, 1)).positions.size == 0
    with pytest.raises(BaseMismatchError):
        compose(event(1, 2), event(5, 3))


def test_a_skip_made_of_composed_events_is_an_ordinary_transition():
    versions = [random_bytes(Kind.BF16, 20_000, seed=1)]
    for i in range(3):
        versions.append(changed_copy(Kind.BF16, versions[-1], 0.02, seed=i))
    merged = merge([events_of(Kind.BF16, a, b) for a, b in pairwise(versions)])
    target = place(Kind.BF16, versions[0], merged)
    slot = Slot({0: versions[0].copy()})
    for chunk in encode_spans([Span(0, Kind.BF16, 0, versions[0], target)], CodecOptions(), 1 << 20):
        apply_chunk(chunk.data, slot.resolve)
    assert np.array_equal(slot.regions[0], versions[-1])
