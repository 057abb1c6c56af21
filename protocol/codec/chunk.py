"""The codec's public surface: spans in, self-contained chunks out, and chunks applied in place.

A chunk needs no neighbour: it carries its own code tables and says which ranges of which regions it writes. How its
bytes are laid out stands in `record`; how changed elements become symbols in `scan`, `stream` and `tables`.
"""

from __future__ import annotations

from .compose import RegionEvents, chunk_events, compose
from .decode import AppliedChunk, Resolve, apply_chunk, covered_ranges
from .encode import encode_spans
from .spans import CodecOptions, EncodedChunk, Span
from .warm import warm_up

__all__ = [
    "AppliedChunk",
    "CodecOptions",
    "EncodedChunk",
    "RegionEvents",
    "Resolve",
    "Span",
    "apply_chunk",
    "chunk_events",
    "compose",
    "covered_ranges",
    "encode_spans",
    "warm_up",
]
