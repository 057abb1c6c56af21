"""Probe: one question to the daemon's socket, for the health checks of containers.

    python -m patchswarm.daemon.local.probe healthz|readyz

The home is PATCHSWARM_HOME's. Exits with 0 when the answer is yes, else with 1 and one line that says why. It is asked
every few seconds beside an engine, so it starts in a moment: the standard library alone.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from pathlib import Path
from typing import Final

QUESTIONS: Final = ("healthz", "readyz")
TIMEOUT_S: Final = 5.0
LIMIT_BYTES: Final = 65536


class _Connection(http.client.HTTPConnection):
    """HTTP over the unix socket at `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


def ask(path: Path, question: str) -> str:
    """What is wrong, "" when nothing is."""
    connection = _Connection(path)
    try:
        connection.request("GET", f"/{question}")
        answer = connection.getresponse()
        body = answer.read(LIMIT_BYTES)
    except (OSError, http.client.HTTPException) as error:
        return f"{path}: {str(error) or type(error).__name__}"
    finally:
        connection.close()
    if answer.status == http.HTTPStatus.OK:
        return ""
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{path}: answers {answer.status}"


def main(arguments: list[str]) -> int:
    """Ask; returns the exit code."""
    if len(arguments) != 1 or arguments[0] not in QUESTIONS:
        print(f"usage: probe {'|'.join(QUESTIONS)}", file=sys.stderr)  # noqa: T201 -- a program of its own
        return 2
    home = Path(os.environ.get("PATCHSWARM_HOME", "~/.patchswarm")).expanduser()
    problem = ask(home / "patchswarm.sock", arguments[0])
    if problem:
        print(problem, file=sys.stderr)  # noqa: T201
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
