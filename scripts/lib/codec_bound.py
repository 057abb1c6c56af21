"""The size no codec of this family goes below: which elements change given tensor and old exponent, and by how much.

Empirical entropies: for each tensor and each exponent of the old value (integers: each old value) the bits to say which
elements changed, and for each exponent the bits to say the step in ULP order. No table, header or checksum is counted.
"""

from __future__ import annotations

import numpy as np

from patchswarm.protocol.elements import BITS, FLOAT_FIELDS, Kind

_STEP_LIMIT = 20  # larger steps count as one


def elements(kind: Kind, data: np.ndarray) -> np.ndarray:
    """Bytes to unsigned elements; nibbles one to a byte."""
    if BITS[kind] == 4:
        return np.stack([data & 15, data >> 4], axis=1).reshape(-1)
    return data.view(f"u{BITS[kind] // 8}")


def bound_bytes(kind: Kind, tensors: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, int]:
    """Bytes of the bound and number of changed elements for (old, new) tensors of one kind."""
    bits = BITS[kind]
    mask_bits = 0.0
    changed = 0
    steps = np.zeros((256, 2 * _STEP_LIMIT + 1))
    for old_bytes, new_bytes in tensors:
        old, new = elements(kind, old_bytes), elements(kind, new_bytes)
        context = _context(kind, old)
        moved = np.flatnonzero(old != new)
        changed += moved.size
        total = np.bincount(context, minlength=256).astype(float)
        part = np.bincount(context[moved], minlength=256).astype(float)
        mask_bits += _mask_entropy(total, part)
        size = 1 << bits
        distance = (_order(kind, new[moved]) - _order(kind, old[moved]) + size // 2) % size - size // 2
        clipped = np.clip(distance, -_STEP_LIMIT, _STEP_LIMIT) + _STEP_LIMIT
        np.add.at(steps, (context[moved].astype(np.int64), clipped), 1)
    rows = steps.sum(axis=1)
    step_bits = -float(np.sum(steps[steps > 0] * np.log2(steps[steps > 0])))
    step_bits += float(np.sum(rows[rows > 0] * np.log2(rows[rows > 0])))
    return (mask_bits + step_bits) / 8, changed


def _context(kind: Kind, values: np.ndarray) -> np.ndarray:
    if kind in FLOAT_FIELDS and kind is not Kind.F8_E8M0:
        exponent, mantissa = FLOAT_FIELDS[kind]
        return (values >> mantissa) & values.dtype.type((1 << exponent) - 1)
    return values if BITS[kind] <= 8 else values >> values.dtype.type(BITS[kind] - 8)


def _order(kind: Kind, values: np.ndarray) -> np.ndarray:
    place = values.astype(np.int64)
    if kind in FLOAT_FIELDS and kind is not Kind.F8_E8M0:
        sign = 1 << (BITS[kind] - 1)
        return np.where(place & sign, sign - 1 - place, place)
    return place


def _mask_entropy(total: np.ndarray, part: np.ndarray) -> float:
    inside = (part > 0) & (part < total)
    n, k = total[inside], part[inside]
    return -float(np.sum(k * np.log2(k / n) + (n - k) * np.log2(1 - k / n)))
