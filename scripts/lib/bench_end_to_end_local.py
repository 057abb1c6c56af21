"""The local part of the end-to-end benchmark: what streaming gains, and today's ways beside ours, on loopback links."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from bench_end_to_end_today import WAIT_S, delta_folder, full_copy, same
from bench_rebuild import Trainer
from local_fleet import LocalFleet, Node
from targets import Target

from patchswarm.daemon.local.model import PublishResult

STREAM: Final = "bench"
SHARE: Final = 0.01
"""Of all values, that a step changes."""

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - made unique below
STREAM_LIMIT: Final = 0.6
RIVAL_LIMIT: Final = 3.0


class Say(Protocol):
    """Notes a figure."""

    def __call__(self, name: str, value: object, /) -> None:
        """Note `value` under `name`."""


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
        settle((self.head, *self.hosts), STREAM, version)

    def limit(self, rate: float) -> None:
        """Limit what the head sends, in bytes per second; 0 for no limit."""
        config = self.head.home / "config.toml"
        lines = [line for line in config.read_text().splitlines() if not line.lstrip("# ").startswith("upload = ")]
        at = lines.index("[limits]") + 1
        lines.insert(at, f'upload = "{round(rate * 8)}bit/s"' if rate else 'upload = ""')
        config.write_text("\n".join(lines) + "\n")
        os.kill(self.head.pid, signal.SIGHUP)
        time.sleep(1.0)


def settle(nodes: Iterable[Node], stream: str, version: int) -> None:
    """Wait until every node's slot behind has a version as well."""
    for node in nodes:
        until = time.monotonic() + WAIT_S
        while not (node.home / "slots" / stream / f".twin-{version}").exists() and time.monotonic() < until:
            time.sleep(0.05)


def moments(node: Node, version: int) -> dict[str, float]:
    """When what happened to a version on a node: Unix seconds."""
    return next(life.moments for life in node.client.lives(STREAM) if life.version == version)


def streaming(size: int, rounds: int, say: Say) -> list[Target]:
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


def rivals(size: int, hosts: int, rounds: int, say: Say) -> list[Target]:
    """The same steps to some hosts on unlimited local links: ours, the delta folder, the full copy."""
    ours, folder_s = [], []
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="patchswarm-e2e-") as made:
        root = Path(made)
        trainer = Trainer(root / "trainer", size)
        with LocalFleet(root / "fleet") as nodes:
            nodes.root.mkdir()
            fleet = Fleet(nodes, hosts, None)
            fleet.publish(trainer.directory)
            for number in range(rounds + 1):
                trainer.step(SHARE, number)
                seconds, _, _ = fleet.publish(trainer.directory)
                if number:
                    ours.append(seconds)
        shutil.rmtree(root / "fleet")
        old = root / "old"
        shutil.copytree(trainer.directory, old)
        held = [root / f"host-{number}" for number in range(hosts)]
        copy_s = [full_copy(trainer.directory, held) for _ in range(rounds)]
        for number in range(rounds):
            trainer.step(SHARE, 100 + number)
            folder_s.append(delta_folder(old, trainer.directory, root / "delta", held))
            shutil.rmtree(old)
            shutil.copytree(trainer.directory, old)
        if not all(same(old, directory) for directory in held):
            raise SystemExit("bench_end_to_end: a host of today's ways holds other bytes than the trainer")
    for name, times in (("patchswarm", ours), ("delta folder", folder_s), ("full copy over HTTP", copy_s)):
        say(f"{name}, {hosts} hosts, seconds", statistics.median(times))
    gain = statistics.median(folder_s) / statistics.median(ours)
    return [Target("faster than the delta folder", gain, RIVAL_LIMIT, at_most=False, unit="x")]
