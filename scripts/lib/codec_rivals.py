"""The public delta codecs, re-implemented from their published formats, to run on the same bytes as ours.

Each works tensor by tensor on unsigned integer views of one width and returns what would travel; `apply` writes the
new version in place. Sources: slime `slime/utils/disk_delta.py` and Stitch (byte XOR, zstd level 1 per tensor);
NeMo-RL `docs/design-docs/sparse-delta-refit.md` (changed locations as gaps in the smallest of 16, 32 and 64 bits, XOR
values, one zstd level 1 frame per bucket); grail 3.1 / PULSE, arXiv 2602.03839 (COO: delta-coded int32 indices and
values, zstd level 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lz4.frame
import numpy as np
import zstandard

Tensors = list[np.ndarray]


@dataclass(frozen=True)
class Rival:
    """A codec: its name, how to encode (old, new) tensors, and how to apply the result to copies of the old ones."""

    name: str
    encode: Callable[[Tensors, Tensors], Any]
    apply: Callable[[Any, Tensors], None]
    size: Callable[[Any], int]


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def _unzstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


def _total(parts: list[bytes]) -> int:
    return sum(len(part) for part in parts)


def _xor_encode(pack: Callable[[Any], bytes]) -> Callable[[Tensors, Tensors], list[bytes]]:
    def encode(olds: Tensors, news: Tensors) -> list[bytes]:
        return [
            pack(np.bitwise_xor(old.view(np.uint8), new.view(np.uint8)).data)
            for old, new in zip(olds, news, strict=True)
        ]

    return encode


def _xor_apply(unpack: Callable[[bytes], bytes]) -> Callable[[list[bytes], Tensors], None]:
    def apply(parts: list[bytes], targets: Tensors) -> None:
        for part, target in zip(parts, targets, strict=True):
            view = target.view(np.uint8)
            np.bitwise_xor(view, np.frombuffer(unpack(part), np.uint8), out=view)

    return apply


def _gap_width(gaps: np.ndarray) -> np.dtype:
    top = int(gaps.max(initial=0))
    return np.dtype("<u2" if top < 1 << 16 else "<u4" if top < 1 << 32 else "<u8")


def _nemo_encode(olds: Tensors, news: Tensors) -> tuple[bytes, list[tuple[int, str]]]:
    locations, values, items = [], [], []
    for old, new in zip(olds, news, strict=True):
        at = np.flatnonzero(old != new)
        gaps = np.diff(at, prepend=0)
        width = _gap_width(gaps)
        locations.append(gaps.astype(width).tobytes())
        values.append(np.bitwise_xor(old[at], new[at]).tobytes())
        items.append((at.size, width.str))
    return _zstd(b"".join(locations + values)), items


def _nemo_apply(encoded: tuple[bytes, list[tuple[int, str]]], targets: Tensors) -> None:
    data, items = encoded
    raw = _unzstd(data)
    at = 0
    where = []
    for count, width in items:
        gaps = np.frombuffer(raw, width, count, at)
        where.append(np.cumsum(gaps, dtype=np.int64))
        at += gaps.nbytes
    for places, target in zip(where, targets, strict=True):
        values = np.frombuffer(raw, target.dtype, places.size, at)
        at += values.nbytes
        target[places] ^= values


def _coo_encode(olds: Tensors, news: Tensors) -> list[tuple[bytes, int]]:
    out = []
    for old, new in zip(olds, news, strict=True):
        at = np.flatnonzero(old != new)
        out.append((_zstd(np.diff(at, prepend=0).astype("<i4").tobytes() + new[at].tobytes()), at.size))
    return out


def _coo_apply(parts: list[tuple[bytes, int]], targets: Tensors) -> None:
    for (data, count), target in zip(parts, targets, strict=True):
        raw = _unzstd(data)
        places = np.cumsum(np.frombuffer(raw, "<i4", count), dtype=np.int64)
        target[places] = np.frombuffer(raw, target.dtype, count, 4 * count)


def _plain_encode(olds: Tensors, news: Tensors) -> list[tuple[np.ndarray, np.ndarray]]:
    out = []
    for old, new in zip(olds, news, strict=True):
        at = np.flatnonzero(old != new)
        out.append((at.astype(np.int32), new[at]))
    return out


def _plain_apply(parts: list[tuple[np.ndarray, np.ndarray]], targets: Tensors) -> None:
    for (places, values), target in zip(parts, targets, strict=True):
        target[places] = values


def _slices(values: np.ndarray) -> list[np.ndarray]:
    return [values[at : at + (2 << 20)] for at in range(0, values.size, 2 << 20)]


def _patch_from_encode(olds: Tensors, news: Tensors) -> list[bytes]:
    """`zstd -3 --patch-from`, a few MiB at a time: the old bytes as a raw-content dictionary in reach of the window."""
    out = []
    for old, new in zip(olds, news, strict=True):
        for before, after in zip(_slices(old), _slices(new), strict=True):
            dictionary = zstandard.ZstdCompressionDict(before.tobytes(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
            log = max(10, (2 * before.nbytes).bit_length())
            parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=log, hash_log=22, chain_log=22)
            out.append(
                zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(after.data)
            )
    return out


def _patch_from_apply(parts: list[bytes], targets: Tensors) -> None:
    left = iter(parts)
    for target in targets:
        for piece in _slices(target):
            dictionary = zstandard.ZstdCompressionDict(piece.tobytes(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
            raw = zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=1 << 27).decompress(next(left))
            piece[:] = np.frombuffer(raw, piece.dtype)


RIVALS = [
    Rival("byte XOR + zstd-1 (slime, Stitch)", _xor_encode(_zstd), _xor_apply(_unzstd), _total),
    Rival("XOR + u16 gaps + zstd-1 (NeMo-RL)", _nemo_encode, _nemo_apply, lambda e: len(e[0])),
    Rival("COO delta + zstd-1 (grail/PULSE)", _coo_encode, _coo_apply, lambda e: sum(len(d) for d, _ in e)),
    Rival("int32 index + value", _plain_encode, _plain_apply, lambda e: sum(p.nbytes + v.nbytes for p, v in e)),
    Rival("zstd-3 --patch-from", _patch_from_encode, _patch_from_apply, _total),
    Rival("lz4 of XOR", _xor_encode(lz4.frame.compress), _xor_apply(lz4.frame.decompress), _total),
]
