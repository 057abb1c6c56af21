"""The command line of scripts/bench_path: the bulk path from one process to the next, on loopback."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from targets import Target, exit_code, summary

from patchswarm.daemon import memory
from patchswarm.daemon.fleet import identity
from patchswarm.daemon.home import Home
from patchswarm.protocol.ids import digest
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.files import Files, read_file, write_file

from .material import DISTINCT, contents, sealer

GB = 1e9
CORES = 2
_TIMEOUT_S = 300.0
_LIBRARY = Path(__file__).parent.parent


def chain(kind: str, roles: tuple[str, ...], chunks: int, size: int, folder: Path) -> dict[str, dict[str, float]]:
    """Run one process per role, the last one first; what each used."""
    environment = os.environ | {"PYTHONPATH": str(_LIBRARY)}
    processes: dict[str, subprocess.Popen[str]] = {}
    port = 0
    try:
        for role in reversed(roles):
            arguments = [role, kind, str(port), str(chunks), str(size), str(folder)]
            process = processes[role] = subprocess.Popen(
                [sys.executable, "-m", "bulkpath.roles", *arguments],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            if role != roles[0]:
                port = int(_line(process, role)["port"])
        used = {role: _line(processes[role], role) for role in roles}
        for process in processes.values():
            process.wait(_TIMEOUT_S)
        return used
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _line(process: subprocess.Popen[str], role: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"error: the process that was to {role} ended early")
    said: dict[str, Any] = json.loads(line)
    return said


def stage(work: Callable[[int], object], chunks: int, size: int) -> float:
    """CPU seconds per GB of `work(number)` on chunks of `size` bytes, in this thread."""
    since = time.thread_time()
    for number in range(chunks):
        work(number % DISTINCT)
    return (time.thread_time() - since) / (chunks * size / GB)


def stages(chunks: int, size: int, folder: Path) -> dict[str, float]:
    """CPU seconds per GB of what is done to each chunk between the sockets, each alone."""
    making = sealer()
    plain = [contents(number, size) for number in range(DISTINCT)]
    sealed = [making.seal(number, plain[number]) for number in range(DISTINCT)]
    names = [digest(each) for each in sealed]
    files, place, store = Files(), folder / "stage", ChunkStore(folder / "stage-store")
    place.mkdir()
    for number in range(DISTINCT):
        write_file(files, place / str(number), sealed[number], sync=False)

    def keep(number: int) -> None:
        store.put(names[number], sealed[number])
        store.remove(names[number])

    hashing = stage(lambda number: digest(sealed[number]), chunks, size)
    return {
        "hash": hashing,
        "seal": stage(lambda number: making.seal(number, plain[number]), chunks, size),
        "open": stage(lambda number: making.open(number, sealed[number]), chunks, size),
        "store": stage(keep, chunks, size) - hashing,  # the store looks at what it is given
        "load": stage(lambda number: read_file(files, place / str(number), limit=2 * size), chunks, size),
    }


def measure(chunks: int, size: int, folder: Path) -> dict[str, Any]:
    """All figures, CPU seconds per GB unless the name says otherwise."""
    identity.init(Home.at(folder / "home"), site="bench", listen="127.0.0.1:1")
    moved = chunks * size / GB
    plain = chain("plain", ("send", "sink"), chunks, size, folder)
    tls = chain("tls", ("send", "sink"), chunks, size, folder)
    lane = chain("lane", ("send", "sink"), chunks, size, folder)
    relay = chain("lane", ("send", "relay", "sink"), chunks, size, folder)
    pieces = chain("pieces", ("send", "relay", "sink"), chunks, size, folder)
    whole = chain("lane", ("seal", "open"), chunks, size, folder)
    alone = {"send": plain["send"]["cpu_s"] / moved, "receive": plain["sink"]["cpu_s"] / moved}
    alone |= stages(chunks, size, folder)
    # Each chunk is hashed twice: for its name, and again before it is believed.
    needed = alone["send"] + alone["receive"] + 2 * alone["hash"] + alone["seal"] + alone["store"] + alone["open"]
    return {
        "stages": alone,
        "needed": needed,
        "plain": sum(used["cpu_s"] for used in plain.values()) / moved,
        "plain_gb_per_s": moved / plain["send"]["wall_s"],
        "tls": sum(used["cpu_s"] for used in tls.values()) / moved,
        "tls_gb_per_s": moved / tls["send"]["wall_s"],
        "lane": sum(used["cpu_s"] for used in lane.values()) / moved,
        "lane_gb_per_s": moved / lane["send"]["wall_s"],
        "relay": relay["relay"]["cpu_s"] / moved,
        "relay_gb_per_s": moved / relay["relay"]["wall_s"],
        "relay_tls": pieces["relay"]["cpu_s"] / moved,
        "relay_tls_gb_per_s": moved / pieces["relay"]["wall_s"],
        "whole": sum(used["cpu_s"] for used in whole.values()) / moved,
        "whole_gb_per_s": moved / whole["seal"]["wall_s"],
        "whole_allowed_gb_per_s": CORES / needed,
    }


def table(found: dict[str, Any]) -> str:
    """The figures as text."""

    def row(what: str, cpu: float, rate: float | None = None) -> str:
        return f"{what:44}{cpu:8.3f}{1 / cpu:10.2f}" + (f"{rate:10.2f}" if rate is not None else "")

    lines = [f"{'':44}{'CPU s/GB':>8}{'GB/s core':>10}{'GB/s wall':>10}"]
    lines += [row(f"  {name}, alone", cpu) for name, cpu in found["stages"].items()]
    lines += [
        row("socket copy, both ends", found["plain"], found["plain_gb_per_s"]),
        row("socket copy over TLS, both ends", found["tls"], found["tls_gb_per_s"]),
        row("lane, both ends, nothing else", found["lane"], found["lane_gb_per_s"]),
        row("relay: receive, verify, store, load, send", found["relay"], found["relay_gb_per_s"]),
        row("the same over the control connection's TLS", found["relay_tls"], found["relay_tls_gb_per_s"]),
        row("seal, name, send, receive, verify, store, open", found["whole"], found["whole_gb_per_s"]),
        row("  its stages, each alone", found["needed"], found["whole_allowed_gb_per_s"]),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench_path", description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0, metavar="N", help="to move in each measurement (default: 2)")
    parser.add_argument("--chunk-kib", type=int, default=1024, metavar="N", help="size of a chunk (default: 1024)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args()
    memory.keep_freed()  # as the daemon does
    size = options.chunk_kib * 1024
    chunks = max(int(options.gb * GB / size), DISTINCT)
    shared = Path("/dev/shm")  # noqa: S108 -- only mkdtemp makes anything there
    folder = Path(tempfile.mkdtemp(prefix="bench-path-", dir=shared if shared.is_dir() else None))
    try:
        load = os.getloadavg()[0]
        found = measure(chunks, size, folder)
    finally:
        shutil.rmtree(folder)
    targets = [
        Target(
            "end to end over what the stages allow",
            found["whole_gb_per_s"] / found["whole_allowed_gb_per_s"],
            0.75,
            at_most=False,
            unit="x",
        ),
        Target("relay over the TLS path, per core", found["relay_tls"] / found["relay"], 3.0, at_most=False, unit="x"),
    ]
    print(f"{chunks} chunks of {options.chunk_kib} KiB, {os.cpu_count()} cores, load {load:.1f} when it began")
    print(table(found))
    print(
        f"\ncpu: {found['relay']:.3f} s per GB relayed; end to end {found['needed'] / found['whole']:.2f}x by CPU alone"
    )
    print(summary(targets))
    if options.json:
        document = found | {"chunk_bytes": size, "load": load, "ok": all(target.met for target in targets)}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return exit_code(targets)


if __name__ == "__main__":
    sys.exit(main())
