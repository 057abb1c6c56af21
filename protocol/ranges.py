"""Sets of ordinals: as a bitmap held in one Python integer, and as the ranges that HAVE and CLAIM carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def bits_of(ordinals: Iterable[int]) -> int:
    """Bitmap with a one at each ordinal."""
    bitmap = 0
    for ordinal in ordinals:
        bitmap |= 1 << ordinal
    return bitmap


def mask(first: int, last: int) -> int:
    """Bitmap of `first` to `last`, both included."""
    return ((1 << (last - first + 1)) - 1) << first


def bits_of_ranges(ranges: Sequence[tuple[int, int]]) -> int:
    """Bitmap of (first, last) ranges, rising and not touching.

    Takes time for the ranges and for the last ordinal, not for their product: a peer chooses both.
    """
    if len(ranges) == 1:
        return mask(*ranges[0])
    bits = bytearray(ranges[-1][1] // 8 + 1 if ranges else 0)
    for first, last in ranges:
        low, high = first // 8, last // 8
        if low == high:
            bits[low] |= mask(first % 8, last % 8)
        else:
            bits[low] |= 0xFF << first % 8 & 0xFF
            bits[low + 1 : high] = b"\xff" * (high - low - 1)
            bits[high] |= 0xFF >> 7 - last % 8
    return int.from_bytes(bits, "little")


def iterate(bitmap: int) -> Iterator[int]:
    """Ordinals in a bitmap, rising."""
    while bitmap:
        low = bitmap & -bitmap
        yield low.bit_length() - 1
        bitmap ^= low


def to_ranges(bitmap: int) -> list[tuple[int, int]]:
    """(first, last) ranges of a bitmap, rising, not touching."""
    ranges: list[tuple[int, int]] = []
    at = 0
    while bitmap:
        zeros = (bitmap & -bitmap).bit_length() - 1
        bitmap >>= zeros
        at += zeros
        ones = (~bitmap & (bitmap + 1)).bit_length() - 1
        ranges.append((at, at + ones - 1))
        bitmap >>= ones
        at += ones
    return ranges
