"""After `warm_up` no chunk waits for the compiler."""

from __future__ import annotations

import numpy as np
from support.codec import Slot, changed_copy, random_bytes

from patchswarm.protocol.codec import bands, dense, locate, planes, scan, stream, tables
from patchswarm.protocol.codec.chunk import CodecOptions, Span, apply_chunk, chunk_events, encode_spans, warm_up
from patchswarm.protocol.elements import Kind


def specialisations() -> dict[str, int]:
    return {
        f"{module.__name__}.{name}": len(kernel.signatures)
        for module in (bands, dense, locate, planes, scan, stream, tables)
        for name, kernel in vars(module).items()
        if hasattr(kernel, "signatures")
    }


def test_every_kind_and_record_runs_on_what_warm_up_compiled():
    warm_up()
    before = specialisations()
    for kind in Kind:
        for share in (0.01, 1.0):
            for count in (1, 4, 12):
                old = random_bytes(kind, 9_000, seed=1)
                new = changed_copy(kind, old, share, seed=2)
                frozen = new.copy()
                frozen.flags.writeable = False
                spans = [
                    Span(0, kind, 0, old, frozen),
                    Span(1, kind, 0, old[:64], new[:64]),
                    Span(2, kind, 0, None, old),
                ]
                slot = Slot({0: old.copy(), 1: old[:64].copy(), 2: np.zeros_like(old)})
                for chunk in encode_spans(spans, CodecOptions(bands=count), 1 << 20):
                    chunk_events(chunk.data, slot.resolve)
                    apply_chunk(chunk.data, slot.resolve)
    assert specialisations() == before
