"""The local API of a running daemon under bent HTTP: it answers, or hangs up, and never meets an error of its own."""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

from local_fleet import LocalFleet

from .mutate import Mutator
from .run import MEMORY_BYTES, Outcome

NAME: Final = "http"
STOP_S: Final = 180.0
"""A fuzzer that runs at low priority lets its daemon starve too."""

REFUSED: Final = "aiohttp.http_exceptions."
"""Stands in what the HTTP library logs about requests that it refuses: each is answered with 400."""

_BODY: Final = b'{"version":1,"ttl_s":5.0}'
_REQUESTS: Final = (
    b"GET /v1/streams HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/streams/qwen/version?min=1&wait=0 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/streams/qwen/versions/1/files/model.safetensors HTTP/1.1\r\nHost: x\r\nRange: bytes=0-10\r\n\r\n",
    b'GET /v1/streams/qwen/versions/current/tensors/a HTTP/1.1\r\nHost: x\r\nIf-None-Match: "x"\r\n\r\n',
    b"GET /v1/streams/qwen/delta?from=1&to=2 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/streams/qwen/leases HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY),
    b'POST /v1/streams/qwen/versions HTTP/1.1\r\nHost: x\r\nContent-Length: 24\r\n\r\n{"directory":"/nowhere"}',
    b'POST /v1/objects HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n{"kind":"revocation","data":"AAAAAAAAAA"}',
    b"POST /v1/streams/qwen/verify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"GET /v1/node HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
)


def fuzz_http(seconds: float, seed: int, most: int | None = None) -> Outcome:
    """Send bent requests to a real daemon for so long, or `most` of them."""
    mutator = Mutator(random.Random(f"{NAME} {seed}"))  # noqa: S311 -- to be repeatable
    with tempfile.TemporaryDirectory(prefix="psf-") as folder, LocalFleet(Path(folder)) as fleet:
        head = fleet.add_head()
        before, until = _peak_bytes(head.pid), time.monotonic() + seconds
        cases = refused = 0
        while time.monotonic() < until and cases != most:
            request = mutator.chance.choice(_REQUESTS)
            cases += 1
            refused += _ask(head.home / "patchswarm.sock", mutator.bent(request) if cases % 20 else request)
        finding = ""
        if not head.running or head.client.streams() != []:
            finding = "the daemon does not answer any more"
        for line in head.log.read_text().splitlines():
            if '"level":"error"' in line and REFUSED not in line:
                finding = f"the daemon met an error of its own: {line[:3000]}"
        grown = _peak_bytes(head.pid) - before
        if grown > MEMORY_BYTES:
            finding = f"the daemon grew by {grown} bytes"
        head.stop(STOP_S)
        return Outcome(NAME, cases, refused, grown, finding)


def _ask(path: Path, request: bytes) -> bool:
    """Send a request; whether it was refused or hung up on."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        connection.connect(str(path))
        answer = b""
        with contextlib.suppress(OSError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
    return not answer.startswith(b"HTTP/1.1 2")


def _peak_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024
