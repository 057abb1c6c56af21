"""Command: the options of `scripts/fuzz`, and its table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

from .http import NAME as HTTP
from .http import fuzz_http
from .run import Outcome, fuzz
from .targets import TARGETS


def main() -> int:
    """Run the targets; 1 when there is a finding."""
    parser = argparse.ArgumentParser("fuzz", description=__doc__)
    runs: Mapping[str, Callable[[float, int], Outcome]] = {
        **{each.name: partial(fuzz, each) for each in TARGETS},
        HTTP: fuzz_http,
    }
    parser.add_argument("--minutes", type=float, default=float(len(runs)), help="in all, shared evenly by the targets")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--target", choices=list(runs), action="append", help="only these")
    options = parser.parse_args()
    chosen = options.target or list(runs)
    seconds = options.minutes * 60 / len(chosen)
    print(f"seed {options.seed}, {seconds:.0f} s for each of {len(chosen)} targets")
    print(f"{'target':<12} {'cases':>9} {'refused':>8} {'grown':>9}")
    findings = 0
    for name in chosen:
        outcome = runs[name](seconds, options.seed)
        print(
            f"{name:<12} {outcome.cases:>9} {outcome.refused / max(outcome.cases, 1):>8.0%} "
            f"{outcome.grown_bytes / 2**20:>5.0f} MiB",
            flush=True,
        )
        if outcome.finding:
            findings += 1
            print(f"FINDING in {name}, seed {options.seed}: {outcome.finding}")
    print(f"{findings} findings")
    return min(findings, 1)


if __name__ == "__main__":
    sys.exit(main())
