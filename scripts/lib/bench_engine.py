"""What an engine on a host waits for: a delta applied in place, a lease, the whole checkpoint over HTTP."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from local_fleet import LocalFleet, Node
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from targets import Target, close
from trainer import Tensor, write_safetensors

from patchswarm.daemon.local.applying import apply_delta
from patchswarm.daemon.local.connection import DaemonAddress, stream_path
from patchswarm.daemon.local.delta_file import Delta

HERE = Path(__file__).parent
MIB = 1024 * 1024
APPLY = {0.01: 1 / 5, 0.003: 1 / 10}
"""Share of the elements that change, and the share of a full load that applying the delta may take."""
LEASE_MS = 5.0
PULL = 0.8
LEASES = 200
STREAM = "bench"
LARGE, SMALL = "large", "small"

Model = dict[str, Tensor]


def model(size_mib: int, layer_mib: int = 16) -> Model:
    """BF16 tensors of normal values."""
    random = np.random.default_rng(1)
    count = max(1, size_mib // layer_mib)
    rows = size_mib * MIB // count // 2 // 1024
    tensors = {}
    for number in range(count):
        values = random.standard_normal((rows, 1024), np.float32) * np.float32(0.02)
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        tensors[f"layers.{number}.weight"] = Tensor("BF16", (rows, 1024), bits.reshape(-1).view(np.uint8))
    return tensors


def step(tensors: Model, share: float, seed: int) -> Model:
    """The model with one unit more or less in a share of its elements, drawn evenly: the worst case for caches."""
    random = np.random.default_rng(seed)
    after = {}
    for name, tensor in tensors.items():
        bits = tensor.data.view(np.uint16).copy()
        bits[random.random(bits.size, np.float32) < share] ^= 1
        after[name] = Tensor(tensor.dtype, tensor.shape, bits.view(np.uint8))
    return after


def best_s(work: Callable[[], object], rounds: int) -> float:
    """Shortest of several runs: what the machine can do when nothing else runs in between."""
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


class Bench:
    """A head daemon and what it published."""

    def __init__(self, root: Path, head: Node, rounds: int) -> None:
        self.root = root
        self.head = head
        self.rounds = rounds
        self.rows: list[tuple[str, str]] = []
        self.targets: list[Target] = []
        self._published = 0

    def publish(self, tensors: Model, stream: str) -> Path:
        """Publish a model, and keep its directory."""
        self._published += 1
        directory = self.root / f"c{self._published}"
        directory.mkdir()
        write_safetensors(directory / "model.safetensors", tensors, {})
        self.head.publish(directory, stream)
        return directory

    def say(self, what: str, figure: str) -> None:
        """A line of the table."""
        self.rows.append((what, figure))

    def apply(self, size_mib: int) -> None:
        """A step's delta, applied to tensors in place, beside loading the whole file and copying it into them."""
        before = model(size_mib)
        directory = self.publish(before, LARGE)
        held = {name: tensor.clone() for name, tensor in load_file(directory / "model.safetensors").items()}
        made = []
        for number, share in enumerate(APPLY, 1):
            after = step(before, share, number)
            made.append((share, after, *self._fetch(number, share, after)))
            before = after
        self.head.stop()  # what it does in the background is not what is measured
        for share, after, path, delta in made:
            self._apply(share, after, path, delta, held)
        self.head.start()

    def _fetch(self, number: int, share: float, after: Model) -> tuple[Path, Delta]:
        """Publish the version after `number`; its file, and the delta that leads there."""
        client = self.head.client
        with client.lease(LARGE, number, ttl_s=600):
            path = self.publish(after, LARGE) / "model.safetensors"
            fetch = partial(client.delta, LARGE, number, number + 1)
            begun = time.perf_counter()
            delta = fetch()
            made_s = time.perf_counter() - begun
            again_s = best_s(fetch, self.rounds)
        size = f"{delta.body.nbytes / MIB:.1f} MiB"
        self.say(f"{share:.1%} step: delta made and fetched, {size}", f"{made_s * 1e3:.0f} ms")
        self.say(f"{share:.1%} step: fetched again", f"{again_s * 1e3:.1f} ms")
        return path, delta

    def _apply(self, share: float, after: Model, path: Path, delta: Delta, held: dict[str, torch.Tensor]) -> None:
        """Bring `held` to the version of `after`, in place and by loading it."""
        apply, load = partial(apply_delta, held, delta), partial(load_into, held, path)
        apply()  # compiles
        # In turns, so that what else the machine does falls on both alike.
        taken_s = np.array([(best_s(apply, 1), best_s(load, 1)) for _ in range(self.rounds)])
        applied_s, full_s = np.median(taken_s, axis=0)
        ratio = float(np.median(taken_s[:, 0] / taken_s[:, 1]))
        apply()
        for name, tensor in after.items():
            if not np.array_equal(held[name].view(torch.int16).numpy().view(np.uint16).ravel(), words(tensor)):
                raise SystemExit(f"error: {name} is not what was published")
        self.say(f"{share:.1%} step: applied in place", f"{applied_s * 1e3:.1f} ms")
        self.say(f"{share:.1%} step: load_file + copy of the whole instead", f"{full_s * 1e3:.1f} ms")
        name = f"{share:.1%} step, applied over loaded in full"
        self.targets.append(Target(name, ratio, APPLY[share], unit="x"))

    def lease(self, size_mib: int) -> None:
        """The time until a lease is in hand: small and large, idle and while the large one is published."""
        self.publish(model(16), SMALL)
        for stream, size in ((SMALL, 16), (LARGE, size_mib)):
            self._lease(f"{size} MiB, idle", stream)
        versions = [step(model(size_mib), 0.01, seed) for seed in (7, 8)]
        directories = [self.root / f"l{number}" for number in range(2)]
        for directory, tensors in zip(directories, versions, strict=True):
            directory.mkdir()
            write_safetensors(directory / "model.safetensors", tensors, {})
        del versions
        with self._publishing(directories):
            self._lease(f"{size_mib} MiB, while it is published", LARGE)

    def _lease(self, what: str, stream: str) -> None:
        command = [sys.executable, HERE / "lease_timer.py", self.head.home / "patchswarm.sock", stream, str(LEASES)]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"error: no leases: {done.stderr}")
        found = json.loads(done.stdout)
        leases, questions = (np.percentile(np.array(found[what]) * 1e3, [50, 99]) for what in ("leases", "questions"))
        self.say(f"lease of {what}: p50, p99", f"{leases[0]:.2f}, {leases[1]:.2f} ms")
        self.say("    a question that touches nothing: p50, p99", f"{questions[0]:.2f}, {questions[1]:.2f} ms")
        self.targets.append(Target(f"lease of {what}, p50", float(leases[0]), LEASE_MS, unit=" ms"))

    @contextmanager
    def _publishing(self, directories: list[Path]) -> Iterator[None]:
        """Publish these in turns, without a pause."""
        over, failed = threading.Event(), []

        def publish() -> None:
            number = 0
            try:
                while not over.is_set():
                    self.head.publish(directories[number % 2], LARGE)
                    number += 1
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if failed:
            raise SystemExit(f"error: {failed[0]}")

    def pull(self) -> None:
        """The whole checkpoint over HTTP into the same reader, from the daemon and from a bare sendfile server."""
        version = self.head.client.version(LARGE)
        socket = self.root / "bare"
        command = [sys.executable, HERE / "bare_sendfile.py", version.path or "", socket]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            if server.stdout.readline().strip() != "ready":
                raise SystemExit("error: the bare server does not start")
            bare = DaemonAddress(socket, "")
            daemon = DaemonAddress(self.head.home / "patchswarm.sock", "")
            path = stream_path(LARGE, "versions", version.version, "files", "model.safetensors")
            ways: dict[str, Callable[[], int]] = {
                "bare": lambda: read_all(bare, "/model.safetensors"),
                "daemon": lambda: read_all(daemon, path),
            }
            sizes = {name: read() for name, read in ways.items()}
            rounds = [{name: best_s(read, 1) for name, read in ways.items()} for _ in range(2 * self.rounds)]
            server.terminate()
        if len(set(sizes.values())) != 1:
            raise SystemExit(f"error: not the same bytes came: {sizes}")
        rates = {name: sizes[name] / float(np.median([each[name] for each in rounds])) / 1e9 for name in ways}
        ratio = float(np.median([each["bare"] / each["daemon"] for each in rounds]))
        self.say("checkpoint over HTTP: daemon, bare sendfile", f"{rates['daemon']:.2f}, {rates['bare']:.2f} GB/s")
        self.targets.append(Target("HTTP pull over a bare sendfile server", ratio, PULL, at_most=False, unit="x"))


