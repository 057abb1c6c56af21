"""The end-to-end benchmark: a step from the trainer's folder to every host's committed checkpoint, and today's ways."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Final

from bench_end_to_end_local import MEMORY, rivals, streaming
from bench_end_to_end_wan import wan
from local_fleet import termination_as_exit
from rich.console import Console
from rich.table import Table
from targets import Target, close
from wanlab.namespaces import missing

from patchswarm.daemon.units import Size

PARTS: Final = ("streaming", "local", "wan")
WAN_SHARE: Final = 4
"""By how much smaller the model is in the lab, whose nine nodes share this machine's memory and 100 Mbit/s."""

ROOM: Final = {"streaming": 9, "local": 5, "wan": 7}
"""Room that a part takes in memory, in models of the given size; on local links each host takes HOST_ROOM more."""

HOST_ROOM: Final = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench_end_to_end", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--size", default="2GiB", help="size of the model (2GiB); a quarter of it in the WAN lab")
    parser.add_argument("--rounds", type=int, default=3, help="steps of each kind (3)")
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--hosts", type=int, default=2, help="hosts on local links (2)")
    parser.add_argument(
        "--slowed",
        type=int,
        default=1,
        metavar="N",
        help="slow the WAN lab's network down N times and count its seconds as N times fewer (1)",
    )
    arguments = parser.parse_args()
    size = int(Size.parse(arguments.size)) // (1 << 20) * (1 << 20)
    parts = [arguments.only] if arguments.only else list(PARTS)
    room = ROOM | {"local": ROOM["local"] + HOST_ROOM * arguments.hosts}
    need = max(room[part] for part in parts) * size
    if shutil.disk_usage(MEMORY).free < need:
        print(f"{MEMORY} has not {need >> 20} MiB free: give a smaller --size", file=sys.stderr)
        return 2
    figures: dict[str, object] = {}
    table = Table("figure", "value")

    def say(name: str, value: object) -> None:
        figures[name] = value
        table.add_row(name, f"{value:.3g}" if isinstance(value, float) else str(value))

    targets: list[Target] = []
    with termination_as_exit():
        if "streaming" in parts:
            targets += streaming(size, arguments.rounds, say)
        if "local" in parts:
            targets += rivals(size, arguments.hosts, arguments.rounds, say)
        if "wan" in parts:
            lacking = missing()
            if lacking:
                say("T1 of the WAN lab", f"skipped: the lab needs {lacking}")
            else:
                targets += wan(size // WAN_SHARE, arguments.rounds, arguments.slowed, say)
    Console(width=120).print(table)
    return close({"figures": figures}, targets, arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
