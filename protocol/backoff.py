"""Backoff: waits that double with each failure, for as long as failures go on."""

from __future__ import annotations


def doubled(first_s: float, times: int, most_s: float) -> float:
    """`first_s` doubled so many times, `most_s` at most: after weeks too, when no float holds the power."""
    return min(first_s * 2.0 ** min(times, 64), most_s)
