"""A fleet on loopback: real daemons as subprocesses, driven through the `patchswarm` command as a user would."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from patchswarm.daemon.local.client import Client

COMMAND = Path(sys.executable).parent / "patchswarm"
"""The command of the environment that runs this script, whatever PATH says."""

READY = "ready"
"""What a daemon logs once its sockets answer."""


class CommandError(Exception):
    """A command ended with another code than it should; the message holds what it said."""


class Node:
    """One node: its home, its address and, while it runs, its daemon.

    `address` is a free one on loopback unless given; `enter` goes before each of the node's commands, to run it
    somewhere else on this machine.
    """

    def __init__(self, root: Path, name: str, site: str, address: str = "", enter: Sequence[str] = ()) -> None:
        self.name = name
        self.site = site
        self.home = root / name
        self.log = root / f"{name}.log"
        self.address = address or f"127.0.0.1:{free_port()}"
        self.enter = tuple(enter)
        self.daemon: tuple[str, ...] = (str(COMMAND), "daemon")
        """The command that runs the daemon, without its home."""
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def client(self) -> Client:
        """The typed client on this node's socket."""
        return Client(self.home / "patchswarm.sock")

    @property
    def pid(self) -> int:
        """Process id of the running daemon."""
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    def command(
        self, *arguments: str | Path, expect: int = 0, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run `patchswarm ARGUMENTS --home HOME`. Raises CommandError unless it ends with `expect`."""
        line = [*self.enter, str(COMMAND), *map(str, arguments), "--home", str(self.home)]
        done = subprocess.run(
            line, capture_output=True, text=True, env=clean_environment(), timeout=timeout_s, check=False
        )
        if done.returncode != expect:
            raise CommandError(f"{' '.join(line)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def init(self) -> None:
        """Make this node the head of a new cluster."""
        self.command("init", "--site", self.site, "--listen", self.address)

    def invite(self, *arguments: str) -> str:
        """A token for one new node."""
        return self.command("invite", *arguments).stdout.strip()

    def join(self, token: str) -> None:
        """Enrol this node."""
        self.command("join", token, "--site", self.site, "--listen", self.address)

    def publish(self, directory: Path, stream: str, *arguments: str) -> dict[str, Any]:
        """Publish a checkpoint directory; what `publish --json` says."""
        done = self.command("publish", directory, "--stream", stream, *arguments, "--json")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def start(self, timeout_s: float = 180) -> None:
        """Start the daemon and wait until it answers."""
        assert self._process is None, f"{self.name} runs already"
        process = subprocess.Popen(
            [*self.enter, *self.daemon, "--home", str(self.home)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(),
        )
        self._process = process
        settled = threading.Event()  # ready, or ended
        self._reader = threading.Thread(target=self._read, args=(process, settled), daemon=True)
        self._reader.start()
        if not settled.wait(timeout_s) or process.poll() is not None:
            self.kill()
            raise CommandError(f"the daemon of {self.name} did not start:\n{self.log.read_text()[-4000:]}")

    def _read(self, process: subprocess.Popen[str], settled: threading.Event) -> None:
        """Copy what the daemon writes into the log; tell when it is ready or has ended."""
        assert process.stdout is not None
        with self.log.open("a") as log, process.stdout as lines:
            for line in lines:
                log.write(line)
                log.flush()
                if f'"message":"{READY}"' in line:
                    settled.set()
        process.wait()
        settled.set()

    def stop(self, timeout_s: float = 30) -> None:
        """Ask the daemon to stop, and wait until it has. Raises CommandError when it does not, or stops badly."""
        code = self._end(signal.SIGTERM, timeout_s)
        if code not in (None, 0):
            raise CommandError(f"the daemon of {self.name} ended with {code}:\n{self.log.read_text()[-4000:]}")

    def kill(self) -> None:
        """Kill the daemon with SIGKILL: it gets no chance to tidy up."""
        self._end(signal.SIGKILL, 30)

    def _end(self, number: signal.Signals, timeout_s: float) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(number)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        assert self._reader is not None
        self._reader.join()
        return code

    @property
    def running(self) -> bool:
        """Whether the daemon runs."""
        return self._process is not None and self._process.poll() is None


class LocalFleet:
    """A head and rollout nodes below one folder. Leaving the context stops every daemon that it started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes: dict[str, Node] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ThreadPoolExecutor(len(self.nodes) or 1) as pool:
            # Every one is ended, whatever another says; a daemon that ended by itself is an error too.
            ends = [pool.submit(node.kill if kind else node.stop) for node in self.nodes.values()]
        for end in ends:
            end.result()

    @property
    def head(self) -> Node:
        """The head."""
        return self.nodes["head"]

    def add_head(self, site: str = "us-east/a") -> Node:
        """Make the head and start its daemon."""
        head = self.nodes["head"] = Node(self.root, "head", site)
        head.init()
        head.start()
        return head

    def add(self, name: str, site: str, *, start: bool = True) -> Node:
        """Enrol a rollout node and start its daemon."""
        node = self.nodes[name] = Node(self.root, name, site)
        node.join(self.head.invite())
        if start:
            node.start()
        return node


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def clean_environment() -> dict[str, str]:
    """The environment without PATCHSWARM_ variables: a user's own settings do not reach into this fleet."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PATCHSWARM_")}


@contextmanager
def termination_as_exit() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that contexts are left and daemons stopped."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
