"""Hostile: one member of a working fleet does to it whatever a member can, and the others are timed.

A version of the same size is published again and again: without the hostile member, which is what counts as 1.0, and
with it, one way of being hostile after the other. Each time the last honest host is what is timed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from local_fleet import CommandError, clean_environment, termination_as_exit
from rich.console import Console
from rich.table import Table
from targets import Target, close

from patchswarm.daemon.local.client import LocalError

from .attacker import ATTACKS
from .beside import Beside
from .experiment import write_checkpoint
from .lab import running
from .member import LIES
from .namespaces import LabError, missing
from .plan import MBIT, Host, Plan, Site
from .swarm import STREAM, Swarm, sha256_of_files
from .witness import Witnesses

MIB = 2**20
HOSTILE = "x"
TIMEOUT_S = 120.0
MEETING_S = 20.0
LOOK_S = 0.1
MOST = 1.5
MOST_MEMORY_MIB = 768
"""A node at rest (256 MiB, as scripts/bench_idle holds it to) and its `storage.memory_limit` (512 MiB)."""

_SKIPPED = 4
_MEMORY = Path("/dev/shm")  # noqa: S108 -- only mkdtemp makes anything there
_LIBRARY = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Way:
    """One way of being hostile: what its daemon does to others, and what comes without a daemon beside it."""

    name: str
    lies: str = ""
    attacks: tuple[str, ...] = ()
    daemon: bool = True


QUIET = Way("without it", daemon=False)
ALL = Way("all at once", "other have trickle", tuple(ATTACKS))
WAYS = (
    *(Way(f"daemon: {lie}", f"have {lie}" if lie == "silent" else lie) for lie in LIES),
    *(Way(f"member: {attack}", "", (attack,), daemon=False) for attack in ATTACKS),
    ALL,
)
"""Those that get a member shut out come last: it is let in again only after a while."""


@dataclass(frozen=True, slots=True)
class Round:
    """One version under one way."""

    way: str
    last_s: float
    """From the announcement until the last honest host had committed it."""
    last: str
    """Which host that was."""
    complete: int
    """Honest hosts that have the trainer's bytes."""
    memory_bytes: int
    """The most that an honest daemon held, files aside."""
    wrong_senders: int
    """Honest hosts that sent a byte which was not what it was said to be."""
    hung_up: int
    """How often the hostile member was hung up on, or not let in."""


def plan_of(seed: int) -> Plan:
    """The head and two hosts in site a; three hosts and the hostile one in site b."""
    hosts = {"head": "a", "a1": "a", "a2": "a", "b1": "b", "b2": "b", "b3": "b", HOSTILE: "b"}
    wan, access = 40 * MBIT, 200 * MBIT
    return Plan(
        (Site("a", wan, wan), Site("b", wan, wan)),
        tuple(Host(name, site, access, access) for name, site in hosts.items()),
        {("a", "b"): 0.03},
        seed=seed,
    )


