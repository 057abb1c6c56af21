"""The lab: namespaces and hub as one context, and the control of the network while programs run in it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .namespaces import LabError, Namespace, make
from .plan import Plan

_ANSWER_S = 30.0
_LIBRARY = Path(__file__).parent.parent

SYSCTLS = {
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
    "ipv4/tcp_no_metrics_save": "1",  # no connection learns from an earlier run
}


class Lab:
    """A running lab. Commands may come from any thread."""

    def __init__(self, plan: Plan, namespaces: list[Namespace], control: socket.socket, congestion: str) -> None:
        self.plan = plan
        self.congestion = congestion
        """What TCP in the namespaces uses unless a socket asks for something else."""
        self.hosts = {namespace.name: namespace for namespace in namespaces}
        self._control = control
        self._answers = control.makefile("rb")
        self._lock = threading.Lock()

    def greet(self) -> bool:
        """Wait for the hub. Returns whether it runs at real-time priority."""
        return bool(self._answer()["priority"])

    def close(self) -> None:
        """Take no more commands. The context of `running` does this."""
        self._answers.close()

    def cut(self, site: str) -> None:
        """Part a site from all others."""
        self._ask("cut", site)

    def heal(self) -> None:
        """Join all sites again."""
        self._ask("heal")

    def set_loss(self, loss: float) -> None:
        """Lose this share of the packets between sites."""
        self._ask("loss", loss)

    def set_rate(self, link: str, rate: float) -> None:
        """Change the rate of one link ("b1 up", "b wan down"), bytes per second."""
        self._ask("rate", link, rate)

    def counters(self) -> dict[str, Any]:
        """What the hub has counted: `links`, `flows` (see `flows.Flows.totals`) and the `hub` itself."""
        counters: dict[str, Any] = self._ask("counters")
        return counters

    def link_bytes(self) -> dict[str, int]:
        """Bytes that each link has carried: what `counters` says too, in less time."""
        carried: dict[str, int] = self._ask("bytes")
        return carried

    def _ask(self, *command: object) -> Any:
        with self._lock:
            self._control.sendall(json.dumps(command).encode() + b"\n")
            return self._answer()

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise LabError("the hub has ended; what it wrote stands above")
        return json.loads(line)


@contextmanager
def running(plan: Plan, congestion: str = "") -> Iterator[Lab]:
    """A lab as long as the context lasts. `congestion`: default control of all hosts, "" for bbr where there is it."""
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    chosen = congestion or ("bbr" if "bbr" in available else "cubic")
    if chosen not in available:
        raise LabError(f"this kernel has no congestion control {chosen}; it has {', '.join(available)}")
    with contextlib.ExitStack() as stack:
        namespaces = make(plan, SYSCTLS | {"ipv4/tcp_congestion_control": chosen})
        for namespace in namespaces:
            stack.callback(namespace.close)
        ours, theirs = socket.socketpair()
        stack.callback(ours.close)
        devices = [namespace.device for namespace in namespaces]
        with theirs:
            hub = subprocess.Popen(
                [sys.executable, "-m", "wanlab.hub", str(theirs.fileno()), ",".join(map(str, devices))],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno(), *devices],
                env=os.environ | {"PYTHONPATH": str(_LIBRARY)},
            )
        stack.callback(_end, hub, ours)
        assert hub.stdin is not None
        with hub.stdin as plan_pipe:
            plan_pipe.write(json.dumps(_document(plan)).encode())
        ours.settimeout(_ANSWER_S)
        lab = Lab(plan, namespaces, ours, chosen)
        stack.callback(lab.close)
        if not lab.greet():
            print("note: the hub runs without real-time priority; other work on this machine delays packets")
        yield lab


def _end(hub: subprocess.Popen[bytes], control: socket.socket) -> None:
    """The hub ends with its control socket; one that does not is killed."""
    control.shutdown(socket.SHUT_RDWR)
    try:
        hub.wait(5.0)
    except subprocess.TimeoutExpired:
        hub.kill()
        hub.wait()


def _document(plan: Plan) -> dict[str, Any]:
    """A plan as a JSON document; `hub.plan_of` reads it."""
    delays_s = [(*pair, delay_s) for pair, delay_s in plan.delays_s.items()]
    document = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return document | {
        "sites": [dataclasses.asdict(site) for site in plan.sites],
        "hosts": [dataclasses.asdict(host) for host in plan.hosts],
        "delays_s": delays_s,
    }
