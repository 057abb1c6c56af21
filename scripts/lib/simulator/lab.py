"""Lab: the cases of `scripts/wan_lab`, as worlds, so that what is simulated can be held against what was measured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from wanlab.cases import case
from wanlab.plan import LAN_DELAY_S, Plan

from .places import Host, Map, Patch, Site, chunk_count
from .world import Options, World

FINDS_LOSS_S: Final = 2.0
"""After 1.4 to 2.5 s the hosts of T2 have changed from cubic to BBR in the lab (the head after 0.5 to 3.5 s)."""


def lab_map(plan: Plan) -> Map:
    """The same sites, hosts, delays, queues and loss."""
    names = [site.name for site in plan.sites]
    hosts = tuple(Host(names.index(host.site), host.up, host.down, LAN_DELAY_S / 2) for host in plan.hosts)
    return Map(
        tuple(Site(site.name, site.up, site.down) for site in plan.sites),
        hosts,
        tuple(tuple(0.0 if a == b else plan.delay_s(a, b) for b in names) for a in names),
        plan.loss,
        plan.wan_queue_s,
        plan.access_queue_s,
    )


def lab_case(name: str, seed: int, encode_rate: float) -> tuple[Map, Patch]:
    """Where T1, T2, T3 or T4 happens, and the full transition that travels. Raises ValueError for another name."""
    found = case(name, seed)
    size = found.size_bytes
    map_ = lab_map(found.plan)
    return map_, Patch(size, chunk_count(size, map_), model_size=size, encode_rate=encode_rate, full=True)


def lab_world(name: str, options: Options, encode_rate: float) -> World:
    """The case with its faults arranged."""
    found = case(name, options.seed)
    hosts = [host.name for host in found.plan.hosts]
    sites = [site.name for site in found.plan.sites]
    map_, patch = lab_case(name, options.seed, encode_rate)
    absent = frozenset(hosts.index(host) for host in found.absent)
    finds_loss_s = FINDS_LOSS_S if found.plan.loss else None
    options = replace(options, absent=absent, give_up_s=found.timeout_s, finds_loss_s=finds_loss_s)
    world = World(map_, patch, options)
    for fault in found.faults:
        match fault.what:
            case "cut":
                world.at(fault.at_s, partial(world.part, {sites.index(fault.whom)}))
            case "heal":
                world.at(fault.at_s, partial(world.part, ()))
            case "kill":
                world.at(fault.at_s, partial(world.kill_at, hosts.index(fault.whom)))
            case "join":
                world.at(fault.at_s, partial(world.join, hosts.index(fault.whom)))
            case _:
                raise ValueError(f"no fault {fault.what!r}")
    return world
