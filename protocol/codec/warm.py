"""Compiles every kernel for every element width, so that no transition waits for a compiler."""

from __future__ import annotations

from typing import Any

from numba import types

from . import bands, dense, locate, order, planes, scan, stream, tables

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

    u8, _, u32, _ = (scratch(w) for w in _WIDTHS)
    i64 = scratch(_I64)
    rows = scratch(types.uint32, 2)
    pairs = scratch(_I64, 2)
    out: list[tuple[Any, tuple[Any, ...]]] = [
        (order.spread_nibbles, (given(types.uint8), u8)),
        (order.join_nibbles, (given(types.uint8), u8)),
        (tables.quantise, (i64, u8)),
        (tables.build_encoder, (u8, u8, u32)),
        (tables.build_decoder, (u8, u8, u32)),
        (planes.count_bytes, (given(types.uint8), u32, i64)),
        (planes.assign_lengths, (i64, u8)),
        (planes.assign_codes, (u8, u32)),
        (planes.pair_codes, (u32, u32)),
        (planes.write_plane, (given(types.uint8), u32, u32, i64, u8, i64)),
        (planes.fill_looks, (u32, scratch(types.uint64))),
        (planes.read_plane, (u8, i64, i64, scratch(types.uint64), u8, _I64, u8)),
        (bands.best_cuts, (scratch(types.float64), scratch(types.float64), _I64, i64)),
    ]
    for w in _WIDTHS:
        old, own, table = given(w), scratch(w), scratch(w, 2)
        out += [
            (bands.sample_levels, (old, old, w, w, w, _I64, _I64, i64, i64)),
            (scan.scan_plain, (old, old, pairs, u32, table, _I64)),
            (scan.scan_bands, (old, old, w, w, w, u8, pairs, u32, table, _I64)),
            (scan.arrange, (u32, table, w, _I64, i64, u32, own, own, own, pairs, pairs)),
            (stream.write_events, (i64, u32, own, rows, _I64, u8)),
            (stream.read_events, (u8, _I64, _I64, i64, rows, _I64, _I64, u32, own)),
            (locate.locate_plain, (old, own, w, _I64, i64, i64, u32, own, own)),
            (
                locate.locate_bands,
                (old, own, w, w, w, u8, w, _I64, i64, i64, i64, u32, own, own),
            ),
            (locate.put_values, (own, u32, own, _I64, _I64)),
            (dense.fill_planes, (old, _I64, u8)),
            (dense.put_plane, (given(types.uint8), _I64, _I64, own)),
            (dense.zigzag_steps, (old, old, w, _I64, own)),
            (dense.unzigzag_steps, (old, own, w, _I64, own)),
        ]
    return out
