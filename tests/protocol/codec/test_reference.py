"""The kernels agree with a second, plain reading of the format, and with bytes frozen on disk."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from support import codec_reference
from support.codec import Slot, changed_copy, random_bytes, spans_of

from patchswarm.protocol.codec.chunk import CodecOptions, Span, apply_chunk, encode_spans
from patchswarm.protocol.elements import Kind

GOLDEN = Path(__file__).parents[2] / "golden" / "codec"


def reference(chunks: list[bytes], regions: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    slot = {region: bytearray(data.tobytes()) for region, data in regions.items()}
    for chunk in chunks:
        codec_reference.apply(chunk, slot)
    return {region: np.frombuffer(data, np.uint8) for region, data in slot.items()}


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(("bands", "share"), [(1, 0.02), (4, 0.02), (12, 0.1), (4, 1.0)])
def test_a_plain_decoder_reads_what_we_write(kind, bands, share):
    before = {i: random_bytes(kind, n, seed=i) for i, n in ((2, 900), (3, 40), (9, 4_000))}
    after = {i: changed_copy(kind, data, share, seed=7) for i, data in before.items()}
    chunks = encode_spans(spans_of(kind, before, after, cut=1_600), CodecOptions(bands=bands), 32 << 10)
    result = reference([chunk.data for chunk in chunks], before)
    for region, data in after.items():
        assert np.array_equal(result[region], data)


@pytest.mark.parametrize("kind", [Kind.BF16, Kind.I8, Kind.F64, Kind.I4])
def test_far_jumps_and_escapes_read_the_same(kind):
    rng = np.random.default_rng(4)
    before = random_bytes(kind, 30_000, seed=1)
    after = before.copy()
    spots = rng.choice(before.size, 60, replace=False)
    after[spots] = rng.integers(0, 256, 60)
    chunks = encode_spans([Span(1, kind, 0, before, after)], CodecOptions(), 32 << 10)
    assert np.array_equal(reference([c.data for c in chunks], {1: before})[1], after)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("fast", [False, True])
def test_a_plain_decoder_reads_first_versions(kind, fast):
    after = random_bytes(kind, 3_000, seed=2)
    chunks = encode_spans([Span(0, kind, 0, None, after)], CodecOptions(fast_dense=fast), 32 << 10)
    assert np.array_equal(reference([c.data for c in chunks], {0: np.zeros_like(after)})[0], after)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_golden_chunks_still_decode(path):
    for case in json.loads(path.read_text()):
        old, new, chunk = (np.frombuffer(base64.b64decode(case[name]), np.uint8) for name in ("old", "new", "chunk"))
        slot = Slot({0: old.copy()})
        apply_chunk(chunk.tobytes(), slot.resolve)
        assert np.array_equal(slot.regions[0], new), case["record"]
        assert np.array_equal(reference([chunk.tobytes()], {0: old})[0], new), case["record"]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_sparse_records_are_the_same_bytes_on_every_machine(path):
    for case in json.loads(path.read_text()):
        if case["record"] == "SPARSE":
            old, new = (np.frombuffer(base64.b64decode(case[name]), np.uint8) for name in ("old", "new"))
            (chunk,) = encode_spans([Span(0, Kind[path.stem], 0, old, new)], CodecOptions(), 1 << 20)
            assert base64.b64encode(chunk.data).decode() == case["chunk"]


def test_there_is_a_golden_file_for_every_kind_and_record_type():
    for kind in Kind:
        cases = json.loads((GOLDEN / f"{kind.name}.json").read_text())
        assert {case["record"] for case in cases} == {"SPARSE", "STEPS", "VALUES", "RAW"}
