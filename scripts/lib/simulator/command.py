"""Command: the options of `scripts/simulate`, from the words of the command line to a run and its report."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from targets import Target, exit_code, summary

from patchswarm.daemon.units import Rate, Size

from .baselines import POLICIES, Baseline
from .lab import lab_case, lab_world
from .places import Map, Patch, chunk_count, map_of_sites, mixed
from .report import Report, measure
from .scenarios import SCENARIOS
from .tcp import Tcp
from .trust import remembered_signatures
from .world import Options, World


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("simulate", description=__doc__)
    found.add_argument("--sites", type=int, default=8)
    found.add_argument("--nodes", type=int, default=64, help="hosts in all, the head included")
    found.add_argument("--patch", type=Size.parse, default=Size.parse("500MB"))
    found.add_argument("--chunks", type=int, help="default: 16 for each border, of 32 KiB to 4 MiB")
    found.add_argument("--wan", type=Rate.parse, default=Rate.parse("1Gbit/s"), help="each site's link, each way")
    found.add_argument("--access", type=Rate.parse, help="each host's link, each way; default: 4 times --wan")
    found.add_argument("--loss", type=float, default=0.0, help="share of packets lost between sites")
    found.add_argument("--mixed", action="store_true", help="one host in ten and one site in five 5x slower")
    found.add_argument("--churn", type=parse_churn, default=0.0, help="hosts replaced, like 20%%/min")
    found.add_argument("--bbr", action="store_true", help="senders use BBR instead of cubic")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--baseline", choices=POLICIES, help="another policy in the same world")
    found.add_argument(
        "--targets", nargs="*", metavar="WORD", help="judge the scenarios (whose names have a WORD in them)"
    )
    found.add_argument("--lab", choices=("T1", "T2", "T3", "T4"), help="a case of scripts/wan_lab instead")
    found.add_argument("--encode", type=Rate.parse, default=Rate.parse("1GB/s"), help="patch that the head makes")
    found.add_argument("--json", type=Path, help="write the report to this file")
    return found


def parse_churn(text: str) -> float:
    """Share of hosts per second in "20%/min" or "1%/s"."""
    share, _, per = text.partition("%/")
    try:
        return float(share) / 100 / {"min": 60, "s": 1}[per]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a churn; write for example 20%/min") from None


def even_sites(nodes: int, sites: int) -> list[int]:
    """`nodes` hosts over `sites` sites as evenly as possible."""
    return [nodes // sites + (at < nodes % sites) for at in range(sites)]


def main(arguments: list[str]) -> int:
    """Run what the command line asks for. Returns the exit code."""
    options_of = parser()
    asked = options_of.parse_args(arguments)
    if not 1 <= asked.sites <= asked.nodes or asked.nodes < 2:
        options_of.error("--nodes takes at least 2, and at least one for each of --sites")
    if asked.targets is not None:
        return run_targets(asked.targets, asked.seed, asked.json)
    options = Options(asked.seed, Tcp(bbr=asked.bbr), churn_per_s=asked.churn)
    map_, patch = what_is_asked(asked)
    if asked.baseline:
        report = run(lambda: Baseline(map_, patch, replace(options, give_up_s=math.inf), asked.baseline))
    elif asked.lab:
        report = run(lambda: lab_world(asked.lab, options, asked.encode))
    else:
        report = run(lambda: World(map_, patch, options))
    print("\n".join(report.lines()))
    if asked.json:
        asked.json.write_text(json.dumps(report.json(), indent=1) + "\n")
    return 1 if report.violations or report.complete < report.expected else 0


def what_is_asked(asked: argparse.Namespace) -> tuple[Map, Patch]:
    """The map and the patch that the options describe."""
    if asked.lab:
        return lab_case(asked.lab, asked.seed, asked.encode)
    access = asked.access or 4 * asked.wan
    members = even_sites(asked.nodes, asked.sites)
    map_ = map_of_sites(members, wan=asked.wan, access=access, seed=asked.seed, loss=asked.loss)
    chunks = asked.chunks or chunk_count(asked.patch, map_)
    return mixed(map_, asked.seed) if asked.mixed else map_, Patch(int(asked.patch), chunks, encode_rate=asked.encode)


def run_targets(words: list[str], seed: int, json_path: Path | None) -> int:
    """Run the scenarios, a line each, and the line that sums them up."""
    print(
        f"{'':20} {'all':>8} {'bound':>7} {'ratio':>6} {'last/med':>8} {'in':>5} {'out':>5} {'dup':>6} {'control':>7}"
    )
    targets: list[Target] = []
    reports: dict[str, Report] = {}
    for scenario in [each for each in SCENARIOS if not words or any(word in each.name for word in words)]:
        options = replace(scenario.options, seed=seed)
        map_ = scenario.map(seed)
        report = reports[scenario.name] = run(lambda: World(map_, scenario.patch(map_), options))  # noqa: B023
        targets += scenario.targets(report)
        print(
            f"{scenario.name:20} {report.to_all_s:7.2f}s {report.bound_s:6.2f}s {report.ratio.max:6.2f} "
            f"{report.in_class:8.2f} {report.copies_in.max:5.2f} {report.seed_copies_out:5.2f} "
            f"{report.duplicate_share:6.1%} {report.control_share:7.2%}",
            flush=True,
        )
    print(summary(targets))
    if json_path:
        found = {name: report.json() for name, report in reports.items()}
        json_path.write_text(json.dumps({"scenarios": found, "summary": summary(targets)}, indent=1) + "\n")
    return exit_code(targets)


def run(make: Callable[[], World | Baseline]) -> Report:
    """Make a world and run it to its end."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    with remembered_signatures():
        world = make()
        world.run()
    return measure(world, time.perf_counter() - began_s, time.process_time() - began_cpu_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
