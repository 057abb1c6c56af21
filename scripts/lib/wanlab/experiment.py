"""Experiment: one case with patchswarm, from the first daemon to the last host that has every byte."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from .beside import Beside
from .cases import Case, Fault
from .lab import Lab
from .machine import Busy, Meter, ahead_of_others
from .plan import HEAD
from .swarm import Swarm, Watch, sha256_of_files

STEP_S = 0.5
_SETTLE_S = 1.0
"""After all are connected, before the publish: lanes open, round trips are measured."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What moved between two moments, as the hub saw it."""

    into_site: Mapping[str, int]
    """IP bytes that each site's WAN downlink carried: data, headers, acknowledgements, repeats and all."""
    out_of_site: Mapping[str, int]
    lane_into_host: Mapping[str, int]
    """Stream bytes on patchswarm's lanes, TCP's repeats aside."""
    control_bytes: int
    """Stream bytes on control connections, all hosts."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave. Times are seconds since the announcement."""

    case: Case
    encode_s: float
    call_s: float
    """From the publish call to the announcement: the directory is looked through."""
    sent_bytes: int
    committed_s: Mapping[str, float]
    verified_s: Mapping[str, float]
    identical: Mapping[str, bool]
    traffic: Traffic
    busy: Busy
    congestion: str
    rates: Mapping[str, list[float]]
    """Bytes per second of each WAN link, in steps of STEP_S from the publish call on."""


def run(case: Case, lab: Lab, root: Path) -> Outcome:
    """Start the swarm, publish, wait for every host that lives, compare every file."""
    source = root / "source"
    write_checkpoint(source, case.size_bytes, case.plan.seed)
    truth = sha256_of_files(source)
    with Swarm(lab, root) as swarm:
        swarm.start(host.name for host in case.plan.hosts if host.name not in case.absent)
        time.sleep(_SETTLE_S)
        before = lab.counters()
        meter = Meter(_cpu_s(swarm, before))
        present = [name for name in swarm.nodes if name != HEAD]
        watch = swarm.watch(present, 1, case.timeout_s)
        with ahead_of_others(), Timeline(lab) as timeline, _Faults(case.faults, lab, swarm, watch) as faults:
            announced = swarm.publish(source)
            faults.wait()
            times = watch.wait()
        after = lab.counters()
        busy = meter.read(_cpu_s(swarm, after), after["hub"]["cpu_s"] - before["hub"]["cpu_s"], after["hub"]["late_s"])
        return Outcome(
            case,
            announced.published_at - announced.announced_at,
            announced.announced_at - announced.called_at,
            announced.sent_bytes,
            {name: committed_at - announced.announced_at for name, (committed_at, _) in times.items()},
            {name: verified_at - announced.announced_at for name, (_, verified_at) in times.items()},
            {name: swarm.holds(name, announced.version, truth) for name in times},
            traffic(lab, before, after),
            busy,
            lab.congestion,
            timeline.rates(),
        )


def write_checkpoint(directory: Path, size_bytes: int, seed: int) -> None:
    """A checkpoint of one safetensors file with 16 BF16 tensors of random bits, which nothing can compress."""
    count = 16
    each = size_bytes // count
    tensors = {
        f"layer.{number}": {
            "dtype": "BF16",
            "shape": [each // 2],
            "data_offsets": [number * each, (number + 1) * each],
        }
        for number in range(count)
    }
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    directory.mkdir()
    data = random_bytes(size_bytes, seed)
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)


def random_bytes(size: int, seed: int) -> bytes:
    """Bytes that look random and are the same in every run."""
    import numpy as np

    return np.random.default_rng(seed).bytes(size)


def traffic(lab: Lab, before: dict[str, Any], after: dict[str, Any]) -> Traffic:
    """What moved between two readings of the counters."""

    def carried(link: str) -> int:
        return int(after["links"][link]["bytes"] - before["links"][link]["bytes"])

    names = {namespace.address: name for name, namespace in lab.hosts.items()}
    moved: dict[tuple[str, str], int] = {}
    for sign, counters in ((-1, before), (1, after)):
        for _, target, kind, size in counters["flows"]:
            key = (names.get(target, target), kind)
            moved[key] = moved.get(key, 0) + sign * size
    return Traffic(
        {site.name: carried(f"{site.name} wan down") for site in lab.plan.sites},
        {site.name: carried(f"{site.name} wan up") for site in lab.plan.sites},
        {name: moved.get((name, "lane"), 0) for name in lab.hosts},
        sum(size for (_, kind), size in moved.items() if kind == "tls"),
    )


def _cpu_s(swarm: Swarm, counters: dict[str, Any]) -> float:
    own = os.times()
    return swarm.cpu_s() + float(counters["hub"]["cpu_s"]) + own.user + own.system


class Timeline(Beside):
    """Reads the links' counters at regular times while the context lasts."""

    def __init__(self, lab: Lab) -> None:
        super().__init__("timeline")
        self._lab = lab
        self._read: list[tuple[float, dict[str, int]]] = []

    def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            self._read.append((time.monotonic(), self._lab.link_bytes()))
            due_s += STEP_S
            if self._over.wait(max(due_s - time.monotonic(), 0)):
                return

    def rates(self) -> dict[str, list[float]]:
        """Bytes per second of each WAN link, step by step."""
        steps = list(pairwise(self._read))
        links = [name for name in self._read[0][1] if " wan " in name]
        return {
            link: [(new[link] - old[link]) / (new_s - old_s) for (old_s, old), (new_s, new) in steps] for link in links
        }


class _Faults(Beside):
    """Lets the case's faults happen at their times, in a thread of its own, while the context lasts."""

    def __init__(self, faults: tuple[Fault, ...], lab: Lab, swarm: Swarm, watch: Watch) -> None:
        super().__init__("faults")
        self._faults = faults
        self._lab = lab
        self._swarm = swarm
        self._watch = watch
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Return when all of them have happened. Raises what one of them raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        since_s = time.monotonic()
        try:
            for fault in self._faults:
                if self._over.wait(max(since_s + fault.at_s - time.monotonic(), 0)):
                    return
                self._happen(fault)
        except BaseException as error:
            self._error = error

    def _happen(self, fault: Fault) -> None:
        match fault.what:
            case "cut":
                self._lab.cut(fault.whom)
            case "heal":
                self._lab.heal()
            case "kill":
                self._watch.give_up(fault.whom)
                self._swarm.nodes[fault.whom].kill()
            case "join":
                self._swarm.join(fault.whom)
                self._watch.add(self._swarm.nodes[fault.whom])
            case _:
                raise ValueError(f"no fault {fault.what}")
