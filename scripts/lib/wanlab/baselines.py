"""Baselines: other ways of moving the same bytes from the head to the same hosts, in the same lab.

HTTP: every host gets the file from the head. Mesh: libtorrent, everyone connected with everyone. Gateways: the best
shape that can be made by hand, one host in each site that faces the others and its mates connected to it and to each
other. They begin with the file hashed and every program started; patchswarm's time includes encoding.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .experiment import random_bytes
from .lab import Lab
from .machine import ahead_of_others
from .plan import HEAD, Plan

LIBTORRENT = "libtorrent==2.1.1"
PORT = 6881
PIECE_BYTES = 256 * 1024
_TIMEOUT_S = 240.0
_END_S = 10.0
_LIBRARY = Path(__file__).parent.parent


class BaselineError(Exception):
    """A baseline did not come to its end; the message names which, and which host."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one of them took."""

    name: str
    seconds: Mapping[str, float]
    """By host, from the word to begin until it had every byte, hashed."""
    copies: Mapping[str, float]

    @property
    def last_s(self) -> float:
        """The slowest host's."""
        return max(self.seconds.values())


def has_libtorrent() -> bool:
    """Whether libtorrent is installed here."""
    return importlib.util.find_spec("libtorrent") is not None


def run(lab: Lab, root: Path, size_bytes: int) -> list[Baseline]:
    """HTTP, mesh and gateways, one after the other. Raises BaselineError."""
    folder = root / "baselines"
    folder.mkdir()
    data = random_bytes(size_bytes, lab.plan.seed)
    (folder / HEAD).mkdir()
    (folder / HEAD / "file").write_bytes(data)
    torrent = folder / "torrent"
    torrent.write_bytes(torrent_of(data))
    found = [http(lab, folder, hashlib.sha256(data).hexdigest())]
    for name, peers in (("libtorrent mesh", mesh), ("libtorrent gateways", gateways)):
        found.append(_torrent(lab, folder, torrent, name, peers(lab.plan), size_bytes))
    return found


def mesh(plan: Plan) -> dict[str, list[str]]:
    """Whom each host dials so that each pair is connected once: everyone after itself."""
    names = [host.name for host in plan.hosts]
    return {name: names[at + 1 :] for at, name in enumerate(names)}


def gateways(plan: Plan) -> dict[str, list[str]]:
    """The same, where only the first host of each site, the head in its own, is connected with other sites."""
    mates = {site.name: [host.name for host in plan.hosts if host.site == site.name] for site in plan.sites}
    first = [names[0] for names in mates.values()]
    return {
        name: names[at + 1 :] + (first[first.index(name) + 1 :] if not at else [])
        for names in mates.values()
        for at, name in enumerate(names)
    }


def torrent_of(data: bytes) -> bytes:
    """The metainfo of a file named "file" (BEP 3)."""
    hashes = b"".join(
        hashlib.sha1(data[at : at + PIECE_BYTES], usedforsecurity=False).digest()
        for at in range(0, len(data), PIECE_BYTES)
    )
    return b"d4:infod6:lengthi%de4:name4:file12:piece lengthi%de6:pieces%d:%bee" % (
        len(data),
        PIECE_BYTES,
        len(hashes),
        hashes,
    )


def http(lab: Lab, folder: Path, sha256: str) -> Baseline:
    """Every host gets `folder/head/file` from the head. Raises BaselineError."""
    head = lab.hosts[HEAD].address
    size = (folder / HEAD / "file").stat().st_size

    def arguments(name: str) -> list[str]:
        if name == HEAD:
            return ["wanlab.http_worker", "serve", head, str(PORT), str(folder / HEAD / "file")]
        return ["wanlab.http_worker", "get", f"http://{head}:{PORT}/file", str(folder / f"{name}.http"), sha256]

    return measure(lab, "HTTP", arguments, size)


def _torrent(lab: Lab, folder: Path, torrent: Path, name: str, peers: dict[str, list[str]], size: int) -> Baseline:
    def arguments(host: str) -> list[str]:
        save = folder / HEAD if host == HEAD else folder / f"{host}.{name.rpartition(' ')[2]}"
        save.mkdir(exist_ok=True)
        addresses = [lab.hosts[peer].address for peer in peers[host]]
        return ["wanlab.torrent_worker", str(torrent), str(save), lab.hosts[host].address, str(PORT), *addresses]

    return measure(lab, name, arguments, size)


def measure(lab: Lab, name: str, arguments: Callable[[str], list[str]], size: int) -> Baseline:
    """Run a module with arguments on each host, which speaks as `worker` does; copies are multiples of `size`."""
    with _workers(lab, name, arguments) as workers:
        before = lab.counters()["links"]
        with ahead_of_others():
            since = workers.go()
            done = workers.done()
        after = lab.counters()["links"]
    home = lab.plan.host(HEAD).site
    copies = {
        f"into {site.name}": (after[f"{site.name} wan down"]["bytes"] - before[f"{site.name} wan down"]["bytes"]) / size
        for site in lab.plan.sites
        if site.name != home
    }
    copies[f"out of {home}"] = (after[f"{home} wan up"]["bytes"] - before[f"{home} wan up"]["bytes"]) / size
    return Baseline(name, {host: at - since for host, at in done.items() if host != HEAD}, copies)


class _Workers:
    """One process on each host; see `worker` for what is said."""

    def __init__(self, name: str, processes: dict[str, subprocess.Popen[str]]) -> None:
        self._name = name
        self._processes = processes
        self._timer = threading.Timer(_TIMEOUT_S, self._kill)
        self._timer.start()
        for host in processes:
            self._line(host)

    def go(self) -> float:
        """Let all begin; returns when, Unix seconds."""
        since = time.time()
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return since

    def done(self) -> dict[str, float]:
        """When each was done, Unix seconds."""
        return {host: float(self._line(host)["done_at"]) for host in self._processes}

    def close(self) -> None:
        """End them all."""
        self._timer.cancel()
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _line(self, host: str) -> dict[str, Any]:
        stdout = self._processes[host].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise BaselineError(f"{self._name}: the program on {host} ended, or took over {_TIMEOUT_S:.0f} s")
        said: dict[str, Any] = json.loads(line)
        return said

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()


@contextmanager
def _workers(lab: Lab, name: str, arguments: Callable[[str], list[str]]) -> Iterator[_Workers]:
    processes: dict[str, subprocess.Popen[str]] = {}
    environment = os.environ | {"PYTHONPATH": str(_LIBRARY)}
    workers = None
    try:
        for host, namespace in lab.hosts.items():
            processes[host] = subprocess.Popen(
                [*namespace.enter, sys.executable, "-m", *arguments(host)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        workers = _Workers(name, processes)
        yield workers
    finally:
        if workers is not None:
            workers.close()
        for process in processes.values():
            process.kill()
            process.wait()
