"""Whatever the bytes say, decoding stays inside the regions it was given and raises only the codec's own error.

The default run tries 1500 mutated chunks; `-m slow` for a minute, and PATCHSWARM_FUZZ_SECONDS=3600 with it for longer.
"""

from __future__ import annotations

import contextlib
import os
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codec import Slot, changed_copy, random_bytes, spans_of

from patchswarm.protocol.codec.chunk import CodecOptions, Span, apply_chunk, chunk_events, covered_ranges, encode_spans
from patchswarm.protocol.codec.record import MAX_RECORD_BYTES, RAW, SPARSE, VALUES, varint
from patchswarm.protocol.elements import Kind
from patchswarm.protocol.errors import CodecError

GUARD = 4096
SIZES = {0: 6_000, 1: 48, 2: 70_000}


class GuardedSlot(Slot):
    """Regions with guard bytes around them, to see writes that leave them."""

    def __init__(self, regions):
        self.backing = {}
        inside = {}
        for region, data in regions.items():
            backing = np.full(data.size + 2 * GUARD, 0xA5, np.uint8)
            backing[GUARD : GUARD + data.size] = data
            self.backing[region] = backing
            inside[region] = backing[GUARD : GUARD + data.size]
        super().__init__(inside)

    def check(self):
        for backing in self.backing.values():
            assert np.all(backing[:GUARD] == 0xA5)
            assert np.all(backing[-GUARD:] == 0xA5)


def valid_chunks():
    chunks = []
    for kind in (Kind.BF16, Kind.F8_E4M3, Kind.I4, Kind.F32, Kind.U64):
        before = {i: random_bytes(kind, size * 2, seed=i)[:size] for i, size in SIZES.items()}
        for bands in (1, 4, 12):
            for share in (0.01, 0.5):
                after = {i: changed_copy(kind, data, share, seed=i + bands) for i, data in before.items()}
                chunks += [
                    (before, c.data) for c in encode_spans(spans_of(kind, before, after), CodecOptions(bands), 1 << 20)
                ]
        chunks += [
            (before, c.data)
            for c in encode_spans(
                [Span(i, kind, 0, None, d) for i, d in before.items()],
                CodecOptions(fast_dense=kind is Kind.F32),
                1 << 20,
            )
        ]
    return chunks


def attack(rng, data):
    """A mutated copy: flipped bits, changed bytes, cut, repeated or overwritten parts."""
    bad = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        way = rng.integers(0, 5)
        at = (
            int(rng.integers(0, max(1, min(len(bad), 300))))
            if rng.random() < 0.6
            else int(rng.integers(0, len(bad) + 1))
        )
        if way == 0 and at < len(bad):
            bad[at] ^= 1 << int(rng.integers(0, 8))
        elif way == 1 and at < len(bad):
            bad[at] = int(rng.choice([0, 1, 127, 128, 255, rng.integers(0, 256)]))
        elif way == 2:
            del bad[at:]
        elif way == 3:
            part = bad[at : at + int(rng.integers(1, 64))]
            bad[at:at] = part
        else:
            bad[at : at + 8] = rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8).tobytes()
    return bytes(bad)


def survive(before, data):
    slot = GuardedSlot(before)
    for use in (
        lambda: covered_ranges(data),
        lambda: chunk_events(data, slot.resolve),
        lambda: apply_chunk(data, slot.resolve),
    ):
        with contextlib.suppress(CodecError):
            use()
    slot.check()


def fuzz(rng, chunks):
    before, data = chunks[int(rng.integers(0, len(chunks)))]
    survive(before, attack(rng, data))


def test_mutated_chunks_raise_only_our_error():
    rng = np.random.default_rng(1)
    chunks = valid_chunks()
    for _ in range(1_500):
        fuzz(rng, chunks)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_mutated_chunks_raise_only_our_error_for_long():
    seconds = float(os.environ.get("PATCHSWARM_FUZZ_SECONDS", "60"))
    seed = time.time_ns() % 2**32
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    chunks = valid_chunks()
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        fuzz(rng, chunks)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes_raise_only_our_error(tail):
    before = {0: random_bytes(Kind.BF16, 100, seed=0)}
    survive(before, tail)
    survive(before, b"PSC\x01" + tail)
    survive(before, b"PSC\x01\x00" + tail)


@pytest.mark.parametrize("record", [RAW, VALUES])
def test_a_huge_declared_range_allocates_nothing(record):
    data = b"PSC\x01\x00" + bytes((record, Kind.F64)) + varint(1) + varint(0) + varint(1 << 60) + bytes(100)
    tracemalloc.start()
    for use in (covered_ranges, lambda d: apply_chunk(d, Slot({0: np.zeros(8, np.uint8)}).resolve)):
        with pytest.raises(CodecError):
            use(data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_more_events_than_bits_are_refused_before_allocation():
    table = bytes((Kind.BF16, 1, 0, 1, 7 + 1 << 4 | 7, 0, 1, 7))
    body = varint(1) + varint(0) + varint(MAX_RECORD_BYTES // 2) + varint(1 << 23) + bytes(8) + varint(4) + bytes(4)
    data = b"PSC\x01\x01" + table + bytes((SPARSE, 0)) + body
    with pytest.raises(CodecError):
        apply_chunk(data, Slot({0: np.zeros(MAX_RECORD_BYTES, np.uint8)}).resolve)


def test_a_plane_that_expands_without_end_is_refused():
    import zstandard

    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 << 20))
    data = b"PSC\x01\x00" + bytes((VALUES, Kind.U8)) + varint(1) + varint(0) + varint(1000) + bytes(4)
    data += b"\x01" + varint(len(bomb)) + bomb
    tracemalloc.start()
    with pytest.raises(CodecError):
        apply_chunk(data, Slot({0: np.zeros(1000, np.uint8)}).resolve)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_later_format_says_so():
    with pytest.raises(CodecError, match="format 2"):
        covered_ranges(b"PSC\x02\x00")
    with pytest.raises(CodecError, match="not a chunk"):
        covered_ranges(b"PNG\x01\x00")


def test_records_that_overlap_are_undone_exactly():
    """Two segments over the same bytes: the second sees what the first wrote, fails its check, and both are undone."""
    old = random_bytes(Kind.BF16, 40_000, seed=1)
    new = changed_copy(Kind.BF16, old, 0.02, seed=2)
    spans = [Span(r, Kind.BF16, 0, old, new) for r in (0, 1)]
    (chunk,) = encode_spans(spans, CodecOptions(), 1 << 20)
    memory = old.copy()
    with pytest.raises(CodecError):
        apply_chunk(chunk.data, lambda _region, offset, size: memory[offset : offset + size])
    assert np.array_equal(memory, old)
