"""Crash chaos: a real daemon, killed with SIGKILL at random moments, must never show its reader a wrong byte.

A real head publishes without a pause. A reader beside the victim leases whatever the victim serves and hashes every
file of it against what the trainer wrote, while the victim lives and while it is dead; versions must never go back.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from local_fleet import LocalFleet, Node, termination_as_exit
from rich.console import Console
from trainer import Tensor, write_safetensors

from patchswarm.daemon.local.errors import LocalError

STREAM = "chaos"
TMPFS_MB = 64
ELEMENTS = {"attention": 2_000_000, "mlp": 3_000_000, "norm": 1_000}
STEPS_PER_S = 4.0
LONGEST_LIFE_S = 2.0
CATCH_UP_S = 120.0

Sums = dict[str, str]
"""SHA-256 of each file, by its path."""


@dataclass
class Report:
    """What a run came to. Times in seconds."""

    seed: int
    small_tmpfs: bool
    kills: int = 0
    published: int = 0
    versions_read: int = 0
    reads: int = 0
    mismatches: list[str] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)
    times_full: int = 0
    caught_up: bool = False

    @property
    def passed(self) -> bool:
        """Whether no byte was wrong and the victim came to the newest version in the end."""
        return not self.mismatches and self.caught_up


class Trainer:
    """Publishes one step after the other on the head, until stopped."""

    def __init__(self, head: Node, folder: Path, seed: int) -> None:
        self.truth: dict[int, Sums] = {}
        self.newest = 0
        self.error: BaseException | None = None
        self._head = head
        self._folder = folder
        self._random = np.random.default_rng(seed)
        self._stop = threading.Event()
        self._tensors = {
            name: Tensor("BF16", (count,), self._random.integers(0, 256, 2 * count, dtype=np.uint8))
            for name, count in ELEMENTS.items()
        }
        self._thread = threading.Thread(target=self._run, name="trainer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Publish nothing more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began_s = time.monotonic()
                self._publish()
                self._stop.wait(max(0.0, 1 / STEPS_PER_S - (time.monotonic() - began_s)))
        except BaseException as error:
            self.error = error
            raise

    def _publish(self) -> None:
        version = self.newest + 1
        directory = self._folder / str(version)
        directory.mkdir()
        for tensor in self._tensors.values():
            chosen = self._random.integers(0, tensor.data.size, tensor.data.size // 200)
            tensor.data[chosen] ^= 1
        write_safetensors(directory / "model.safetensors", self._tensors, {"format": "pt"})
        (directory / "config.json").write_text(json.dumps({"step": version}))
        self.truth[version] = sums_of(directory)  # before anyone can be given it
        self._head.client.publish(directory, stream=STREAM, version=version)
        self.newest = version
        shutil.rmtree(directory)


class Reader:
    """Leases what the victim serves, and hashes it, until stopped."""

    def __init__(self, victim: Node, trainer: Trainer, report: Report) -> None:
        self._victim = victim
        self._trainer = trainer
        self._report = report
        self._stop = threading.Event()
        self._seen: set[int] = set()
        self._newest = 0
        self._thread = threading.Thread(target=self._run, name="reader")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._read()
            except (LocalError, OSError):
                self._stop.wait(0.02)  # it is dead, or has nothing yet

    def _read(self) -> None:
        with self._victim.client.lease(STREAM, ttl_s=30) as lease:
            version = lease.version
            if version < self._newest:
                self._report.mismatches.append(f"version {version} was served after {self._newest}")
            self._newest = max(version, self._newest)
            found = sums_of(lease.path)
        self._report.reads += 1
        self._seen.add(version)
        self._report.versions_read = len(self._seen)
        if found != self._trainer.truth[version]:
            wrong = sorted(
                path
                for path in found.keys() | self._trainer.truth[version].keys()
                if found.get(path) != self._trainer.truth[version].get(path)
            )
            self._report.mismatches.append(f"version {version} differs in {', '.join(wrong)}")


def sums_of(directory: Path) -> Sums:
    """What a reader may see of a checkpoint."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.is_file() and not path.name.startswith(".patchswarm")
    }