class Siege:
    """A fleet in a lab with one hostile member, which is honest until `round`."""

    def __init__(self, swarm: Swarm, witnesses: Witnesses, root: Path, size_bytes: int) -> None:
        self._swarm = swarm
        self._witnesses = witnesses
        self._root = root
        self._size_bytes = size_bytes
        self._version = 0
        self._hostile = swarm.nodes[HOSTILE]
        self._hostile_id = swarm.id_of(HOSTILE)
        self.honest = [name for name in swarm.nodes if name != HOSTILE]

    def round(self, way: Way) -> Round:
        """Publish a version while the hostile member is hostile in this way."""
        self._version += 1
        source = self._root / f"source-{self._version}"
        write_checkpoint(source, self._size_bytes, self._version)
        truth = sha256_of_files(source)
        self._witnesses.set_lies(HOSTILE, "")
        self._set_daemon(way.daemon)
        self._witnesses.set_lies(HOSTILE, way.lies)
        before = {name: self._wrong_senders(name) for name in self.honest}
        with self._attacking(way) as hung_up, _Memory([self._swarm.nodes[name].pid for name in self.honest]) as memory:
            watch = self._swarm.watch(self.honest, self._version, TIMEOUT_S)
            announced = self._swarm.publish(source)
            times = watch.wait()
        blamed = set().union(*(self._wrong_senders(name) - before[name] for name in self.honest))
        complete = sum(self._swarm.holds(name, self._version, truth) for name in self.honest)
        shutil.rmtree(source)
        last = max(times, key=lambda name: times[name][0])
        return Round(
            way.name,
            times[last][0] - announced.announced_at,
            last,
            complete,
            memory.most_bytes,
            len(blamed - {self._hostile_id}),
            sum(hung_up),
        )

    def _wrong_senders(self, name: str) -> set[str]:
        return self._witnesses.wrong_senders(name)

    def _set_daemon(self, wanted: bool) -> None:
        """Let the hostile member's daemon run or not.

        One that was shut out may need a while to be let in again, and to catch up with what it has missed.
        """
        if not wanted:
            self._hostile.kill()
            return
        if not self._hostile.running:
            self._swarm.restart(HOSTILE)
        deadline_s = time.monotonic() + MEETING_S
        while time.monotonic() < deadline_s and not (self._is_linked() and self._has_caught_up()):
            time.sleep(LOOK_S)

    def _is_linked(self) -> bool:
        return sum(peer.connected for peer in self._hostile.client.peers()) >= len(self.honest)

    def _has_caught_up(self) -> bool:
        """Whether the hostile member, which is to be hostile from now on, has the version before this one."""
        held = {each.stream: each.current for each in self._hostile.client.streams()}.get(STREAM)
        return held is not None and held.version >= self._version - 1

    @contextmanager
    def _attacking(self, way: Way) -> Iterator[list[int]]:
        """Run the attacker; the list holds how often it was hung up on, afterwards."""
        found: list[int] = []
        if not way.attacks:
            yield found
            return
        addresses = [self._swarm.nodes[name].address for name in self.honest]
        # nice: it shares this machine's cores with those whom it attacks, which no attacker elsewhere does
        line = [*self._hostile.enter, "nice", "-n", "19", sys.executable, "-P", "-m", "wanlab.attacker"]
        process = subprocess.Popen(
            [*line, str(self._hostile.home), ",".join(way.attacks), *addresses],
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment() | {"PYTHONPATH": str(_LIBRARY)},
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready: on a busy machine a round could be over before it has begun
            yield found
        finally:
            process.terminate()
            said = _last_words(process)
        if process.returncode:
            raise CommandError(f"the attacker ended with {process.returncode}; what it wrote stands above")
        found.append(int(said))


def _last_words(process: subprocess.Popen[str]) -> str:
    try:
        said, _ = process.communicate(timeout=30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    return said


class _Memory(Beside):
    """Looks at the memory of processes while the context lasts."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__("memory")
        self._pids = pids
        self.most_bytes = 0

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.most_bytes = max(self.most_bytes, *map(anonymous_bytes, self._pids))


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that is no file's (proc_pid_status(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def siege_of(root: Path, seed: int, size_bytes: int) -> Iterator[Siege]:
    """The lab, the fleet and its hostile member, as long as the context lasts."""
    plan = plan_of(seed)
    witnesses = Witnesses(root, {})
    with running(plan) as lab, Swarm(lab, root, witnesses.prepare) as swarm:
        swarm.start(host.name for host in plan.hosts)
        yield Siege(swarm, witnesses, root, size_bytes)


def targets(rounds: Sequence[Round], honest: int) -> list[Target]:
    """What the rounds are held against."""
    quiet_s = quiet_of(rounds)
    return [
        Target("honest hosts left out", sum(honest - each.complete for each in rounds), 0),
        Target("honest hosts that sent wrong bytes", sum(each.wrong_senders for each in rounds), 0),
        *(
            Target(f"{each.way}, slower than without", each.last_s / quiet_s, MOST, unit="x")
            for each in rounds
            if each.way != QUIET.name
        ),
        Target(
            "memory of an honest daemon", max(each.memory_bytes for each in rounds) / MIB, MOST_MEMORY_MIB, unit=" MiB"
        ),
    ]


def quiet_of(rounds: Sequence[Round]) -> float:
    """Median of the rounds without the hostile member."""
    return statistics.median(each.last_s for each in rounds if each.way == QUIET.name)


def text(rounds: Sequence[Round], honest: int) -> Table:
    """One line for each round."""
    quiet_s = quiet_of(rounds)
    table = Table("hostile member", "last honest host", "slower", "complete", "memory", "hung up on")
    for each in rounds:
        table.add_row(
            each.way,
            f"{each.last_s:.2f} s, {each.last}",
            f"{each.last_s / quiet_s:.2f}x",
            f"{each.complete} of {honest}",
            f"{each.memory_bytes / MIB:.0f} MiB",
            str(each.hung_up),
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos_hostile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the lab (default: 1)")
    parser.add_argument("--mib", type=int, default=24, metavar="N", help="size of each version (default: 24)")
    parser.add_argument(
        "--quiet", type=int, default=3, metavar="N", help="rounds without, before and after (default: 3)"
    )
    parser.add_argument(
        "--only",
        choices=[way.name for way in WAYS],
        metavar="WAY",
        action="append",
        help="only this way; may be repeated",
    )
    parser.add_argument("--keep", action="store_true", help="keep the nodes' homes and logs")
    options = parser.parse_args()
    ways = [way for way in WAYS if not options.only or way.name in options.only]
    lacking = missing()
    if lacking:
        print(f"skipped: the lab needs {lacking}", file=sys.stderr)
        return _SKIPPED
    # In memory where there is some, so that no disk is measured; short, for a socket's path has at most 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="hostile-", dir=_MEMORY if _MEMORY.is_dir() else None))
    rounds, done = [], False
    try:
        with termination_as_exit(), siege_of(root, options.seed, options.mib * MIB) as siege:
            siege.round(Way("the first version", daemon=False))  # whole, and nothing is warm yet: not counted
            for way in (*[QUIET] * options.quiet, *ways, *[QUIET] * options.quiet):
                rounds.append(siege.round(way))
                print(f"{way.name}: {rounds[-1].last_s:.2f} s", file=sys.stderr, flush=True)
            honest = len(siege.honest)
        done = True
    except (CommandError, LabError, LocalError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if options.keep or not done:
            print(f"homes and logs are in {root}", file=sys.stderr)
        else:
            shutil.rmtree(root)
    found = targets(rounds, honest)
    Console(width=110).print(text(rounds, honest))
    return close({"rounds": [asdict(each) for each in rounds]}, found, options.json)


if __name__ == "__main__":
    sys.exit(main())
