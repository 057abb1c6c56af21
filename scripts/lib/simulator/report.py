"""Report: what one run measured, as a value, and as the lines that are printed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from .bounds import lower_bound_s
from .ground import Ground
from .places import Host, Map, Patch


@dataclass(slots=True)
class Tally:
    """What one node did. Bytes; simulated seconds."""

    control_sent: int = 0
    control_before: int = 0  # of those: before the publish
    chunk_bytes: int = 0  # all that came
    useless_bytes: int = 0  # of those: had already, damaged, or not asked for
    head_known_s: float | None = None
    finished_s: float | None = None


class Receiver(Protocol):
    """A node, of the swarm or of a baseline."""

    place: int
    host: Host
    alive: bool
    joined_s: float
    tally: Tally


class Settings(Protocol):
    """What a run was given."""

    @property
    def seed(self) -> int:
        """Seed of everything random."""


class Run(Protocol):
    """A world that has run, of the swarm or of a baseline. `size`: bytes that each host had to receive."""

    policy: str
    map: Map
    patch: Patch
    ground: Ground
    size: int
    published_s: float | None
    closed_s: float | None
    violations: list[str]
    complaints: list[str]

    @property
    def options(self) -> Settings:
        """What it was given."""

    @property
    def nodes(self) -> Sequence[Receiver]:
        """All nodes there ever were; the first is the head."""


class Spread(msgspec.Struct, frozen=True):
    """Median, 99th percentile and largest of some values."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of `values`; not a number when there are none."""
        ordered = sorted(values)
        if not ordered:
            return cls(math.nan, math.nan, math.nan)
        return cls(statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], ordered[-1])


class Report(msgspec.Struct, frozen=True):
    """One run. Times in seconds after the publish began, bytes as they cross the wire."""

    policy: str
    seed: int
    hosts: int
    sites: int
    patch_bytes: int
    chunks: int
    complete: int
    """Hosts that got there, of `expected`."""
    expected: int
    to_50_s: float
    to_99_s: float
    to_all_s: float
    bound_s: float
    """Lower bound of the host that has the largest."""
    ratio: Spread
    """Per host: its time over its own bound."""
    in_class: float
    """Last over median time among hosts whose links are alike, the worst class."""
    copies_in: Spread
    """Copies of the patch that crossed each site's downlink, the head's site left out."""
    copies_out: Spread
    """The same for uplinks of those sites."""
    seed_copies_out: float
    duplicate_share: float
    control_bytes: Spread
    """Per node, sent, since the publish began."""
    control_share: float
    """Of all chunk bytes."""
    head_known_s: Spread
    """From the signing of the manifest until nodes know it."""
    violations: tuple[str, ...]
    complaints: int
    wall_s: float
    cpu_s: float

    def lines(self) -> list[str]:
        """For people."""
        ratio, copies, out, known = self.ratio, self.copies_in, self.copies_out, self.head_known_s
        patch = f"{self.patch_bytes / 1e6:.3g} MB in {self.chunks} chunks"
        rows = {
            "complete": f"{self.complete} of {self.expected} hosts",
            "time to": f"50% {self.to_50_s:.2f} s     99% {self.to_99_s:.2f} s     all {self.to_all_s:.2f} s",
            "lower bound": f"{self.bound_s:.2f} s",
            "ratio per host": f"p50 {ratio.p50:.2f}     p99 {ratio.p99:.2f}     max {ratio.max:.2f}",
            "last over median": f"{self.in_class:.2f}  within a class of links",
            "copies in": f"p50 {copies.p50:.2f}     max {copies.max:.2f}",
            "copies out": f"p50 {out.p50:.2f}     max {out.max:.2f}     of the head's site {self.seed_copies_out:.2f}",
            "duplicates": f"{self.duplicate_share:.2%} of chunk bytes",
            "control": f"p50 {self.control_bytes.p50 / 1e3:.0f} kB     max {self.control_bytes.max / 1e3:.0f} kB     "
            f"{self.control_share:.2%} of chunk bytes",
            "head known": f"p50 {known.p50:.2f} s     max {known.max:.2f} s",
            "simulated in": f"{self.wall_s:.1f} s, {self.cpu_s:.1f} s of them on a core",
        }
        if math.isnan(known.max):  # a baseline has neither
            del rows["head known"], rows["control"]
        return [
            f"{self.policy}: {self.hosts} hosts at {self.sites} sites, {patch}, seed {self.seed}",
            *(f"  {name:17} {value}" for name, value in rows.items()),
            *(f"  VIOLATED: {violation}" for violation in self.violations[:10]),
        ]

    def json(self) -> dict[str, Any]:
        """For machines; what is not a number is null."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return found


def measure(world: Run, wall_s: float, cpu_s: float) -> Report:
    """What happened in a world that has run."""
    start_s = world.published_s or 0.0
    size = world.size
    receivers = [node for node in world.nodes[1:] if node.alive and not node.host.lie]
    there = [node for node in receivers if node.tally.finished_s is not None]
    took: dict[object, list[float]] = {}
    ratios, times = [], []
    for node in there:
        began_s = max(start_s, node.joined_s)
        took_s = (node.tally.finished_s or 0.0) - began_s
        times.append((node.tally.finished_s or 0.0) - start_s)
        ratios.append(took_s / lower_bound_s(world.map, node.place, size))
        site = world.map.sites[node.host.site]
        kind = (node.host.up, node.host.down, site.up, site.down, node.host.site == world.nodes[0].host.site)
        if node.joined_s <= start_s:
            took.setdefault(kind, []).append(took_s)
    home = world.nodes[0].host.site
    others = [site for site in {node.host.site for node in world.nodes[1:]} if site != home]
    carried = world.ground.network.carried
    into = [float(carried[world.ground.site_links[site][1]]) / size for site in others]
    out = [float(carried[world.ground.site_links[site][0]]) / size for site in others]
    chunk_bytes = sum(node.tally.chunk_bytes for node in world.nodes)
    control = [node.tally.control_sent - node.tally.control_before for node in world.nodes if node.alive]
    closed_s = world.closed_s or start_s
    known = [node.tally.head_known_s - closed_s for node in receivers if node.tally.head_known_s is not None]
    spread = Spread.of(times)
    return Report(
        policy=world.policy,
        seed=world.options.seed,
        hosts=len(world.map.hosts),
        sites=len(world.map.sites),
        patch_bytes=world.patch.size,
        chunks=world.patch.chunks,
        complete=len(there),
        expected=len(receivers),
        to_50_s=spread.p50,
        to_99_s=spread.p99,
        to_all_s=spread.max if len(there) == len(receivers) else math.nan,
        bound_s=max(lower_bound_s(world.map, node.place, size) for node in receivers),
        ratio=Spread.of(ratios),
        in_class=max((max(each) / statistics.median(each) for each in took.values()), default=math.nan),
        copies_in=Spread.of(into),
        copies_out=Spread.of(out),
        seed_copies_out=float(carried[world.ground.site_links[home][0]]) / size,
        duplicate_share=sum(node.tally.useless_bytes for node in world.nodes) / max(chunk_bytes, 1),
        control_bytes=Spread.of(control),
        control_share=sum(control) / max(chunk_bytes, 1),
        head_known_s=Spread.of(known),
        violations=tuple(world.violations),
        complaints=len(world.complaints),
        wall_s=wall_s,
        cpu_s=cpu_s,
    )
