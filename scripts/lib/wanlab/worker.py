"""Worker: what the programs of the baselines say to the lab that started them, on their standard streams.

A worker prints one line when it is ready, waits for one line, does its part, prints when it was done, and ends when
its standard input does.
"""

from __future__ import annotations

import json
import sys
import time


def ready() -> None:
    """Say that everything is prepared, and wait for the word."""
    _say({"ready": True})
    sys.stdin.readline()


def done() -> None:
    """Say that this host has every byte, verified. Then serve others until the lab ends it."""
    _say({"done_at": time.time()})


def linger() -> None:
    """Wait until the lab has no more use for this worker."""
    sys.stdin.read()


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)
