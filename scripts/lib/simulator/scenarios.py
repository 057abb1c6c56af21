"""Scenarios: the worlds in which the swarm is judged, and what is asked of it in each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from targets import Target

from .places import GBIT, Host, Map, Patch, chunk_count, map_of_sites, mixed
from .report import Report
from .tcp import Tcp
from .world import Options

_MB: Final = 1_000_000
_PATCH: Final = 500 * _MB


@dataclass(frozen=True, slots=True)
class Scenario:
    """One world. `ratio` is the most that any host's time may be over its bound; None: it is only printed."""

    name: str
    map: Callable[[int], Map]
    patch: Callable[[Map], Patch]
    ratio: float | None = None
    options: Options = field(default_factory=Options)
    duplicates: float = 0.02
    judged_copies: bool = True

    def targets(self, report: Report) -> list[Target]:
        """What is asked, and how it came out. What does not exist in this world is not asked."""
        asked = [
            ("hosts not complete", report.expected - report.complete, 0),
            ("violations", len(report.violations), 0),
            ("last over median", report.in_class, 1.3),
            ("duplicate share", report.duplicate_share, self.duplicates),
            ("control share", report.control_share, 0.01),
        ]
        if self.ratio is not None:
            asked.append(("largest ratio", report.ratio.max, self.ratio))
        if self.judged_copies:
            asked += [
                ("copies in", report.copies_in.max, 1.05),
                ("copies out of the seed", report.seed_copies_out, 1.1),
            ]
        return [Target(f"{self.name}: {name}", value, limit) for name, value, limit in asked if not math.isnan(value)]


def _patch(size: int = _PATCH, chunks: int | None = None) -> Callable[[Map], Patch]:
    return lambda map_: Patch(size, chunks or chunk_count(size, map_))


def _even(sites: int, members: int, **more: float | bool) -> Callable[[int], Map]:
    return lambda seed: map_of_sites([members] * sites, wan=GBIT, access=4 * GBIT, seed=seed, **more)  # type: ignore[arg-type]


def _sizes(*members: int) -> Callable[[int], Map]:
    return lambda seed: map_of_sites(members, wan=GBIT, access=4 * GBIT, seed=seed)


def _with_hosts(make: Callable[[int], Map], change: Callable[[int, Host], Host]) -> Callable[[int], Map]:
    """The same places, each host passed through `change(number, host)`."""

    def build(seed: int) -> Map:
        plain = make(seed)
        return replace(plain, hosts=tuple(change(at, host) for at, host in enumerate(plain.hosts)))

    return build


def _slow_member(at: int, host: Host) -> Host:
    return replace(host, up=host.up / 40, down=host.down / 40) if at == 20 else host


def _thin_head(at: int, host: Host) -> Host:
    return replace(host, up=GBIT / 5) if at == 0 else host


def _behind_nat(at: int, host: Host) -> Host:
    return replace(host, nat=at >= 3 and at % 2 == 0)


_WARM: Final = Options(warm_up_s=25.0)

SCENARIOS: Final = (
    Scenario("equal 8x8", _even(8, 8), _patch(), 1.25),
    Scenario("equal 20x50", _even(20, 50), _patch(chunks=500), 1.25),
    Scenario("mixed 8x8", lambda seed: mixed(_even(8, 8)(seed), seed), _patch(), 1.5),
    Scenario("mixed 10x10", lambda seed: mixed(_even(10, 10)(seed), seed), _patch(), 1.5),
    Scenario(
        "churn and loss 8x8",
        _even(8, 8, loss=0.01),
        _patch(4 * _PATCH),
        2.0,
        Options(tcp=Tcp(bbr=True), churn_per_s=0.2 / 60),
        duplicates=0.06,
        judged_copies=False,
    ),
    Scenario("3 chunks", _even(8, 8), _patch(12 * _MB, 3)),
    Scenario("3000 chunks", _even(8, 8), _patch(chunks=3000)),
    Scenario("sites of 1, 50, 150", _sizes(4, 1, 50, 150), _patch()),
    Scenario("one slow member", _with_hosts(_even(6, 8), _slow_member), _patch()),
    Scenario("thin seed", _with_hosts(_even(8, 8), _thin_head), _patch()),
    Scenario("single-node sites", _even(12, 1), _patch()),
    Scenario("one site", _sizes(48), _patch()),
    Scenario("no labels", _even(6, 6, labels=False), _patch(), options=_WARM),
    Scenario("half behind NAT", _with_hosts(_even(6, 8), _behind_nat), _patch()),
)
