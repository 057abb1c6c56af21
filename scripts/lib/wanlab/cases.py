"""Cases: what T1 to T4 are, and the figures that each is held against."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .plan import MBIT, Plan, three_sites

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens `at_s` seconds after the publish was called."""

    at_s: float
    what: str
    """"cut", "heal", "kill" or "join"."""
    whom: str = ""
    """The site, or the host."""


@dataclass(frozen=True, slots=True)
class Case:
    """One experiment."""

    name: str
    plan: Plan
    size_bytes: int
    summary: str
    most: float = 0.0
    """Target: last host verified within this multiple of the lower bound; 0.0 for none."""
    faults: tuple[Fault, ...] = ()
    timeout_s: float = 120.0

    @property
    def absent(self) -> set[str]:
        """Hosts that are not there from the beginning."""
        return {fault.whom for fault in self.faults if fault.what == "join"}

    @property
    def killed(self) -> set[str]:
        """Hosts that are killed and stay away."""
        return {fault.whom for fault in self.faults if fault.what == "kill"}

    @property
    def bound_s(self) -> float:
        """Lower bound of the whole: the slowest host's."""
        return max(self.plan.bound_s(host.name, self.size_bytes) for host in self.plan.hosts)


def case(name: str, seed: int) -> Case:
    """T1, T2, T3 or T4."""
    t1 = three_sites(wan=100 * MBIT, access=400 * MBIT, delays_s=(0.040, 0.075, 0.100), seed=seed)
    where = (
        "3 sites (head + 2, 3, 3 hosts), WAN 100 Mbit/s each way per site, access 400 Mbit/s, one-way 40, 75, 100 ms"
    )
    match name:
        case "T1":
            return Case(name, t1, 64 * MIB, f"{where}, 64 MiB", 1.35)
        case "T2":
            return Case(name, replace(t1, loss=0.005), 64 * MIB, f"{where}, 0.5% WAN loss, 64 MiB", 1.5)
        case "T3":
            plan = three_sites(wan=20 * MBIT, access=400 * MBIT, delays_s=(0.1, 0.1, 0.1), seed=seed)
            where = "3 sites (head + 2, 3, 3 hosts), WAN 20 Mbit/s each way per site, access 400 Mbit/s, RTT 200 ms"
            return Case(name, plan, 16 * MIB, f"{where}, 16 MiB", 1.35)
        case "T4":
            plan = three_sites(wan=100 * MBIT, access=400 * MBIT, delays_s=(0.040, 0.075, 0.100), spare="b", seed=seed)
            faults = (
                Fault(2.0, "cut", "c"),
                Fault(2.5, "kill", "b2"),
                Fault(3.0, "join", "b4"),
                Fault(12.0, "heal"),
            )
            what = "site c parted from 2 s to 12 s, host b2 killed at 2.5 s, host b4 joins at 3 s"
            return Case(name, plan, 64 * MIB, f"{where}, 64 MiB; {what}", faults=faults)
    raise ValueError(f"no case {name}")
