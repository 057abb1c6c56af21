"""Command: the options of `scripts/simulate`, from the words of the command line to a run and its report."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

from patchswarm.daemon.units import Rate, Size

from .places import Map, Patch, chunk_count, map_of_sites, mixed
from .report import Report, measure
from .tcp import Tcp
from .trust import remembered_signatures
from .world import Options, World


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("simulate", description=__doc__)
    found.add_argument("--sites", type=int, default=8)
    found.add_argument("--nodes", type=int, default=64, help="hosts in all, the head included")
    found.add_argument("--patch", type=Size.parse, default=Size.parse("500MB"))
    found.add_argument("--chunks", type=int, help="default: patch / (64 sites), within 32 KiB and 4 MiB")
    found.add_argument("--wan", type=Rate.parse, default=Rate.parse("1Gbit/s"), help="each site's link, each way")
    found.add_argument("--access", type=Rate.parse, help="each host's link, each way; default: 4 times --wan")
    found.add_argument("--loss", type=float, default=0.0, help="share of packets lost between sites")
    found.add_argument("--mixed", action="store_true", help="one host in ten and one site in five 5x slower")
    found.add_argument("--churn", type=parse_churn, default=0.0, help="hosts replaced, like 20%%/min")
    found.add_argument("--bbr", action="store_true", help="senders use BBR instead of cubic")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--json", type=Path, help="write the report to this file")
    return found


def parse_churn(text: str) -> float:
    """Share of hosts per second in "20%/min" or "1%/s". Raises ValueError."""
    share, _, per = text.partition("%/")
    if per not in ("min", "s"):
        raise ValueError(text)
    return float(share) / 100 / (60 if per == "min" else 1)


def even_sites(nodes: int, sites: int) -> list[int]:
    """`nodes` hosts over `sites` sites as evenly as possible."""
    return [nodes // sites + (at < nodes % sites) for at in range(sites)]


def main(arguments: list[str]) -> int:
    """Run what the command line asks for. Returns the exit code."""
    asked = parser().parse_args(arguments)
    access = asked.access or 4 * asked.wan
    map_ = map_of_sites(
        even_sites(asked.nodes, asked.sites), wan=asked.wan, access=access, seed=asked.seed, loss=asked.loss
    )
    if asked.mixed:
        map_ = mixed(map_, asked.seed)
    patch = Patch(asked.patch, asked.chunks or chunk_count(asked.patch, asked.sites))
    report = run(map_, patch, Options(asked.seed, Tcp(bbr=asked.bbr), churn_per_s=asked.churn))
    print("\n".join(report.lines()))
    if asked.json:
        asked.json.write_text(json.dumps(report.json(), indent=1) + "\n")
    return 1 if report.violations or report.complete < report.expected else 0


def run(map_: Map, patch: Patch, options: Options) -> Report:
    """One world, from warm-up to the last host."""
    began = time.perf_counter()
    with remembered_signatures():
        world = World(map_, patch, options)
        world.run()
    return measure(world, time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