def read_all(address: DaemonAddress, path: str) -> int:
    """Read one answer to its end, into the same memory again and again; its bytes."""
    buffer = memoryview(bytearray(4 * MIB))
    total = 0
    with address.exchange("GET", path, timeout_s=60) as response:
        while size := response.readinto(buffer):
            total += size
    return total


def load_into(held: dict[str, torch.Tensor], path: Path) -> None:
    """What an engine does without deltas."""
    with torch.no_grad():
        for name, tensor in load_file(path).items():
            held[name].copy_(tensor)


def words(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A BF16 tensor's bits."""
    return tensor.data.view(np.uint16)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench_engine", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--mib", type=int, default=512, help="size of the model (default: 512)")
    parser.add_argument("--rounds", type=int, default=9, help="runs of each (default: 9)")
    options = parser.parse_args()
    if options.mib < 16 or options.rounds < 1:
        parser.error("--mib takes 16 and more, --rounds 1 and more")
    print(
        f"{options.mib} MiB of BF16, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__} on the CPU; deltas and files come over the unix socket, warm"
    )
    with tempfile.TemporaryDirectory(prefix="ps-be-") as root, LocalFleet(Path(root)) as fleet:
        bench = Bench(Path(root), fleet.add_head(), options.rounds)
        bench.apply(options.mib)
        bench.lease(options.mib)
        bench.pull()
    table = Table("what", "figure", box=None)
    for row in bench.rows:
        table.add_row(*row)
    Console(width=100).print(table)
    return close({"mib": options.mib, "rows": dict(bench.rows)}, bench.targets, options.json)


if __name__ == "__main__":
    sys.exit(main())
