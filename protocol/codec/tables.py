"""Code tables: from counts of gaps and steps to Huffman codes that both ends build alike.

An event is one symbol: (gap bucket, step class). Within a band the two are nearly independent, so a table travels as
two short rows of weights, not as a code length per pair: sender and receiver multiply them and build the same
length-limited Huffman code from the products, in integers only. Pairs too rare to deserve a code share one escape
symbol.

Gap g: s = g + 2, bucket = 2 * nb + (second bit of s) with nb = bits(s) - 2; nb raw bits follow.
Step d != 0: class = 2 * nv + (1 if d < 0), nv = bits(|d|) - 1; nv raw bits follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import CodecError
from .bits import kernel

GAP_BUCKETS: Final = 64
STEP_CLASSES: Final = 128
CODE_BITS: Final = 12  # longest code
PRUNE_SHIFT: Final = 13  # pairs below 2^-13 of all are escaped
ESCAPE_GAP_BITS: Final = 6
ESCAPE: Final = GAP_BUCKETS * STEP_CLASSES  # symbol number of the escape

# An entry of the decoding table, uint32: bits the whole event takes (escape: the code alone) | code bits << 8 |
# gap bucket << 12 | step class << 18 | escape << 30 | rare << 31. Rare are escapes, events of more than 57 bits, and
# what is no code: that has no code bits either.
_ENTRY_CODE: Final = 8
_ENTRY_GAP: Final = 12
_ENTRY_STEP: Final = 18
ENTRY_ESCAPE: Final = 1 << 30
ENTRY_RARE: Final = 1 << 31
AT_ONCE: Final = 57  # bits of a word that are there wherever in a byte an event starts


@dataclass(frozen=True, slots=True)
class BandWeights:
    """Quantised weights of one band: gaps (64,) uint8 and steps (128,) uint8, 0 for absent, else 1 + 4 log2 roughly."""

    gaps: NDArray[np.uint8]
    steps: NDArray[np.uint8]


@kernel
def quantise(counts: Any, out: Any) -> None:
    """Counts (n,) int64 to weights (n,) uint8 with `expand(out)` within 12% of four times the count; 0 stays 0."""
    for i in range(counts.size):
        best = np.int64(0)
        if counts[i] > 0:
            while best < 126 and expand(best + 1) <= 4 * counts[i]:
                best += 1
            if best < 126 and 8 * counts[i] > expand(best) + expand(best + 1):
                best += 1
        out[i] = best


@kernel
def expand(weight: Any) -> Any:
    """The integer that weight 1..126 stands for: a four-step scale per octave, (4..7) * 2^((weight - 1) // 4)."""
    return np.int64(4 + ((weight - 1) & 3)) << np.int64((weight - 1) >> 2)


@kernel
def code_lengths(gaps: Any, steps: Any, symbols: Any, lengths: Any) -> Any:
    """Build the code of one band.

    `gaps` (64,) and `steps` (128,) are weights. Fills `symbols` (int64) and `lengths` (int64), both of 8193 entries or
    more, with the kept pairs in order of (bucket, class) and last the escape; returns how many.
    """
    total_gap = np.int64(0)
    total_step = np.int64(0)
    for i in range(gaps.size):
        if gaps[i]:
            total_gap += expand(gaps[i])
    for i in range(steps.size):
        if steps[i]:
            total_step += expand(steps[i])
    # products must stay below 2^62: bring both factors below 2^30
    down_gap = np.int64(0)
    while (total_gap >> down_gap) >= 1 << 30:
        down_gap += 1
    down_step = np.int64(0)
    while (total_step >> down_step) >= 1 << 30:
        down_step += 1
    total = (total_gap >> down_gap) * (total_step >> down_step)
    least = max(total >> PRUNE_SHIFT, 1)
    weights: Any = np.empty(8193, np.int64)
    n = 0
    rest = total
    for i in range(gaps.size):
        if gaps[i]:
            for j in range(steps.size):
                if steps[j]:
                    w = (expand(gaps[i]) >> down_gap) * (expand(steps[j]) >> down_step)
                    if w >= least and n < 8192:
                        symbols[n] = i * STEP_CLASSES + j
                        weights[n] = w
                        rest -= w
                        n += 1
    symbols[n] = ESCAPE
    weights[n] = max(rest, np.int64(1))
    n += 1
    _huffman(weights, n, lengths)
    return n


@kernel
def _huffman(weights: Any, n: Any, lengths: Any) -> None:
    """Huffman code lengths of `weights[:n]`, cut to CODE_BITS and made to satisfy Kraft's inequality.

    The two lightest nodes merge, ties going to the lower number; leaves are numbered first, then merged nodes as made.
    """
    if n == 1:
        lengths[0] = 1
        return
    order: Any = np.argsort(weights[:n], kind="mergesort")
    weight = np.empty(2 * n - 1, np.int64)
    parent: Any = np.empty(2 * n - 1, np.int64)
    leaf = 0
    node: Any = n
    for made in range(n, 2 * n - 1):
        merged: Any = np.int64(0)
        for _ in range(2):
            take_leaf = leaf < n and (node >= made or weights[order[leaf]] <= weight[node])
            if take_leaf:
                chosen = order[leaf]
                merged += weights[chosen]
                leaf += 1
            else:
                chosen = node
                merged += weight[node]
                node += 1
            parent[chosen] = made
        weight[made] = merged
    depth = np.zeros(2 * n - 1, np.int64)
    for i in range(2 * n - 3, -1, -1):
        depth[i] = depth[parent[i]] + 1
    used = np.int64(0)
    for i in range(n):
        lengths[i] = min(depth[i], CODE_BITS)
        used += np.int64(1) << (CODE_BITS - lengths[i])
    full = np.int64(1) << CODE_BITS
    while used > full:  # lengthen the lightest codes first
        for k in range(n):
            i = order[k]
            if lengths[i] < CODE_BITS:
                lengths[i] += 1
                used -= np.int64(1) << (CODE_BITS - lengths[i])
                if used <= full:
                    break
    for k in range(n - 1, -1, -1):  # then give what is left to the heaviest
        i = order[k]
        while lengths[i] > 1 and used + (np.int64(1) << (CODE_BITS - lengths[i])) <= full:
            used += np.int64(1) << (CODE_BITS - lengths[i])
            lengths[i] -= 1


@kernel
def _canonical(lengths: Any, n: Any, codes: Any) -> None:
    """Canonical codes (by length, then by symbol order), bit-reversed so that they are read from the low end."""
    code = np.int64(0)
    for length in range(1, CODE_BITS + 1):
        for i in range(n):
            if lengths[i] == length:
                reverse = np.int64(0)
                for bit in range(length):
                    reverse |= ((code >> bit) & 1) << (length - 1 - bit)
                codes[i] = reverse
                code += 1
        code <<= 1


@kernel
def build_encoder(gaps: Any, steps: Any, codes: Any) -> None:
    """Fill `codes` (8193,) uint32 with code | length << 16 per symbol number, 0 where the symbol must be escaped."""
    symbols = np.empty(8193, np.int64)
    lengths = np.empty(8193, np.int64)
    n = code_lengths(gaps, steps, symbols, lengths)
    values = np.empty(n, np.int64)
    _canonical(lengths, n, values)
    codes[:] = 0
    for i in range(n):
        codes[symbols[i]] = np.uint32(values[i] | (lengths[i] << 16))


@kernel
def build_decoder(gaps: Any, steps: Any, entries: Any) -> None:
    """Fill `entries` (4096,) uint32, indexed by the next 12 bits of the stream."""
    symbols = np.empty(8193, np.int64)
    lengths = np.empty(8193, np.int64)
    n = code_lengths(gaps, steps, symbols, lengths)
    values = np.empty(n, np.int64)
    _canonical(lengths, n, values)
    entries[:] = ENTRY_RARE
    for i in range(n):
        length = lengths[i]
        if symbols[i] == ESCAPE:
            entry = length | (length << _ENTRY_CODE) | ENTRY_ESCAPE | ENTRY_RARE
        else:
            gap = symbols[i] // STEP_CLASSES
            step = symbols[i] % STEP_CLASSES
            whole = length + (gap >> 1) + (step >> 1)
            entry = whole | (length << _ENTRY_CODE) | (gap << _ENTRY_GAP) | (step << _ENTRY_STEP)
            if whole > AT_ONCE:
                entry |= ENTRY_RARE
        at = values[i]
        while at < 1 << CODE_BITS:
            entries[at] = np.uint32(entry)
            at += np.int64(1) << length


def pack_weights(row: NDArray[np.uint8]) -> bytes:
    """One row of weights as bytes: first index, count, then nibbles.

    A nibble 0..14 adds -7..7 to the previous weight (4 before the first); 15 is followed by the weight in two nibbles.
    """
    used = np.flatnonzero(row)
    if used.size == 0:
        return bytes((0, 0))
    first, last = int(used[0]), int(used[-1])
    nibbles: list[int] = []
    previous = 4
    for weight in row[first : last + 1].tolist():
        delta = weight - previous
        if -7 <= delta <= 7:
            nibbles.append(delta + 7)
        else:
            nibbles += (15, weight & 15, weight >> 4)
        previous = weight
    if len(nibbles) % 2:
        nibbles.append(0)
    body = bytes(a | b << 4 for a, b in zip(nibbles[0::2], nibbles[1::2], strict=True))
    return bytes((first, last - first + 1)) + body


def unpack_weights(data: memoryview, at: int, size: int) -> tuple[NDArray[np.uint8], int]:
    """Read one row of `size` weights from `data[at:]`; returns it and where it ended. CodecError if it is malformed."""
    row = np.zeros(size, np.uint8)
    if at + 2 > len(data):
        raise CodecError("a code table is cut short")
    first, count = data[at], data[at + 1]
    if first + count > size:
        raise CodecError(f"a code table names entry {first + count - 1} of {size}")
    at += 2
    half = 0

    def nibble() -> int:
        nonlocal half
        index = at + half // 2
        if index >= len(data):
            raise CodecError("a code table is cut short")
        value = data[index] >> 4 if half % 2 else data[index] & 15
        half += 1
        return value

    previous = 4
    for i in range(first, first + count):
        value = nibble()
        previous = previous + value - 7 if value < 15 else nibble() | nibble() << 4
        if not 0 <= previous <= 126:
            raise CodecError(f"a code table holds weight {previous}")
        row[i] = previous
    return row, at + (half + 1) // 2
