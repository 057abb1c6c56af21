"""The hub: one process that moves every packet of the lab between the hosts' TUN devices, as `links` says when.

It is started by `lab.Lab`, inherits the TUN devices, and takes commands as JSON lines on a socket. It ends when
that socket does, so it never outlives the lab.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from .flows import Flows
from .links import Network
from .plan import Host, Plan, Site

_BURST: Final = 64
"""Packets taken from one device before the others are looked at again."""

_ROUND_S: Final = 0.0003
"""Least time between two looks at the devices: packets gather meanwhile, as in a network card. Delays grow by up
to as much, rates stay exact."""

_MAX_WAIT_S: Final = 1.0
_PRIORITY: Final = 1


class Hub:
    """Forwards until the control socket closes."""

    def __init__(self, plan: Plan, devices: list[int], control: socket.socket) -> None:
        self._network = Network(plan)
        self._flows = Flows()
        self._devices = devices
        self._control = control
        self._mtu = plan.mtu
        self._late_s = 0.0
        self._rejected = 0
        self._commands: dict[str, Callable[..., object]] = {
            "cut": self._network.cut,
            "heal": self._network.heal,
            "loss": self._network.set_loss,
            "rate": self._network.set_rate,
            "counters": self._count,
            "bytes": self._network.bytes,
        }

    def run(self) -> None:
        """Forward packets, and carry out commands between them."""
        numbers = {device: number for number, device in enumerate(self._devices)}
        control = self._control.fileno()
        watched = [*self._devices, control]
        commands = b""
        round_s = 0.0
        while True:
            time.sleep(min(max(round_s + _ROUND_S - time.monotonic(), 0.0), _ROUND_S))
            round_s = time.monotonic()
            next_s = self._network.next_s()
            wait_s = _MAX_WAIT_S if next_s is None else min(max(next_s - round_s, 0.0), _MAX_WAIT_S)
            # select, not epoll: its timeout is not rounded to milliseconds, and the devices are few.
            readable, _, _ = select.select(watched, [], [], wait_s)
            for device in readable:
                if device == control:
                    more = self._control.recv(65536)
                    if not more:
                        return
                    *lines, commands = (commands + more).split(b"\n")
                    for line in lines:
                        self._obey(line)
                else:
                    self._read(device, numbers[device])
            self._deliver()

    def _read(self, device: int, number: int) -> None:
        enter, see, size = self._network.enter, self._flows.see, self._mtu
        for _ in range(_BURST):
            try:
                packet = os.read(device, size)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue
            see(packet)
            enter(number, packet, time.monotonic())

    def _deliver(self) -> None:
        now_s = time.monotonic()
        due_s = self._network.next_s()
        if due_s is None or due_s > now_s:
            return
        self._late_s = max(self._late_s, now_s - due_s)
        for number, packet in self._network.due(now_s):
            try:
                os.write(self._devices[number], packet)
            except OSError:
                self._rejected += 1  # the host's own queue is full, or it is going away

    def _obey(self, line: bytes) -> None:
        command, *arguments = json.loads(line)
        answer = self._commands[command](*arguments)
        self._control.sendall(json.dumps(answer).encode() + b"\n")

    def _count(self) -> dict[str, Any]:
        used = os.times()
        late_s, self._late_s = self._late_s, 0.0
        return {
            "links": self._network.counters(),
            "flows": self._flows.totals(),
            "hub": {"cpu_s": used.user + used.system, "late_s": late_s, "rejected": self._rejected},
        }


def plan_of(document: dict[str, Any]) -> Plan:
    """The plan that `document_of` made a JSON document of."""
    return Plan(
        **document
        | {
            "sites": tuple(Site(**site) for site in document["sites"]),
            "hosts": tuple(Host(**host) for host in document["hosts"]),
            "delays_s": {(one, other): delay_s for one, other, delay_s in document["delays_s"]},
        }
    )


def _renumbered(descriptor: int) -> int:
    """The same file under the lowest free number: whoever started the hub may hold more files than select takes."""
    low = os.dup(descriptor)
    os.close(descriptor)
    return low


def main() -> None:
    control = socket.socket(fileno=_renumbered(int(sys.argv[1])))
    devices = [_renumbered(int(number)) for number in sys.argv[2].split(",")]
    plan = plan_of(json.loads(sys.stdin.read()))
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
        priority = True
    except PermissionError:
        priority = False
    gc.freeze()
    gc.disable()  # nothing here makes cycles, and a collection would hold every packet up
    control.sendall(json.dumps({"ready": True, "priority": priority}).encode() + b"\n")
    Hub(plan, devices, control).run()


if __name__ == "__main__":
    main()
