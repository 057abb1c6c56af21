"""Exit codes of the `patchswarm` command: one table, shown by `--help`, never renumbered."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """What a command's exit status says."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    BAD_INPUT = 3
    HOME = 4
    NOT_RUNNING = 5
    IN_USE = 6
    NOT_FOUND = 7
    REFUSED = 8
    CONFLICT = 9
    TIMEOUT = 10
    DAMAGED = 11
    INTERRUPTED = 130


MEANINGS: Final[dict[Exit, str]] = {
    Exit.OK: "done",
    Exit.UNEXPECTED: "a bug: run again with PATCHSWARM_DEBUG=1 and report what it shows",
    Exit.USAGE: "the command line is wrong",
    Exit.BAD_INPUT: "a file, directory, token or value given is not what it should be",
    Exit.HOME: "the home is missing, not initialised, unreadable or its config.toml is wrong",
    Exit.NOT_RUNNING: "no daemon answers on this home, or the head cannot be reached",
    Exit.IN_USE: "another daemon runs on this home, or a port or socket is taken",
    Exit.NOT_FOUND: "no such stream, version or file",
    Exit.REFUSED: "not allowed: token expired, used or foreign, or this node has not the right",
    Exit.CONFLICT: "a version that does not rise, or another publish under way",
    Exit.TIMEOUT: "what was waited for did not come in time",
    Exit.DAMAGED: "a slot holds wrong blocks that are not mended yet",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
}


def table() -> str:
    """The exit codes as plain text, one to a line."""
    return "\n".join(f"{code.value:>5}  {MEANINGS[code]}" for code in Exit)
