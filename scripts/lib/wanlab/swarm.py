"""Swarm: patchswarm in the lab. Real daemons, one in each host's network, driven through the command and the API."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from local_fleet import CommandError, LocalFleet, Node

from patchswarm.daemon.local.client import LocalError

from .lab import Lab
from .machine import cpu_s_of
from .plan import HEAD

STREAM = "lab"
PORT = 7340
_CONNECT_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Announced:
    """One publish. Times are Unix seconds."""

    version: int
    called_at: float
    """The `publish` command's request came to the head."""
    announced_at: float
    """The signed opening left the head: from here on the others know of the version."""
    published_at: float
    """The manifest was signed, the head's own slot committed."""
    sent_bytes: int
    """Sealed chunks of the transition: what each host has to get."""


class Swarm:
    """Daemons on some or all hosts of a lab, below one folder. Leaving the context stops them.

    `prepare` is called with each node before it is enrolled.
    """

    def __init__(self, lab: Lab, root: Path, prepare: Callable[[Node], None] = lambda _: None) -> None:
        self.lab = lab
        self._prepare = prepare
        self._fleet = LocalFleet(root)
        self._stack = ExitStack()
        # A daemon ends when the thread that started it does: these live as long as the swarm.
        self._threads = self._stack.enter_context(ThreadPoolExecutor(32, thread_name_prefix="swarm"))
        self._stack.enter_context(self._fleet)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def nodes(self) -> dict[str, Node]:
        """Every node that was made, by the name of its host."""
        return self._fleet.nodes

    @property
    def head(self) -> Node:
        """The head."""
        return self.nodes[HEAD]

    def start(self, names: Iterable[str]) -> None:
        """Make the head, enrol these hosts, start their daemons, and wait until all are connected with all."""
        self._node(HEAD).init()
        self._threads.submit(self.head.start).result()
        names = [name for name in names if name != HEAD]
        token = self.head.invite("--uses", str(len(names) + 16))
        for name in names:
            self._node(name)
        for done in as_completed([self._threads.submit(self._join, name, token) for name in names]):
            done.result()
        self.await_connected()

    def join(self, name: str) -> None:
        """Enrol one host more and start its daemon."""
        token = self.head.invite()
        self._node(name)
        self._threads.submit(self._join, name, token).result()

    def restart(self, name: str) -> None:
        """Start a daemon that was stopped or killed."""
        self._threads.submit(self.nodes[name].start).result()

    def _node(self, name: str) -> Node:
        host = self.lab.plan.host(name)
        namespace = self.lab.hosts[name]
        node = Node(self._fleet.root, name, f"site-{host.site}", f"{namespace.address}:{PORT}", namespace.enter)
        self.nodes[name] = node
        self._prepare(node)
        return node

    def _join(self, name: str, token: str) -> None:
        self.nodes[name].join(token)
        self.nodes[name].start()

    def await_connected(self) -> None:
        """Return when every running node has a link to every other. Raises CommandError after a minute."""
        deadline = time.monotonic() + _CONNECT_S
        running = [node for node in self.nodes.values() if node.running]
        while True:
            links = {node.name: sum(peer.connected for peer in node.client.peers()) for node in running}
            if all(count >= len(running) - 1 for count in links.values()):
                return
            if time.monotonic() > deadline:
                raise CommandError(f"not all nodes have found each other after {_CONNECT_S:.0f} s: {links}")
            time.sleep(_POLL_S)

    def id_of(self, name: str) -> str:
        """Id of a node, as another one that is connected knows it."""
        address = self.nodes[name].address
        other = next(node for node in self.nodes.values() if node.running and node.name != name)
        return next(peer.node for peer in other.client.peers() if address in peer.addresses)

    def publish(self, directory: Path) -> Announced:
        """Publish a directory on the head, and return when that is done."""
        called_at = time.time()
        result = self.head.client.publish(directory, stream=STREAM)
        published_at = time.time()
        return Announced(
            result.version, called_at, self._announced_at(result.version), published_at, result.patch_bytes
        )

    def _announced_at(self, version: int) -> float:
        """When the head said in its log that the opening went out."""
        for line in reversed(self.head.log.read_text().splitlines()):
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("message") == "announced" and entry.get("version") == version:
                return datetime.fromisoformat(entry["timestamp"]).timestamp()
        raise CommandError(f"the head's log does not say when version {version} was announced: {self.head.log}")

    def watch(self, names: Iterable[str], version: int, timeout_s: float) -> Watch:
        """Note when these hosts have a version, from now on."""
        return Watch([self.nodes[name] for name in names], version, timeout_s, self._threads)

    def holds(self, name: str, version: int, truth: dict[str, str]) -> bool:
        """Whether the directory that a node leases for a version has exactly the files of `truth`."""
        with self.nodes[name].client.lease(STREAM, version) as lease:
            return sha256_of_files(lease.path) == truth

    def cpu_s(self) -> float:
        """Processor seconds that the running daemons have used."""
        return sum(cpu_s_of(node.pid) for node in self.nodes.values() if node.running)


class Watch:
    """Waits for one version on several hosts at once."""

    def __init__(self, nodes: list[Node], version: int, timeout_s: float, threads: ThreadPoolExecutor) -> None:
        self._version = version
        self._deadline_s = time.monotonic() + timeout_s
        self._ended = threading.Event()
        self._threads = threads
        self._found = {node.name: threads.submit(self._follow, node) for node in nodes}

    def add(self, node: Node) -> None:
        """Wait for this host too: it has joined."""
        self._found[node.name] = self._threads.submit(self._follow, node)

    def give_up(self, name: str) -> None:
        """Do not wait for this host any more: it was killed."""
        self._found.pop(name).cancel()

    def wait(self) -> dict[str, tuple[float, float]]:
        """Unix seconds at which each host committed and had verified the version. Raises TimeoutError."""
        try:
            return {name: found.result() for name, found in self._found.items()}
        finally:
            self._ended.set()

    def _follow(self, node: Node) -> tuple[float, float]:
        try:
            return self._times(node)
        except LocalError:
            if node.running:
                raise
            return 0.0, 0.0  # killed; nobody asks for this one's times

    def _times(self, node: Node) -> tuple[float, float]:
        while not any(status.stream == STREAM for status in node.client.streams()):
            self._pause(node)
        if node.client.wait(STREAM, self._version, self._left_s()) is None:
            raise TimeoutError(f"{node.name} has not committed version {self._version} in time; see {node.log}")
        while not node.client.status(STREAM).proven:
            self._pause(node)
        (moments,) = [life.moments for life in node.client.lives(STREAM) if life.version == self._version]
        return moments["committed"], moments["verified"]

    def _pause(self, node: Node) -> None:
        if self._left_s() <= 0:
            raise TimeoutError(f"{node.name} has not verified version {self._version} in time; see {node.log}")
        if self._ended.wait(_POLL_S):
            raise TimeoutError(f"{node.name}: nobody waits any more")

    def _left_s(self) -> float:
        return max(self._deadline_s - time.monotonic(), 0.0)


def sha256_of_files(directory: Path) -> dict[str, str]:
    """SHA-256 of every file below `directory`, by relative path; the slot's own state files aside."""
    sums = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not name.startswith(".patchswarm"):
            with path.open("rb") as file:
                sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums
