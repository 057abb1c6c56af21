"""The end-to-end benchmark: a step from the trainer's folder to every host's committed checkpoint, and today's ways."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import zstandard
from bench_rebuild import Trainer
from local_fleet import LocalFleet, Node
from rich.console import Console
from rich.table import Table
from targets import Target, close

from patchswarm.daemon.local.model import PublishResult
from patchswarm.daemon.units import Size

STREAM = "bench"
SHARE = 0.01
HOSTS = 2
MEMORY = Path("/dev/shm")  # noqa: S108 - made unique below
WAIT_S = 600.0
BLOCK = 8 << 20
STREAM_LIMIT = 0.6
RIVAL_LIMIT = 3.0


class Fleet:
    """A head and hosts with their homes in memory, and what the last publish took. `cores` pins them, if given."""

    def __init__(self, fleet: LocalFleet, hosts: int, cores: tuple[str, str] | None) -> None:
        def enter(core: int) -> tuple[str, ...]:
            return ("taskset", "-c", cores[core]) if cores else ()

        self.head = fleet.nodes["head"] = Node(fleet.root, "head", "a", enter=enter(0))
        self.head.init()
        self.head.start()
        self.hosts = []
        for number in range(hosts):
            name = f"host-{number}"
            node = fleet.nodes[name] = Node(fleet.root, name, "a", enter=enter(1))
            node.join(self.head.invite())
            node.start()
            self.hosts.append(node)

    def publish(self, directory: Path, *, streamed: bool = True) -> tuple[float, dict[str, float], PublishResult]:
        """Publish; seconds until the last host has committed, by stage, and what the publish says."""
        began = time.time()
        result = self.head.client.publish(directory, stream=STREAM, streamed=streamed)
        for host in self.hosts:
            if host.client.wait(STREAM, result.version, WAIT_S) is None:
                raise SystemExit(f"bench_end_to_end: {host.name} has not got version {result.version}")
        took = time.time() - began
        lives = [moments(host, result.version) for host in self.hosts]
        last = {name: max(life[name] for life in lives) - began for name in lives[0]}
        self.settle(result.version)
        return took, {"encode": result.seconds["total"], **last}, result

    def settle(self, version: int) -> None:
        """Wait until every slot behind has the version as well: the next step then begins at once."""
        for node in (self.head, *self.hosts):
            slots = node.home / "slots" / STREAM
            until = time.monotonic() + WAIT_S
            while not (slots / f".twin-{version}").exists() and time.monotonic() < until:
                time.sleep(0.05)

    def limit(self, rate: float) -> None:
        """Limit what the head sends, in bytes per second; 0 for no limit."""
        config = self.head.home / "config.toml"
        lines = [line for line in config.read_text().splitlines() if not line.lstrip("# ").startswith("upload = ")]
        at = lines.index("[limits]") + 1
        lines.insert(at, f'upload = "{round(rate * 8)}bit/s"' if rate else 'upload = ""')
        config.write_text("\n".join(lines) + "\n")
        os.kill(self.head.pid, signal.SIGHUP)
        time.sleep(1.0)


def moments(node: Node, version: int) -> dict[str, float]:
    """When what happened to a version on a node: Unix seconds."""
    from patchswarm.daemon.local.asks import Ask
    from patchswarm.daemon.local.observing import LifeList

    found = node.client._ask(Ask("GET", f"/v1/streams/{STREAM}/lives", LifeList))  # noqa: SLF001 - no method yet
    return next(life.moments for life in found.lives if life.version == version)


# -- today's ways ------------------------------------------------------------------------------------------------


def full_copy(directory: Path, root: Path) -> float:
    """Every host copies the whole checkpoint over HTTP; seconds."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        names = [path.name for path in sorted(directory.iterdir())]
        return _on_hosts("pull", root, f"http://127.0.0.1:{server.server_port}", *names)
    finally:
        server.shutdown()


def delta_folder(old: Path, new: Path, root: Path) -> float:
    """XOR and zstd-1 per tensor into a shared folder, which every host reads and applies to its checkpoint; seconds."""
    folder = root / "delta"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda path: _encode(old / path.name, path, folder / path.name), sorted(new.iterdir())):
            pass
    return time.perf_counter() - began + _on_hosts("apply", root, str(folder))


def _encode(old: Path, new: Path, out: Path) -> None:
    compressor = zstandard.ZstdCompressor(level=1)
    with out.open("wb") as file, compressor.stream_writer(file) as writer:
        before, after = np.memmap(old, np.uint8, "r"), np.memmap(new, np.uint8, "r")
        for at in range(0, len(after), BLOCK):
            writer.write(np.bitwise_xor(before[at : at + BLOCK], after[at : at + BLOCK]).data)


def _on_hosts(what: str, root: Path, *arguments: str) -> float:
    began = time.perf_counter()
    running = [
        subprocess.Popen([sys.executable, __file__, "--host", what, str(root / f"host-{number}"), *arguments])
        for number in range(HOSTS)
    ]
    for process in running:
        if process.wait(WAIT_S):
            raise SystemExit(f"bench_end_to_end: a host's {what} failed")
    return time.perf_counter() - began


