"""Sealed chunks and lists: they open where they belong, untouched, within their limits, or not at all."""

import msgspec
import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.protocol import seal
from patchswarm.protocol.errors import SealError
from patchswarm.protocol.ids import MAX_CHUNK_BYTES, digest
from patchswarm.protocol.manifest import BlobRef, Opening, OpeningPart, Route, Transition, TransitionPart
from patchswarm.protocol.seal import INDEX_ENTRY, ChunkSealer, index_entries, open_blob, seal_blob

KEY = bytes(range(32))
EMPTY = BlobRef(bytes(32), 0, bytes(32), ())
OPENING = Opening(
    stream="qwen",
    epoch=1,
    version=7,
    source=bytes(32),
    attempt=bytes(16),
    size=10,
    parts=(OpeningPart(bytes(32), KEY, 0, EMPTY), OpeningPart(bytes(32), KEY[::-1], 100, EMPTY)),
    roster=(),
)
TRANSITION = Transition(
    stream="qwen",
    epoch=1,
    version=7,
    kind=Route.STEP,
    source=bytes(32),
    target=digest(b"target"),
    attempt=bytes(16),
    parts=(TransitionPart(bytes(32), KEY, 0, 1, 1, EMPTY, EMPTY, EMPTY),),
)


@given(st.binary(max_size=1000), st.integers(0, 2**32 - 1))
def test_a_chunk_opens_to_its_contents(contents, ordinal):
    sealer = ChunkSealer(OPENING, 0)
    sealed = sealer.seal(ordinal, contents)
    assert len(sealed) == len(contents) + 16
    assert sealer.open(ordinal, sealed) == contents
    assert sealer.open(ordinal, memoryview(sealed)) == contents


def test_a_chunk_sealed_under_the_opening_opens_under_the_transition():
    assert ChunkSealer(TRANSITION, 0).open(3, ChunkSealer(OPENING, 0).seal(3, b"weights")) == b"weights"


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"stream": "other"},
        {"epoch": 2},
        {"version": 8},
        {"source": b""},
        {"source": digest(b"another parent")},
        {"attempt": b"\x01" * 16},
        {"parts": OPENING.parts[::-1]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_chunk_does_not_open_elsewhere(elsewhere):
    sealed = ChunkSealer(OPENING, 0).seal(3, b"weights")
    with pytest.raises(SealError, match="chunk 3 does not open under its transition's key"):
        ChunkSealer(msgspec.structs.replace(OPENING, **elsewhere), 0).open(3, sealed)


def test_a_chunk_does_not_open_under_another_ordinal_or_part():
    sealed = ChunkSealer(OPENING, 0).seal(3, b"weights")
    with pytest.raises(SealError, match="chunk 4 does not open"):
        ChunkSealer(OPENING, 0).open(4, sealed)
    with pytest.raises(SealError, match="chunk 3 does not open"):
        ChunkSealer(OPENING, 1).open(3, sealed)


@given(st.data())
def test_a_chunk_with_any_changed_byte_does_not_open(data):
    sealed = bytearray(ChunkSealer(OPENING, 0).seal(3, data.draw(st.binary(max_size=100))))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealError):
        ChunkSealer(OPENING, 0).open(3, bytes(sealed))


@pytest.mark.parametrize("size", [0, 15, MAX_CHUNK_BYTES + 1])
def test_a_chunk_of_impossible_size_is_refused(size):
    with pytest.raises(SealError, match=f"chunk 3 has {size} bytes, outside 16 to {MAX_CHUNK_BYTES}"):
        ChunkSealer(OPENING, 0).open(3, bytes(size))


@given(st.binary(max_size=5000))
def test_a_list_opens_to_its_contents(data):
    ref, pieces = seal_blob(data, KEY)
    assert (ref.root, ref.size) == (digest(data), len(data))
    assert [name for name, _ in ref.chunks] == [digest(piece) for piece in pieces]
    assert [size for _, size in ref.chunks] == [len(piece) for piece in pieces]
    assert open_blob(ref, pieces) == data


def test_a_long_list_is_cut_into_chunks_and_opens_only_in_order(monkeypatch):
    monkeypatch.setattr(seal, "_BLOB_PIECE", 64)
    data = bytes(range(256)) * 2
    ref, pieces = seal_blob(data, KEY)
    assert len(pieces) > 2
    assert open_blob(ref, pieces) == data
    for wrong in (pieces[::-1], pieces[:-1], [], [*pieces, pieces[0]]):
        with pytest.raises(SealError, match=r"does not open|opens to other contents"):
            open_blob(ref, wrong)


@given(st.data())
def test_a_list_with_any_changed_byte_does_not_open(data):
    ref, (piece,) = seal_blob(b"the list" * 20, KEY)
    changed = bytearray(piece)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealError, match="does not open"):
        open_blob(ref, [bytes(changed)])


def blob_of(packed, *, size, root):
    """A reference that a lying publisher could sign: any packed bytes under any size and root."""
    sealed = AESGCM(KEY).encrypt(bytes(12), packed, b"patchswarm blob 1\0" + root)
    return BlobRef(root, size, KEY, ((digest(sealed), len(sealed)),)), [sealed]


def test_a_list_that_unpacks_to_more_than_it_says_stops_there():
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * 1024 * 1024))
    assert len(bomb) < 10_000
    with pytest.raises(SealError, match="opens to other contents"):
        open_blob(*blob_of(bomb, size=100, root=digest(bytes(64 * 1024 * 1024))))


def test_a_list_that_says_the_wrong_size_is_refused():
    packed = zstandard.compress(b"four")
    for size in (0, 3, 5, 1000):
        with pytest.raises(SealError, match="opens to other contents"):
            open_blob(*blob_of(packed, size=size, root=digest(b"four")))


def test_a_list_over_the_limit_is_refused_unread():
    with pytest.raises(SealError, match="list of 268435457 bytes is over the limit"):
        open_blob(BlobRef(bytes(32), 256 * 2**20 + 1, KEY, ()), [])


def test_a_list_with_a_huge_window_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = compressor.compress(bytes(1000)) + compressor.flush()
    with pytest.raises(SealError, match="does not open"):
        open_blob(*blob_of(packed, size=1000, root=digest(bytes(1000))))


def test_a_list_that_is_not_compressed_data_is_refused():
    with pytest.raises(SealError, match="does not open"):
        open_blob(*blob_of(b"not zstd", size=8, root=digest(b"not zstd")))


def test_an_index_is_names_and_sizes():
    data = digest(b"a") + b"\x10\x00\x00\x00" + digest(b"b") + b"\x00\x01\x00\x00"
    assert index_entries(data) == [(digest(b"a"), 16), (digest(b"b"), 256)]
    assert index_entries(b"") == []


def test_a_torn_index_is_refused():
    with pytest.raises(SealError, match="index of 37 bytes is not a whole number of 36-byte entries"):
        index_entries(bytes(37))


@pytest.mark.parametrize("size", [0, 15, MAX_CHUNK_BYTES + 1])
def test_an_index_with_an_impossible_chunk_is_refused(size):
    with pytest.raises(SealError, match=f"{size} bytes, outside 16 to {MAX_CHUNK_BYTES}"):
        index_entries(INDEX_ENTRY.pack(bytes(32), size))