def run(kills: int, seed: int, root: Path, *, small_tmpfs: bool, say: Console) -> Report:
    """Kill a victim so often."""
    report, chance = Report(seed, small_tmpfs), random.Random(seed)  # noqa: S311 - a seed that can be given again
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(LocalFleet(root))
        head = fleet.add_head()
        victim = fleet.add("victim", "eu-west/b", start=False)
        settings = ["verify_every_s = 5"]
        if small_tmpfs:
            slots = stack.enter_context(tmpfs(root / "tmpfs"))
            settings.append(f'slot_dir = "{slots}"')
        config = victim.home / "config.toml"
        config.write_text(config.read_text().replace("[storage]", "\n".join(["[storage]", *settings])))
        (root / "trainer").mkdir()
        trainer = stack.enter_context(Trainer(head, root / "trainer", seed))
        victim.start()
        stack.enter_context(Reader(victim, trainer, report))
        if small_tmpfs:
            stack.enter_context(filling(slots, chance, report))
        while report.kills < kills:
            time.sleep(chance.uniform(0.0, LONGEST_LIFE_S))
            victim.kill()
            report.kills += 1
            began_s = time.monotonic()
            victim.start()
            report.recoveries_s.append(serving_after(victim, began_s))
            if trainer.error is not None:
                raise trainer.error
            if say.is_terminal:
                say.print(f"kill {report.kills}: {report.recoveries_s[-1]:.2f} s, {report.reads} reads")
        trainer.finish()
        report.published = trainer.newest
        report.caught_up = victim.client.wait(STREAM, trainer.newest, CATCH_UP_S) is not None
    return report


def serving_after(victim: Node, began_s: float) -> float:
    """Seconds until a version is served again; infinite when none is in time."""
    served = victim.client.wait(STREAM, 1, CATCH_UP_S)
    return float("inf") if served is None else time.monotonic() - began_s


@contextlib.contextmanager
def tmpfs(place: Path) -> Iterator[Path]:
    """A small tmpfs. Raises SystemExit where none can be mounted."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MB}m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        raise SystemExit(f"chaos_crash: --small-tmpfs needs the right to mount: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@contextlib.contextmanager
def filling(place: Path, chance: random.Random, report: Report) -> Iterator[None]:
    """Fill a file system to the last byte now and then, and free it again, as a neighbour may."""
    stop = threading.Event()

    def fill() -> None:
        ballast = place / "ballast"
        while not stop.wait(chance.uniform(0.5, 2.0)):
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while not stop.is_set():
                    file.write(bytes(65536))
            report.times_full += 1
            stop.wait(chance.uniform(0.2, 1.0))
            ballast.unlink()

    thread = threading.Thread(target=fill, name="neighbour")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print what came of it, and return the exit code."""
    parser = argparse.ArgumentParser(prog="chaos_crash", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--small-tmpfs", action="store_true")
    asked = parser.parse_args(arguments)
    say = Console(stderr=True)
    say.print(f"chaos_crash: {asked.kills} kills, seed {asked.seed}")
    root = Path(tempfile.mkdtemp(prefix="ps-"))
    try:
        with termination_as_exit():
            report = run(asked.kills, asked.seed, root, small_tmpfs=asked.small_tmpfs, say=say)
        if not report.passed:
            say.print((root / "victim.log").read_text()[-4000:])
    finally:
        shutil.rmtree(root, ignore_errors=True)
    times = sorted(report.recoveries_s) or [0.0]
    out = Console()
    out.print(f"kills       {report.kills}")
    out.print(f"published   {report.published} versions, {report.versions_read} of them read in {report.reads} reads")
    out.print(f"mismatches  {len(report.mismatches)}")
    out.print(
        f"recoveries  {len(report.recoveries_s)}: median {statistics.median(times):.2f} s, worst {times[-1]:.2f} s"
    )
    if report.small_tmpfs:
        out.print(f"disk full   {report.times_full} times")
    out.print(f"caught up   {'yes' if report.caught_up else 'no'}")
    for each in report.mismatches[:20]:
        out.print(f"  {each}")
    if asked.json:
        asked.json.write_text(json.dumps(asdict(report) | {"passed": report.passed}, indent=2) + "\n")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
