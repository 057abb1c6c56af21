"""Run: one target for a while; a finding is an error that the target may not raise, or memory that it may not need."""

from __future__ import annotations

import random
import resource
import time
import traceback
from dataclasses import dataclass
from typing import Final

from .mutate import Mutator
from .targets import Target

MEMORY_BYTES: Final = 512 * 1024 * 1024
"""By so much may the process grow while a target runs: the largest list, twice."""


@dataclass(frozen=True)
class Outcome:
    """What became of a run. `finding` is empty when all was well."""

    target: str
    cases: int
    refused: int
    grown_bytes: int
    finding: str = ""


def fuzz(target: Target, seconds: float, seed: int, most: int | None = None) -> Outcome:
    """Feed a target for so long, or `most` cases."""
    before, until = peak_bytes(), time.monotonic() + seconds
    cases = refused = 0
    for case in target.cases(Mutator(random.Random(f"{target.name} {seed}"))):  # noqa: S311 -- to be repeatable
        if time.monotonic() >= until or cases == most:
            break
        cases += 1
        try:
            case()
        except target.allowed:
            refused += 1
        except Exception:
            return Outcome(
                target.name, cases, refused, peak_bytes() - before, f"case {cases}: {traceback.format_exc()}"
            )
    grown = peak_bytes() - before
    finding = f"grew by {grown} bytes, over the limit of {MEMORY_BYTES}" if grown > MEMORY_BYTES else ""
    return Outcome(target.name, cases, refused, grown, finding)


def peak_bytes() -> int:
    """Most memory that this process has needed so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
