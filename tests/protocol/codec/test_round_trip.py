"""What goes into the codec comes out of it, for every kind, density, shape and number of bands."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codec import Slot, changed_copy, random_bytes, spans_of

from patchswarm.protocol.codec.chunk import (
    CodecOptions,
    Span,
    apply_chunk,
    chunk_events,
    covered_ranges,
    encode_spans,
)
from patchswarm.protocol.elements import BITS, Kind, width_bytes
from patchswarm.protocol.errors import BaseMismatchError, CodecError

ALL = CodecOptions(bands=4)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("bands", [1, 4, 12])
@pytest.mark.parametrize("share", [0.001, 0.03, 0.3, 1.0])
def test_every_kind_comes_back_exactly(kind, bands, share):
    old = random_bytes(kind, 20_000, seed=bands)
    new = changed_copy(kind, old, share, seed=3)
    slot = Slot({0: old.copy()})
    chunks = encode_spans([Span(0, kind, 0, old, new)], CodecOptions(bands=bands), 1 << 20)
    for chunk in chunks:
        done = apply_chunk(chunk.data, slot.resolve)
        assert done.elements == chunk.elements
    assert np.array_equal(slot.regions[0], new)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("fast", [False, True])
def test_a_first_version_needs_no_parent(kind, fast):
    new = random_bytes(kind, 5_000, seed=1)
    slot = Slot({3: np.zeros_like(new)})
    chunks = encode_spans([Span(3, kind, 0, None, new)], CodecOptions(fast_dense=fast), 32 << 10)
    for chunk in chunks:
        assert len(chunk.data) <= 32 << 10
        apply_chunk(chunk.data, slot.resolve)
    assert np.array_equal(slot.regions[3], new)


def test_unchanged_spans_leave_no_trace():
    old = random_bytes(Kind.BF16, 100_000, seed=1)
    assert encode_spans([Span(0, Kind.BF16, 0, old, old.copy())], ALL, 1 << 20) == []
    assert encode_spans([], ALL, 1 << 20) == []
    assert encode_spans([Span(0, Kind.BF16, 0, old[:0], old[:0])], ALL, 1 << 20) == []


@given(
    st.sampled_from(list(Kind)),
    st.sampled_from([1, 2, 4, 12]),
    st.lists(st.integers(0, 3_000), min_size=1, max_size=20),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from([32 << 10, 1 << 20]),
)
@settings(max_examples=150, deadline=None)
def test_runs_of_regions_of_any_size_come_back(kind, bands, lengths, share, seed, max_size):
    width = width_bytes(kind)
    regions = {i: random_bytes(kind, n * max(1, 8 // BITS[kind]), seed + i) for i, n in enumerate(lengths)}
    after = {i: changed_copy(kind, data, share, seed ^ i) for i, data in regions.items()}
    slot = Slot({i: data.copy() for i, data in regions.items()})
    spans = spans_of(kind, regions, after, cut=5 * width * 8)
    chunks = encode_spans(spans, CodecOptions(bands=bands), max_size)
    for chunk in chunks:
        assert len(chunk.data) <= max_size
        apply_chunk(chunk.data, slot.resolve)
    for i, data in after.items():
        assert np.array_equal(slot.regions[i], data)
    assert sum(chunk.raw_bytes for chunk in chunks) <= sum(data.size for data in after.values())


@given(st.integers(0, 2**32 - 1), st.sampled_from([Kind.BF16, Kind.F8_E4M3, Kind.F32, Kind.I4, Kind.F64]))
@settings(max_examples=60, deadline=None)
def test_any_bits_to_any_bits(seed, kind):
    old = random_bytes(kind, 3_000, seed)
    new = random_bytes(kind, 3_000, seed + 1)
    mixed = old.copy()
    keep = np.random.default_rng(seed).random(old.size) < 0.02
    mixed[keep] = new[keep]
    for after in (new, mixed):
        slot = Slot({0: old.copy()})
        for chunk in encode_spans([Span(0, kind, 0, old, after)], ALL, 1 << 20):
            apply_chunk(chunk.data, slot.resolve)
        assert np.array_equal(slot.regions[0], after)


def test_unaligned_memory_is_read_and_written():
    backing = np.empty(200_001, np.uint8)
    old = backing[1:]
    old[:] = random_bytes(Kind.BF16, 100_000, seed=5)
    new = np.empty(200_003, np.uint8)[3:]
    new[:] = changed_copy(Kind.BF16, old, 0.01, seed=6)
    slot = Slot({0: np.empty(200_001, np.uint8)[1:]})
    slot.regions[0][:] = old
    for chunk in encode_spans([Span(0, Kind.BF16, 0, old, new)], ALL, 1 << 20):
        apply_chunk(chunk.data, slot.resolve)
    assert np.array_equal(slot.regions[0], new)


def test_large_offsets_survive():
    old = random_bytes(Kind.BF16, 1_000, seed=1)
    new = changed_copy(Kind.BF16, old, 0.1, seed=2)
    (chunk,) = encode_spans([Span(2**32 - 1, Kind.BF16, 6 << 40, old, new)], ALL, 1 << 20)
    assert covered_ranges(chunk.data) == [(2**32 - 1, 6 << 40, 2_000)]


def test_a_small_chunk_limit_splits_a_large_change():
    old = random_bytes(Kind.BF16, 2 << 20, seed=1)
    new = changed_copy(Kind.BF16, old, 0.05, seed=2)
    slot = Slot({0: old.copy()})
    chunks = encode_spans([Span(0, Kind.BF16, 0, old, new)], ALL, 32 << 10)
    assert len(chunks) > 2
    for chunk in reversed(chunks):  # each decodes without its neighbours
        assert len(chunk.data) <= 32 << 10
        apply_chunk(chunk.data, slot.resolve)
    assert np.array_equal(slot.regions[0], new)


def test_ten_thousand_tiny_regions_share_records():
    regions = {i: random_bytes(Kind.BF16, 64, seed=i) for i in range(10_000)}
    after = {i: changed_copy(Kind.BF16, data, 0.02, seed=i) for i, data in regions.items()}
    chunks = encode_spans(spans_of(Kind.BF16, regions, after), ALL, 4 << 20)
    slot = Slot({i: data.copy() for i, data in regions.items()})
    for chunk in chunks:
        apply_chunk(chunk.data, slot.resolve)
    assert all(np.array_equal(slot.regions[i], after[i]) for i in after)
    assert sum(len(chunk.data) for chunk in chunks) < 3.5 * 10_000


def test_a_wrong_base_is_an_error_and_writes_nothing():
    old = random_bytes(Kind.BF16, 50_000, seed=1)
    new = changed_copy(Kind.BF16, old, 0.01, seed=2)
    for bands in (1, 4):
        (chunk,) = encode_spans([Span(0, Kind.BF16, 0, old, new)], CodecOptions(bands=bands), 1 << 20)
        for other in (new, random_bytes(Kind.BF16, 50_000, seed=9)):
            slot = Slot({0: other.copy()})
            with pytest.raises(BaseMismatchError):
                apply_chunk(chunk.data, slot.resolve)
            assert np.array_equal(slot.regions[0], other)


def test_a_wrong_base_of_dense_steps_is_an_error():
    old = random_bytes(Kind.F32, 5_000, seed=1)
    new = changed_copy(Kind.F32, old, 1.0, seed=2)
    (chunk,) = encode_spans([Span(0, Kind.F32, 0, old, new)], ALL, 1 << 20)
    with pytest.raises(BaseMismatchError):
        apply_chunk(chunk.data, Slot({0: new.copy()}).resolve)


def test_a_record_never_exceeds_raw_plus_64():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 64, 1000):
        for share in (0.1, 1.0):
            old = rng.integers(0, 256, size, dtype=np.uint8)
            new = changed_copy(Kind.BYTES, old, share, seed=size)
            for chunk in encode_spans([Span(0, Kind.BYTES, 0, old, new)], ALL, 1 << 20):
                assert len(chunk.data) <= size + 64 + 200  # the chunk's own header and table


def test_events_are_what_changed():
    for kind in (Kind.BF16, Kind.I4, Kind.F32, Kind.F8_E4M3):
        for share in (0.01, 1.0):
            old = random_bytes(kind, 30_000, seed=1)
            new = changed_copy(kind, old, share, seed=2)
            slot = Slot({5: old.copy()})
            chunks = encode_spans(spans_of(kind, {5: old}, {5: new}, cut=8_000), ALL, 32 << 10)
            events = [e for chunk in chunks for e in chunk_events(chunk.data, slot.resolve)]
            assert np.array_equal(slot.regions[5], old)
            assert sum(e.positions.size for e in events) == sum(
                int(np.count_nonzero(np.unpackbits(old ^ new).reshape(-1, BITS[kind]).any(axis=1))) for _ in range(1)
            )
            for e in events:
                assert np.all(np.diff(e.positions) > 0)
                assert np.all(e.old != e.new)


def test_a_region_that_is_too_short_is_our_error():
    old = random_bytes(Kind.BF16, 1_000, seed=1)
    new = changed_copy(Kind.BF16, old, 0.1, seed=2)
    (chunk,) = encode_spans([Span(0, Kind.BF16, 0, old, new)], ALL, 1 << 20)
    with pytest.raises(CodecError):
        apply_chunk(chunk.data, Slot({0: old[:100].copy()}).resolve)
