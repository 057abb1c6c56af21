"""Planes in a Huffman code of their own: exact for every distribution, and no hostile body leads out of bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codec_reference import apply as reference_apply
from support.codec_reference import huffman as reference_huffman

from patchswarm.protocol.codec.chunk import CodecOptions, Span, apply_chunk, encode_spans
from patchswarm.protocol.codec.planes import LONGEST, assign_lengths, expand_huffman, huffman_parts, plan_lengths
from patchswarm.protocol.elements import Kind
from patchswarm.protocol.errors import CodecError


def coded(plane: np.ndarray) -> bytes:
    lengths, size = plan_lengths(plane)
    body = b"".join(huffman_parts(plane, lengths))
    assert abs(len(body) - size) <= 8
    return body


def skewed(size: int, spread: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.clip(rng.normal(120, spread, size), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 1_000, 40_001, 300_000])
@pytest.mark.parametrize("spread", [0.0, 1.5, 40.0])
def test_what_was_coded_comes_back(size, spread):
    plane = skewed(size, spread, seed=size)
    assert np.array_equal(expand_huffman(memoryview(coded(plane)), size), plane)


@pytest.mark.parametrize("size", [1, 65, 5_000])
def test_a_plain_decoder_reads_the_same(size):
    plane = skewed(size, 3.0)
    assert reference_huffman(coded(plane), size) == plane.tobytes()


def test_lengths_of_the_steepest_counts_stay_within_the_limit():
    counts = np.zeros(256, np.int64)
    a, b = 1, 1
    for symbol in range(60):  # Fibonacci: what makes a Huffman code as deep as it has symbols
        counts[symbol] = a
        a, b = b, a + b
    lengths = np.zeros(256, np.uint8)
    assign_lengths(counts, lengths)
    assert lengths[:60].min() >= 1
    assert lengths.max() <= LONGEST
    assert sum(2.0 ** -float(n) for n in lengths[:60]) <= 1.0


def test_a_code_comes_near_the_entropy():
    plane = skewed(1 << 18, 3.0)
    shares = np.bincount(plane) / plane.size
    shares = shares[shares > 0]
    entropy_bytes = -(shares * np.log2(shares)).sum() * plane.size / 8
    assert len(coded(plane)) < 1.03 * entropy_bytes


def test_first_versions_of_weights_take_it_and_read_back():
    rng = np.random.default_rng(3)
    new = (rng.normal(0, 0.02, 6_000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    (chunk,) = encode_spans([Span(0, Kind.BF16, 0, None, new)], CodecOptions(), 1 << 20)
    assert len(chunk.data) < 0.70 * new.size
    target = np.zeros_like(new)
    apply_chunk(chunk.data, lambda _, offset, size: target[offset : offset + size])
    assert np.array_equal(target, new)
    plain = {0: bytearray(new.size)}
    reference_apply(chunk.data, plain)
    assert plain[0] == new.tobytes()


def test_repeating_text_is_left_to_the_general_method():
    text = np.frombuffer(b"patch what moved, leave what rested. " * 400, np.uint8)
    (chunk,) = encode_spans([Span(0, Kind.BYTES, 0, None, text)], CodecOptions(), 1 << 20)
    assert len(chunk.data) < 200


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_body_is_refused_or_decodes_within_bounds(data):
    size = data.draw(st.integers(1, 3_000))
    body = bytearray(coded(skewed(size, data.draw(st.sampled_from([0.0, 2.0, 60.0])))))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for hostile in (bytes(body), bytes(body[:cut])):
        try:
            plane = expand_huffman(memoryview(hostile), size)
        except CodecError:
            continue
        assert plane.size == size
