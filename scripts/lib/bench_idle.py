"""The idle benchmark: a head with peers, all of them real daemons on this machine, and nothing to do."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from local_fleet import LocalFleet, Node
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file
from targets import Target, close

from patchswarm.daemon.local.client import Client

STREAM = "bench"
MIB = 2**20
SETTLE_S = 120.0
MEETING_S = 15.0
"""A fleet that has just met still exchanges what it knows: idle begins afterwards."""


def rss_bytes(pid: int) -> int:
    """Resident memory of a process, without what it shares with checkpoint files."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return (int(fields["RssAnon"].split()[0]) + int(fields["RssFile"].split()[0])) * 1024


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ready_s(node: Node) -> float:
    """Start a daemon; seconds until its socket answers."""
    began = time.perf_counter()
    node.start()
    node.client.streams()
    return time.perf_counter() - began


def connected(client: Client) -> int:
    """Peers that the node is connected to."""
    return sum(peer.connected for peer in client.peers())


def measure(peers: int, seconds: float) -> tuple[dict[str, float], list[Target]]:
    """Run the fleet; figures and targets."""
    with tempfile.TemporaryDirectory(prefix="patchswarm-idle-") as folder, LocalFleet(Path(folder)) as fleet:
        head = fleet.add_head()
        head.stop()
        starts = []
        for _ in range(5):
            starts.append(ready_s(head))
            head.stop()
        head.start()
        token = head.invite("--uses", str(peers))
        for number in range(peers):
            node = fleet.nodes[f"n{number}"] = Node(fleet.root, f"n{number}", f"site-{number % 5}")
            node.join(token)
            node.start()
        model = Path(folder) / "model"
        model.mkdir()
        save_file({"weight": np.zeros(4 * MIB, np.float16)}, model / "model.safetensors")
        head.publish(model, STREAM)
        for name, node in fleet.nodes.items():
            if node.client.wait(STREAM, 1, SETTLE_S) is None:
                raise SystemExit(f"bench_idle: {name} has not got the version within {SETTLE_S:.0f} s")
        time.sleep(MEETING_S)
        before = {name: cpu_s(node.pid) for name, node in fleet.nodes.items()}
        began = time.perf_counter()
        time.sleep(seconds)
        took = time.perf_counter() - began
        shares = {name: (cpu_s(node.pid) - before[name]) / took for name, node in fleet.nodes.items()}
        memory = {name: rss_bytes(node.pid) for name, node in fleet.nodes.items()}
        links = {name: connected(node.client) for name, node in fleet.nodes.items()}
    figures = {
        "ready_s_median": float(np.median(starts)),
        "ready_s_best": min(starts),
        "peers": peers,
        "links_of_the_head": links["head"],
        "cpu_share_head": shares["head"],
        "cpu_share_median": float(np.median(list(shares.values()))),
        "cpu_share_max": max(shares.values()),
        "rss_bytes_head": memory["head"],
        "rss_bytes_max": max(memory.values()),
    }
    targets = [
        Target("ready, warm (best of 5)", figures["ready_s_best"], 2.0, unit=" s"),
        Target("idle memory, largest", figures["rss_bytes_max"] / MIB, 256, unit=" MiB"),
        Target("idle processor, head", 100 * figures["cpu_share_head"], 1.0, unit=" %"),
        Target("idle processor, median node", 100 * figures["cpu_share_median"], 1.0, unit=" %"),
    ]
    return figures, targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench_idle", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--peers", type=int, default=50, help="daemons beside the head (50)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long nothing happens (30)")
    arguments = parser.parse_args()
    figures, targets = measure(arguments.peers, arguments.seconds)
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}")
    Console(width=100).print(table)
    return close({"figures": figures}, targets, arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
