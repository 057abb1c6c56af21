"""Report: the tables and targets of an experiment, as text and as one JSON document."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median
from typing import Any

from targets import Target

from .baselines import Baseline
from .experiment import STEP_S, Outcome
from .plan import HEAD

MOST_COPIES = 1.1
MOST_DUPLICATES = 0.02
MOST_CONTROL = 0.01
FASTER = {"HTTP": 4.5, "libtorrent mesh": 2.0, "libtorrent gateways": 1.5}
"""By how much the last host has to be verified sooner than in each baseline."""


def ratio(outcome: Outcome) -> float:
    """Last host verified over the lower bound of the whole."""
    return max(outcome.verified_s.values()) / outcome.case.bound_s


def host_ratios(outcome: Outcome) -> dict[str, float]:
    """Each host's time over its own bound, 2 RTT included."""
    plan, size = outcome.case.plan, outcome.case.size_bytes
    return {
        name: seconds / (plan.bound_s(name, size) + 2 * plan.rtt_s(name))
        for name, seconds in outcome.verified_s.items()
    }


def copies(outcome: Outcome) -> dict[str, float]:
    """Bytes on the WAN links over what one host has to get: into each other site, and out of the head's."""
    home = outcome.case.plan.host(HEAD).site
    into = {
        f"into {site}": size / outcome.sent_bytes for site, size in outcome.traffic.into_site.items() if site != home
    }
    return into | {f"out of {home}": outcome.traffic.out_of_site[home] / outcome.sent_bytes}


def duplicate_share(outcome: Outcome) -> float:
    """Bytes on lanes beyond one copy for each host, over those copies. Hosts that were killed are left out."""
    wanted = outcome.sent_bytes * len(outcome.verified_s)
    came = sum(outcome.traffic.lane_into_host[name] for name in outcome.verified_s)
    return max(came - wanted, 0) / wanted


def control_share(outcome: Outcome) -> float:
    """Bytes on control connections over the copies that hosts have to get."""
    return outcome.traffic.control_bytes / (outcome.sent_bytes * len(outcome.verified_s))


def targets(outcome: Outcome) -> list[Target]:
    """What the case is held against."""
    found = []
    if outcome.case.most:
        found.append(Target("last verified", ratio(outcome), outcome.case.most, unit="x"))
        found += [Target(f"copies {where}", count, MOST_COPIES) for where, count in copies(outcome).items()]
        found.append(Target("duplicates", duplicate_share(outcome), MOST_DUPLICATES))
        found.append(Target("control", control_share(outcome), MOST_CONTROL))
    living = {host.name for host in outcome.case.plan.hosts} - outcome.case.killed - {HEAD}
    wrong = [name for name in sorted(living) if not outcome.identical.get(name, False)]
    found.append(Target("hosts without the trainer's bytes", len(wrong), 0))
    return found


def faster(outcome: Outcome, baselines: Sequence[Baseline]) -> list[Target]:
    """What the case is held against in its baselines."""
    last_s = max(outcome.verified_s.values())
    return [
        Target(f"faster than {each.name}", each.last_s / last_s, FASTER[each.name], at_most=False, unit="x")
        for each in baselines
    ]


def baselines_text(outcome: Outcome, baselines: Sequence[Baseline]) -> str:
    """The table of the baselines."""
    lines = [f"{'baseline':20}{'last host':>11}{'over bound':>12}{'over ours':>11}  copies"]
    last_s = max(outcome.verified_s.values())
    for each in baselines:
        copied = ", ".join(f"{where} {count:.2f}" for where, count in each.copies.items())
        over_bound, over_ours = each.last_s / outcome.case.bound_s, each.last_s / last_s
        lines.append(f"{each.name:20}{each.last_s:9.2f} s{over_bound:11.2f}x{over_ours:10.2f}x  {copied}")
    return "\n".join(lines)


def text(outcome: Outcome) -> str:
    """The table."""
    case = outcome.case
    ratios = host_ratios(outcome)
    lines = [
        f"{case.name}: {case.summary}; {outcome.congestion}, seed {case.plan.seed}",
        f"machine: {outcome.busy}",
    ]
    if outcome.busy.doubtful:
        lines.append("machine: TOO BUSY for figures to be trusted: run it again when other work has ended")
    lines += [
        "",
        f"announced {outcome.call_s:.2f} s after the call, encoded and signed {outcome.encode_s:.2f} s later",
        "",
        f"{'host':6}{'site':>6}{'committed':>11}{'verified':>10}{'own bound':>11}{'ratio':>8}  bytes",
    ]
    for host in case.plan.hosts:
        if host.name not in outcome.verified_s:
            continue
        name = host.name
        lines.append(
            f"{name:6}{host.site:>6}{outcome.committed_s[name]:9.2f} s{outcome.verified_s[name]:8.2f} s"
            f"{case.plan.bound_s(name, case.size_bytes) + 2 * case.plan.rtt_s(name):9.2f} s{ratios[name]:7.2f}x"
            f"  {'identical' if outcome.identical[name] else 'DIFFERENT'}"
        )
    ordered = sorted(ratios.values())
    last = (
        f"last committed {max(outcome.committed_s.values()):.2f} s, verified {max(outcome.verified_s.values()):.2f} s"
    )
    lines += [
        "",
        f"{last}; lower bound {case.bound_s:.2f} s: {ratio(outcome):.2f}x",
        f"by host over its own bound: p50 {median(ordered):.2f}x, max {ordered[-1]:.2f}x",
        "copies: " + ", ".join(f"{where} {count:.2f}" for where, count in copies(outcome).items()),
        f"duplicates {duplicate_share(outcome):.2%}, control {control_share(outcome):.2%} of the data",
    ]
    return "\n".join(lines)


def timeline(outcome: Outcome) -> str:
    """How full each WAN link was, step by step, in percent of its rate."""
    lines = [f"WAN links, percent full in steps of {STEP_S:g} s from the call on"]
    for name, rates in outcome.rates.items():
        site, _, direction = name.partition(" wan ")
        most = getattr(outcome.case.plan.site(site), direction)
        lines.append(f"{name:12}" + "".join(f"{rate / most * 100:5.0f}" for rate in rates))
    return "\n".join(lines)


def document(outcome: Outcome, baselines: Sequence[Baseline]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "baselines": [dataclasses.asdict(each) | {"ratio": each.last_s / outcome.case.bound_s} for each in baselines],
        "case": outcome.case.name,
        "seed": outcome.case.plan.seed,
        "congestion": outcome.congestion,
        "size_bytes": outcome.case.size_bytes,
        "sent_bytes": outcome.sent_bytes,
        "bound_s": outcome.case.bound_s,
        "ratio": ratio(outcome),
        "call_s": outcome.call_s,
        "encode_s": outcome.encode_s,
        "committed_s": dict(outcome.committed_s),
        "verified_s": dict(outcome.verified_s),
        "host_ratios": host_ratios(outcome),
        "identical": dict(outcome.identical),
        "copies": copies(outcome),
        "duplicate_share": duplicate_share(outcome),
        "control_share": control_share(outcome),
        "wan_bytes_per_s": {"step_s": STEP_S, **outcome.rates},
        "traffic": dataclasses.asdict(outcome.traffic),
        "machine": dataclasses.asdict(outcome.busy),
    }
