"""The bit streams of a sparse record: events of band 0, then of band 1 and so on, each a Huffman code and raw bits.

Events go to two streams in turn: where an event starts is known only once the one before it in its stream has been
looked up, so a processor works on both at once.
Bits fill bytes from the low end. After a code come the gap's raw bits, then the step's; after the escape code six bits
of gap bucket and the step class first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .bits import kernel, load_word, store_word
from .scan import gap_bucket, step_class
from .tables import CODE_BITS, ENTRY_ESCAPE, ENTRY_RARE, ESCAPE, ESCAPE_GAP_BITS, STEP_CLASSES


@kernel
def write_events(counts: Any, gaps: Any, steps: Any, codes: Any, class_bits: Any, out: Any) -> Any:
    """Write a record's events, sorted by band, to `out` uint8: the first stream from its start, the other its middle.

    Each half has 13 bytes per event it holds and 16 more. Returns the bits of the first stream and of the second.
    `counts` (bands,) int64; `gaps` uint32; `steps` of the elements' dtype; `codes` (bands, 8193) uint32 from
    `build_encoder`.
    """
    one = np.uint64(1)
    away = np.int64(64 - 8 * steps.itemsize)
    held = np.uint64(0)
    bits = np.int64(0)  # in `held`, below 8 between events
    at = np.int64(0)
    middle = np.int64(out.size >> 1)
    other_held = np.uint64(0)
    other_bits = np.int64(0)
    other_at = middle
    j = 0
    for c in range(counts.size):
        for _ in range(counts[c]):
            gap = np.int64(gaps[j])
            step = (np.int64(steps[j]) << away) >> away
            j += 1
            bucket = gap_bucket(gap)
            kind = step_class(step)
            code = np.int64(codes[c, bucket * STEP_CLASSES + kind])
            nb = bucket >> 1
            nv = kind >> 1
            raw_gap = np.uint64(gap + 2) & ((one << np.uint64(nb)) - one)
            raw_step = np.uint64(abs(step)) & ((one << np.uint64(nv)) - one)
            if code and nb + nv <= 44:
                length = code >> 16
                both = raw_gap | (raw_step << np.uint64(nb))
                held |= (np.uint64(code & 0xFFFF) | (both << np.uint64(length))) << np.uint64(bits)
                bits += length + nb + nv
            else:
                if code:
                    held |= np.uint64(code & 0xFFFF) << np.uint64(bits)
                    bits += code >> 16
                else:
                    code = np.int64(codes[c, ESCAPE])
                    pair = np.uint64(bucket | (kind << ESCAPE_GAP_BITS))
                    held |= (np.uint64(code & 0xFFFF) | (pair << np.uint64(code >> 16))) << np.uint64(bits)
                    bits += (code >> 16) + ESCAPE_GAP_BITS + class_bits
                store_word(out, at, held)
                at += bits >> 3
                held >>= np.uint64(bits & ~7)
                bits = (bits & 7) + nb
                held |= raw_gap << np.uint64(bits - nb)
                low = min(nv, 24)  # a step's raw bits may not fit the same word: 24 first, then the other 39
                for part in (low, nv - low):
                    store_word(out, at, held)
                    at += bits >> 3
                    held >>= np.uint64(bits & ~7)
                    bits &= 7
                    held |= (raw_step & ((one << np.uint64(part)) - one)) << np.uint64(bits)
                    raw_step >>= np.uint64(part)
                    bits += part
            store_word(out, at, held)
            at += bits >> 3
            held >>= np.uint64(bits & ~7)
            bits &= 7
            held, other_held = other_held, held
            bits, other_bits = other_bits, bits
            at, other_at = other_at, at
    store_word(out, at, held)
    store_word(out, other_at, other_held)
    if at >= middle:  # an odd number of events
        at, other_at = other_at, at
        bits, other_bits = other_bits, bits
    return at * 8 + bits, (other_at - middle) * 8 + other_bits


@kernel
def read_events(
    data: Any, split: Any, size: Any, counts: Any, entries: Any, class_bits: Any, limit: Any, ranks: Any, steps: Any
) -> Any:
    """Read a record's events: ranks within their band to `ranks` uint32, steps to `steps`, sorted by band.

    `data` uint8 holds the streams' `size` bytes, of which the first `split` <= size are the first stream's, and 32
    more; `entries` (bands, 4096) uint32 from `build_decoder`. False for a stream that ends early, has no such code, or
    counts past `limit` elements.
    """
    one = np.uint64(1)
    at = np.int64(0)
    end = np.int64(split) * 8
    other_at = end
    other_end = np.int64(size) * 8
    j = np.uint64(0)
    for c in range(counts.size):
        rank = np.int64(-1)
        table = entries[c]
        stop = j + np.uint64(counts[c])
        while j < stop:
            if at >= end:
                return False
            word = load_word(data, at >> 3) >> np.uint64(at & 7)
            entry = np.int64(table[word & np.uint64((1 << CODE_BITS) - 1)])
            whole = entry & 0xFF
            word >>= np.uint64((entry >> 8) & 15)
            bucket = (entry >> 12) & 63
            kind = (entry >> 18) & 127
            if entry & ENTRY_RARE:
                if whole == 0:
                    return False
                at += (entry >> 8) & 15
                if entry & ENTRY_ESCAPE:
                    pair = np.int64(word & np.uint64((1 << (ESCAPE_GAP_BITS + 7)) - 1))
                    bucket = pair & ((1 << ESCAPE_GAP_BITS) - 1)
                    kind = (pair >> ESCAPE_GAP_BITS) & ((1 << class_bits) - 1)
                    at += ESCAPE_GAP_BITS + class_bits
                word = load_word(data, min(at >> 3, size)) >> np.uint64(at & 7)
                whole = (bucket >> 1) + (kind >> 1)
                far = at + (bucket >> 1)
                low = load_word(data, min(far >> 3, size)) >> np.uint64(far & 7)
                high = load_word(data, min((far + 32) >> 3, size)) >> np.uint64(far & 7)
                raw = (low & np.uint64(0xFFFFFFFF)) | (high << np.uint64(32))
            else:
                raw = word >> np.uint64(bucket >> 1)
            nb = np.uint64(bucket >> 1)
            leading = one << np.uint64(kind >> 1)
            gap = ((2 | (bucket & 1)) << (bucket >> 1)) + np.int64(word & ((one << nb) - one)) - 2
            step = np.int64(leading | (raw & (leading - one)))
            at += whole
            rank += 1 + gap
            if rank >= limit:
                return False
            negative = kind & 1
            ranks[j] = rank
            steps[j] = (step ^ -negative) + negative
            j += one
            at, other_at = other_at, at
            end, other_end = other_end, end
    return at <= end and other_at <= other_end
