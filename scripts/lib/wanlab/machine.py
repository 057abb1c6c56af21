"""Machine: how busy this machine was with other things than the lab, which is what its figures hang on."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


_AUTOGROUP = Path("/proc/self/autogroup")
_AHEAD = -15


@contextmanager
def ahead_of_others() -> Iterator[None]:
    """Let this session's processes go before those of other sessions, as far as the kernel groups them (sched(7)).

    Where it does, the niceness of a process counts within its session only.
    """
    try:
        before = re.search(r"nice (-?\d+)", _AUTOGROUP.read_text())
        _AUTOGROUP.write_text(str(_AHEAD))
    except OSError:
        before = None
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(OSError):
                _AUTOGROUP.write_text(before[1])


@dataclass(frozen=True, slots=True)
class Busy:
    """Shares of all cores over a stretch of time."""

    cores: int
    lab: float
    others: float
    hub: float
    """Of one core."""
    hub_late_s: float
    """The most that a packet came later than the model says."""

    def __str__(self) -> str:
        return (
            f"{self.cores} cores, {self.lab:.0%} busy with the lab and {self.others:.0%} with other work; "
            f"hub {self.hub:.0%} of a core, packets at most {self.hub_late_s * 1e3:.0f} ms late"
        )

    @property
    def doubtful(self) -> bool:
        """Whether the figures say more about this machine than about what was measured."""
        return self.others > 0.25 or self.hub > 0.9 or self.lab + self.others > 0.95


class Meter:
    """Counts from its making on."""

    def __init__(self, own_cpu_s: float) -> None:
        self._since_s = time.monotonic()
        self._busy_s = _busy_s()
        self._own_cpu_s = own_cpu_s

    def read(self, own_cpu_s: float, hub_cpu_s: float, hub_late_s: float) -> Busy:
        """What was used since; `own_cpu_s` as given at the beginning, `hub_cpu_s` the hub's part of the difference."""
        wall_s = time.monotonic() - self._since_s
        cores = os.cpu_count() or 1
        lab_s = own_cpu_s - self._own_cpu_s
        others_s = max(_busy_s() - self._busy_s - lab_s, 0.0)
        return Busy(cores, lab_s / wall_s / cores, others_s / wall_s / cores, hub_cpu_s / wall_s, hub_late_s)


def _busy_s() -> float:
    """Processor seconds that all cores were not idle, since boot (proc_stat(5)); stolen time is somebody's work too."""
    user, nice, system, _, _, irq, soft, steal, *_ = map(int, Path("/proc/stat").read_text().split(None, 11)[1:11])
    return (user + nice + system + irq + soft + steal) / _TICKS


def cpu_s_of(pid: int) -> float:
    """Processor seconds, user and system, of a process (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