def host(what: str, directory: str, *arguments: str) -> None:
    """One host of today's ways, in a process of its own."""
    target = Path(directory)
    if what == "pull":
        target.mkdir(exist_ok=True)
        for name in arguments[1:]:
            with urlopen(f"{arguments[0]}/{name}") as source, (target / name).open("wb") as file:  # noqa: S310
                shutil.copyfileobj(source, file, BLOCK)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda path: _apply(path, target / path.name), sorted(Path(arguments[0]).iterdir())):
            pass


def _apply(delta: Path, checkpoint: Path) -> None:
    held = np.memmap(checkpoint, np.uint8, "r+")
    with delta.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        for at in range(0, len(held), BLOCK):
            part = held[at : at + BLOCK]
            np.bitwise_xor(part, np.frombuffer(reader.read(len(part)), np.uint8), out=part)


# -- the measurements --------------------------------------------------------------------------------------------


def streaming(size: int, rounds: int, say: Callable[[str, object], None]) -> list[Target]:
    """The gain of streaming, over a link that takes as long as encoding; head and host have a core each."""
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="patchswarm-e2e-") as folder, LocalFleet(Path(folder)) as nodes:
        fleet = Fleet(nodes, 1, ("0", "1"))
        trainer = Trainer(Path(folder) / "trainer", size)
        fleet.publish(trainer.directory)
        trainer.step(SHARE, 0)
        fleet.publish(trainer.directory)
        trainer.step(SHARE, 1)
        _, stages, result = fleet.publish(trainer.directory, streamed=False)
        say("encode, alone", stages["encode"])
        say("rebuild, alone", stages["committed"] - stages["complete"])
        fleet.limit(result.patch_bytes / stages["encode"])
        took: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * rounds):
            trainer.step(SHARE, 2 + number)
            streamed = number % 2 == 0
            seconds, stages, _ = fleet.publish(trainer.directory, streamed=streamed)
            took[streamed].append(seconds)
            say("streamed" if streamed else "not streamed", {name: round(value, 2) for name, value in stages.items()})
        ratio = statistics.median(took[True]) / statistics.median(took[False])
    say("streamed, seconds", statistics.median(took[True]))
    say("not streamed, seconds", statistics.median(took[False]))
    return [Target("streamed over not streamed", ratio, STREAM_LIMIT, unit="x")]


def rivals(size: int, rounds: int, say: Callable[[str, object], None]) -> list[Target]:
    """The same steps to two hosts on unlimited local links: ours, the delta folder, the full copy."""
    ours, folder_s = [], []
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="patchswarm-e2e-") as made:
        root = Path(made)
        trainer = Trainer(root / "trainer", size)
        with LocalFleet(root / "fleet") as nodes:
            nodes.root.mkdir()
            fleet = Fleet(nodes, HOSTS, None)
            fleet.publish(trainer.directory)
            for number in range(rounds + 1):
                trainer.step(SHARE, number)
                seconds, _, _ = fleet.publish(trainer.directory)
                if number:
                    ours.append(seconds)
        shutil.rmtree(root / "fleet")
        old = root / "old"
        shutil.copytree(trainer.directory, old)
        copy_s = [full_copy(trainer.directory, root) for _ in range(rounds)]
        for number in range(rounds):
            trainer.step(SHARE, 100 + number)
            folder_s.append(delta_folder(old, trainer.directory, root))
            shutil.rmtree(old)
            shutil.copytree(trainer.directory, old)
        wrong = [n for n in range(HOSTS) for path in old.iterdir() if not _same(path, root / f"host-{n}" / path.name)]
        if wrong:
            raise SystemExit("bench_end_to_end: a host of today's ways holds other bytes than the trainer")
    for name, seconds in (("patchswarm", ours), ("delta folder", folder_s), ("full copy over HTTP", copy_s)):
        say(f"{name}, seconds", statistics.median(seconds))
    gain = statistics.median(folder_s) / statistics.median(ours)
    return [Target("faster than the delta folder", gain, RIVAL_LIMIT, at_most=False, unit="x")]


def _same(one: Path, other: Path) -> bool:
    return bool(np.array_equal(np.memmap(one, np.uint8, "r"), np.memmap(other, np.uint8, "r")))


def main() -> int:
    if sys.argv[1:2] == ["--host"]:
        host(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(prog="scripts/bench_end_to_end", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--size", default="2GiB", help="size of the model (2GiB)")
    parser.add_argument("--rounds", type=int, default=3, help="steps of each kind (3)")
    arguments = parser.parse_args()
    size = int(Size.parse(arguments.size)) // (1 << 20) * (1 << 20)
    if shutil.disk_usage(MEMORY).free < 11 * size:
        print(f"{MEMORY} has not {11 * size >> 20} MiB free: give a smaller --size", file=sys.stderr)
        return 2
    figures: dict[str, object] = {}
    table = Table("figure", "value")

    def say(name: str, value: object) -> None:
        figures[name] = value
        table.add_row(name, f"{value:.3g}" if isinstance(value, float) else str(value))

    targets = [*streaming(size, arguments.rounds, say), *rivals(size, arguments.rounds, say)]
    Console(width=120).print(table)
    return close({"figures": figures}, targets, arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
