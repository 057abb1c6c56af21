"""The WAN part of the end-to-end benchmark: one step to all hosts of the lab's T1, ours and today's ways."""

from __future__ import annotations

import hashlib
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench_end_to_end_local import MEMORY, SHARE, Say, settle
from bench_end_to_end_today import WAIT_S, same
from bench_rebuild import Trainer
from targets import Target
from wanlab import baselines
from wanlab.cases import case
from wanlab.lab import Lab, running
from wanlab.machine import ahead_of_others
from wanlab.plan import HEAD, Plan
from wanlab.swarm import STREAM, Swarm, sha256_of_files

RIVAL_LIMIT: Final = 5.0
SETTLE_S: Final = 1.0
COPIED_BYTES: Final = 16 << 20


def wan(size: int, rounds: int, slowed: int, say: Say) -> list[Target]:
    """The same steps to the eight hosts of T1: ours, deltas over HTTP, a part of the full copy over HTTP.

    With the network `slowed` so many times, seconds are counted as so many times fewer: hosts that are faster beside
    it, for the cores of this machine are shared by nine here.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="e2e-") as made, running(_slowed(slowed)) as lab:
        root = Path(made)
        trainer = Trainer(root / "trainer", size)
        ours = _ours(lab, trainer, root / "fleet", rounds, say)
        shutil.rmtree(root / "fleet")
        delta_s = _deltas(lab, trainer, root, rounds)
        copy_s = _full_copy(lab, trainer, root)
    name = "T1" if slowed == 1 else f"T1 slowed {slowed} times"
    say(f"{name}, {size >> 20} MiB: patchswarm, seconds", statistics.median(ours) / slowed)
    say(f"{name}: deltas over HTTP, seconds", statistics.median(delta_s) / slowed)
    say(f"{name}: full copy over HTTP, seconds", copy_s / slowed)
    gain = statistics.median(delta_s) / statistics.median(ours)
    return [Target(f"{name}: faster than deltas over HTTP", gain, RIVAL_LIMIT, at_most=False, unit="x")]


def _slowed(times: int) -> Plan:
    """T1 with every rate so many times lower, and every delay and queue so many times longer."""
    plan = case("T1", 1).plan
    return replace(
        plan,
        sites=tuple(replace(site, up=site.up / times, down=site.down / times) for site in plan.sites),
        hosts=tuple(replace(host, up=host.up / times, down=host.down / times) for host in plan.hosts),
        delays_s={sites: delay_s * times for sites, delay_s in plan.delays_s.items()},
        wan_queue_s=plan.wan_queue_s * times,
        access_queue_s=plan.access_queue_s * times,
    )


def _ours(lab: Lab, trainer: Trainer, root: Path, rounds: int, say: Say) -> list[float]:
    """Seconds from the call of publish until the last host has committed, for each step."""
    names = [host.name for host in lab.plan.hosts if host.name != HEAD]
    found = []
    root.mkdir()
    with Swarm(lab, root) as swarm:
        swarm.start(names)
        time.sleep(SETTLE_S)
        for number in range(rounds + 2):  # the first is the whole model, the second opens what has to be opened
            if number:
                trainer.step(SHARE, number)
            watch = swarm.watch(names, number + 1, WAIT_S)
            with ahead_of_others():
                announced = swarm.publish(trainer.directory)
                times = watch.wait()
            took = max(committed_at for committed_at, _ in times.values()) - announced.called_at
            say(f"T1: version {announced.version}: MB in chunks, seconds", (announced.sent_bytes / 1e6, took))
            if number > 1:
                found.append(took)
            settle(swarm.nodes.values(), STREAM, announced.version)
        truth = sha256_of_files(trainer.directory)
        wrong = [name for name in names if not swarm.holds(name, announced.version, truth)]
        if wrong:
            raise SystemExit(f"bench_end_to_end: {', '.join(wrong)} hold other bytes than the trainer")
    return found


def _deltas(lab: Lab, trainer: Trainer, root: Path, rounds: int) -> list[float]:
    """Seconds from the first look at the new checkpoint until the last host has applied all deltas, for each step."""
    hosts = {host.name: root / host.name for host in lab.plan.hosts}
    for directory in hosts.values():
        shutil.copytree(trainer.directory, directory)
    old = hosts.pop(HEAD)
    found = []
    for number in range(rounds):
        trainer.step(SHARE, 100 + number)
        folder = root / f"delta-{number}"
        folder.mkdir()
        given = ["bench_end_to_end_today", "give", str(old), str(trainer.directory), str(folder)]
        found.append(_on_lab(lab, hosts, given).last_s)
        if not all(same(trainer.directory, directory) for directory in hosts.values()):
            raise SystemExit("bench_end_to_end: a host of today's ways holds other bytes than the trainer")
        shutil.rmtree(old)
        shutil.copytree(trainer.directory, old)
    for directory in (old, *hosts.values()):
        shutil.rmtree(directory)
    return found


def _on_lab(lab: Lab, hosts: dict[str, Path], given: list[str]) -> baselines.Baseline:
    head, port = lab.hosts[HEAD].address, str(baselines.PORT)

    def arguments(name: str) -> list[str]:
        if name == HEAD:
            return [*given, head, port]
        return ["bench_end_to_end_today", "take", str(hosts[name]), f"http://{head}:{port}"]

    return baselines.measure(lab, "deltas", arguments, 1)


def _full_copy(lab: Lab, trainer: Trainer, root: Path) -> float:
    """Seconds for the whole checkpoint; measured with a part of it, for the links' rates are all that counts."""
    with next(trainer.directory.iterdir()).open("rb") as file:
        part = file.read(COPIED_BYTES)
    folder = root / "copy"
    (folder / HEAD).mkdir(parents=True)
    (folder / HEAD / "file").write_bytes(part)
    return trainer.size / len(part) * baselines.http(lab, folder, hashlib.sha256(part).hexdigest()).last_s
