"""Compiles every kernel for every element width, so that no transition waits for a compiler."""

from __future__ import annotations

from typing import Any

from numba import types

from . import bands, dense, locate, scan, stream, tables, tiles

_I64 = types.int64
_WIDTHS = (types.uint8, types.uint16, types.uint32, types.uint64)


def warm_up() -> None:
    """Compile, or load from the cache on disk, every kernel that chunks may need."""
    for kernel, signature in _signatures():
        kernel.compile(signature)


def _signatures() -> list[tuple[Any, tuple[Any, ...]]]:
    def given(dtype: Any, ndim: int = 1) -> Any:
        return types.Array(dtype, ndim, "C", readonly=True)

    def scratch(dtype: Any, ndim: int = 1) -> Any:
        return types.Array(dtype, ndim, "C")

    u8, u16, u32, u64 = (scratch(w) for w in _WIDTHS)
    i64 = scratch(_I64)
    entries = scratch(types.uint32, 2)
    histogram = scratch(_I64, 2)
    out: list[tuple[Any, tuple[Any, ...]]] = [
        (tables.quantise, (i64, u8)),
        (tables.build_encoder, (u8, u8, u32)),
        (tables.build_decoder, (u8, u8, u32)),
        (bands.best_cuts, (scratch(types.float64), scratch(types.float64), _I64, i64)),
    ]
    for w in _WIDTHS:
        old, own = given(w), scratch(w)
        out += [
            (bands.sample_levels, (old, old, w, w, w, _I64, _I64, i64, i64)),
            (tiles.band_tile, (old, _I64, _I64, w, w, w, u8, u8, u64, u16)),
            (scan.differing, (old, old, _I64, _I64, u64, u16)),
            (scan.scan_plain, (old, old, histogram, u32, own, own, _I64)),
            (scan.scan_bands, (old, old, w, w, w, u8, histogram, u8, u32, own, own, _I64)),
            (scan.arrange, (u8, u32, own, own, w, _I64, i64, u32, own, own, own, histogram, histogram)),
            (stream.write_events, (i64, u32, own, entries, _I64, u8)),
            (stream.read_events, (u8, _I64, i64, entries, _I64, _I64, u32, own)),
            (locate.locate_plain, (old, own, w, _I64, i64, i64, u32, own, u32, own, own)),
            (
                locate.locate_bands,
                (old, own, w, w, w, u8, w, _I64, i64, i64, i64, u32, own, u32, own, own),
            ),
            (locate.put_values, (own, u32, own, _I64, _I64)),
            (dense.zigzag_steps, (old, old, w, _I64, own)),
            (dense.unzigzag_steps, (old, own, w, _I64, own)),
        ]
    return out
