"""The gateway benchmark: tokens carry the time they were made; directly, through a plain proxy, through the gateway."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
import uvloop
from local_fleet import COMMAND, LocalFleet, clean_environment, free_port
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file
from targets import Target, close
from token_engine import TokenEngine

STREAM = "bench"
ARMS = ("direct", "plain", "gateway")
LIMIT = 1.5
RAMP_S = 1.0
"""Streams begin one after the other; tokens count from a little later on, when all of them run."""
READY_S = 60.0
_MADE = re.compile(rb'"made_ns":(\d+)')


@dataclass(frozen=True)
class Load:
    """What is asked of every arm in every round."""

    streams: int
    rate: float
    seconds: float
    rounds: int

    @property
    def tokens(self) -> int:
        """Tokens per stream: enough for the first to run until the last has had its time."""
        return max(2, round(self.rate * (1.5 * RAMP_S + self.seconds)))


@dataclass(frozen=True)
class Row:
    """One arm under one kind of step: milliseconds from made to received, medians over the rounds.

    `times_plain_…` is what it adds over what the plain proxy adds right beside it, the median over rounds again.
    """

    steps: str
    arm: str
    p50_ms: float
    p99_ms: float
    added_p50_ms: float
    added_p99_ms: float
    times_plain_p50: float
    times_plain_p99: float
    cpu_us: float
    """Processor time of the proxy per token; 0 for none."""


class Reader(asyncio.Protocol):
    """One stream's client: notes how old each token is when it comes in."""

    def __init__(self, request: bytes, tokens: list[tuple[int, int]]) -> None:
        self._request = request
        self._tokens = tokens
        self.ended = asyncio.get_running_loop().create_future()
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own, which is none by name
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note when the tokens in it were made, and when they came."""
        now_ns = time.monotonic_ns()
        self._tokens += [(int(made), now_ns) for made in _MADE.findall(data)]
        if b"[DONE]" in data:
            self.tail = data
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it has ended."""
        if not self.ended.done():
            self.ended.set_result(exc)


@dataclass(frozen=True)
class Round:
    """Every stream of one round: quantiles of the tokens' ages, the proxy's processor time, the end of one stream."""

    p50_ms: float
    p99_ms: float
    cpu_us: float
    tail: bytes


async def round_of(port: int, pid: int | None, load: Load) -> Round:
    """One round through `port`, where the process `pid` answers."""
    body = json.dumps(
        {
            "model": "m",
            "prompt": "x",
            "stream": True,
            "max_tokens": load.tokens,
            "weight_version": {"min_version": 0},
        }
    ).encode()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    loop = asyncio.get_running_loop()
    tokens: list[tuple[int, int]] = []
    readers = []
    for _ in range(load.streams):
        _, reader = await loop.create_connection(lambda: Reader(request, tokens), "127.0.0.1", port)
        readers.append(reader)
        await asyncio.sleep(RAMP_S / load.streams)
    await asyncio.sleep(RAMP_S / 4)
    from_ns, before_s = time.monotonic_ns(), cpu_of(pid)
    await asyncio.sleep(load.seconds)
    until_ns, after_s = time.monotonic_ns(), cpu_of(pid)
    await asyncio.wait_for(asyncio.gather(*(reader.ended for reader in readers)), 60 + 4 * load.seconds)
    expected = load.streams * load.tokens
    if len(tokens) != expected:
        raise SystemExit(f"error: {len(tokens)} tokens of {expected} came through port {port}")
    ages = [came - made for made, came in tokens if from_ns <= made < until_ns]
    p50, p99 = np.percentile(ages, [50, 99]) / 1e6
    return Round(float(p50), float(p99), (after_s - before_s) / len(ages) * 1e6, readers[0].tail)


async def measure(ports: dict[str, int], pids: dict[str, int], engine: TokenEngine, load: Load) -> list[Row]:
    """Every arm in turn, round after round, so that what else the machine does falls on all alike."""
    rows = []
    for steps in ("together", "spread"):
        engine.together = steps == "together"
        rounds: dict[str, list[Round]] = {arm: [] for arm in ARMS}
        for number in range(load.rounds + 1):
            for arm in ARMS if number % 2 else reversed(ARMS):  # whoever comes after whom alternates
                result = await round_of(ports[arm], pids.get(arm), load)
                if (b"weight_version_end" in result.tail) != (arm == "gateway"):
                    raise SystemExit(f"error: {arm}: the end of a stream is not what it should be: {result.tail!r}")
                if number:  # the first warms caches up
                    rounds[arm].append(result)
        ways = {arm: np.array([(each.p50_ms, each.p99_ms) for each in rounds[arm]]) for arm in ARMS}
        plain = np.maximum(ways["plain"] - ways["direct"], 1e-6)
        for arm, way in ways.items():
            added = way - ways["direct"]
            medians = (np.median(each, axis=0) for each in (way, added, added / plain))
            figures = [float(figure) for pair in medians for figure in pair]
            figures.append(float(np.median([each.cpu_us for each in rounds[arm]])))
            rows.append(Row(steps, arm, *figures))
    return rows


