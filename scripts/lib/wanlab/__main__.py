"""The command line of scripts/wan_lab."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from local_fleet import CommandError, termination_as_exit
from targets import exit_code, summary

from patchswarm.daemon.local.client import LocalError

from . import baselines, report
from .baselines import LIBTORRENT, BaselineError
from .cases import Case, case
from .experiment import run
from .lab import running
from .namespaces import LabError, missing

_SKIPPED = 4
_MEMORY = Path("/dev/shm")  # noqa: S108 -- only mkdtemp makes anything there


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/wan_lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="start the lab, run one case in it, print its table, clean up")
    runner.add_argument("case", choices=("T1", "T2", "T3", "T4"))
    runner.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    runner.add_argument("--seed", type=int, default=1, metavar="N", help="of lost packets and contents (default: 1)")
    runner.add_argument(
        "--congestion", default="", metavar="NAME", help="TCP's control on all hosts (default: bbr where there is it)"
    )
    runner.add_argument("--baselines", action="store_true", help="then HTTP and libtorrent too, in the same lab")
    runner.add_argument("--timeline", action="store_true", help="also show how full each WAN link was over time")
    runner.add_argument("--keep", action="store_true", help="keep the nodes' homes and logs")
    options = parser.parse_args()
    lacking = missing()
    if lacking:
        print(f"skipped: the lab needs {lacking}", file=sys.stderr)
        return _SKIPPED
    if options.baselines and not baselines.has_libtorrent():
        print(
            f"error: --baselines needs libtorrent, which is not installed and which nothing else here needs: "
            f"{sys.executable} -m pip install {LIBTORRENT}",
            file=sys.stderr,
        )
        return _SKIPPED
    return _run(case(options.case, options.seed), options)


def _run(chosen: Case, options: argparse.Namespace) -> int:
    # In memory where there is some, so that no disk is measured; short, for a socket's path has at most 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="wanlab-", dir=_MEMORY if _MEMORY.is_dir() else None))
    document = {"case": chosen.name, "ok": False}
    done = False
    try:
        with termination_as_exit(), running(chosen.plan, options.congestion) as lab:
            outcome = run(chosen, lab, root)
            print(report.text(outcome), flush=True)
            if options.timeline:
                print(f"\n{report.timeline(outcome)}", flush=True)
            found = report.targets(outcome)
            against = baselines.run(lab, root, chosen.size_bytes) if options.baselines else []
            if against:
                print(f"\n{report.baselines_text(outcome, against)}")
                found += report.faster(outcome, against)
            document = report.document(outcome, against) | {"ok": all(target.met for target in found)}
            print(f"\n{summary(found)}")
            done = True
            return exit_code(found)
    except (BaselineError, CommandError, LabError, LocalError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if options.json:
            options.json.write_text(json.dumps(document, indent=2) + "\n")
        if options.keep or not done:
            print(f"homes and logs are in {root}")
        else:
            shutil.rmtree(root)


if __name__ == "__main__":
    sys.exit(main())