def cpu_of(pid: int | None) -> float:
    """Processor seconds that a process has used; 0 for none."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def targets_of(rows: list[Row]) -> list[Target]:
    """What the gateway adds over what the plain proxy adds."""
    return [
        Target(
            f"{quantile}, tokens {row.steps}: added by the gateway over added by a plain proxy",
            getattr(row, f"times_plain_{quantile}"),
            LIMIT,
            unit="x",
        )
        for row in rows
        if row.arm == "gateway"
        for quantile in ("p50", "p99")
    ]


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the context."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment(),
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def first_line(process: subprocess.Popen[str], wanted: str) -> str:
    """The first line of a process's output that holds `wanted`."""
    assert process.stdout is not None
    for line in process.stdout:
        if wanted in line:
            return line
    raise SystemExit(f"error: {process.args!r} ended with {process.wait()} and never said {wanted!r}")


async def bench(load: Load, root: Path) -> list[Row]:
    """Start everything, measure, stop everything."""
    with LocalFleet(root) as fleet:
        head = await asyncio.to_thread(fleet.add_head)
        checkpoint = root / "checkpoint"
        checkpoint.mkdir()
        save_file({"w": np.zeros(1024, np.float32)}, checkpoint / "model.safetensors")
        await asyncio.to_thread(head.publish, checkpoint, STREAM)
        engine = TokenEngine(load.rate, together=True)
        server = await asyncio.get_running_loop().create_server(engine.connection, "127.0.0.1", 0, backlog=1024)
        port: int = server.sockets[0].getsockname()[1]
        url, listen = f"http://127.0.0.1:{port}", free_port()
        clock = asyncio.create_task(engine.run())
        arguments = ["--engine", "sglang", "--engine-url", url, "--stream", STREAM, "--listen", f"127.0.0.1:{listen}"]
        with (
            running(sys.executable, Path(__file__).parent / "plain_proxy.py", url) as plain,
            running(COMMAND, "gateway", *arguments, "--home", head.home) as gateway,
        ):
            plain_port = int(await asyncio.to_thread(first_line, plain, ""))
            await asyncio.wait_for(asyncio.to_thread(first_line, gateway, '"message":"moved"'), READY_S)
            ports = {"direct": port, "plain": plain_port, "gateway": listen}
            rows = await measure(ports, {"plain": plain.pid, "gateway": gateway.pid}, engine, load)
        clock.cancel()
        server.close()
    return rows


def show(rows: list[Row]) -> None:
    """The table."""
    table = Table(
        "tokens", "way", "p50 ms", "p99 ms", "added p50", "added p99", "x plain p50", "p99", "cpu µs", box=None
    )
    for row in rows:
        numbers = list(asdict(row).values())[2:]
        table.add_row(row.steps, row.arm, *(f"{number:.2f}" for number in numbers))
    Console(width=100).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench_gateway", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--quick", action="store_true", help="one short round of each")
    parser.add_argument("--streams", type=int, default=200, help="concurrent streams (default: 200)")
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second of each (default: 20)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round (default: 3)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each way (default: 7)")
    options = parser.parse_args()
    if options.streams < 1 or options.rounds < 1 or options.rate <= 0 or options.seconds <= 0:
        parser.error("--streams, --rate, --seconds and --rounds take numbers above 0")
    load = Load(options.streams, options.rate, options.seconds, options.rounds)
    if options.quick:
        load = Load(load.streams, load.rate, 2.0, 1)
    print(
        f"{load.streams} streams of {load.rate:g} tokens/s, {load.rounds} rounds of {load.seconds:g} s, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, uvloop; engine and clients share one process"
    )
    with tempfile.TemporaryDirectory(prefix="ps-gw-") as root:
        rows = uvloop.run(bench(load, Path(root)))
    show(rows)
    return close({"load": asdict(load), "rows": [asdict(row) for row in rows]}, targets_of(rows), options.json)


if __name__ == "__main__":
    sys.exit(main())
