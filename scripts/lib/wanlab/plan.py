"""Plan: the sites, hosts and links of one lab, and the lower bound that they allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

BITS = 8
MBIT = 1e6 / BITS
"""Bytes per second of one Mbit/s."""

HEAD = "head"
LAN_DELAY_S = 0.0002


@dataclass(frozen=True, slots=True)
class Host:
    """One host: its name, its site, and its own rates in bytes per second."""

    name: str
    site: str
    up: float
    down: float


@dataclass(frozen=True, slots=True)
class Site:
    """One site: the rates of the WAN links that its hosts share, in bytes per second."""

    name: str
    up: float
    down: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What the lab is made of. `delays_s` holds one-way delays by pair of sites, in either order."""

    sites: tuple[Site, ...]
    hosts: tuple[Host, ...]
    delays_s: Mapping[tuple[str, str], float]
    loss: float = 0.0
    """Share of packets lost on the way between two sites."""
    wan_queue_s: float = 0.1
    access_queue_s: float = 0.05
    """Length of the queues, as the time they take to empty."""
    mtu: int = 9000
    seed: int = 1

    def site(self, name: str) -> Site:
        """The site with this name."""
        return next(site for site in self.sites if site.name == name)

    def host(self, name: str) -> Host:
        """The host with this name."""
        return next(host for host in self.hosts if host.name == name)

    def delay_s(self, one: str, other: str) -> float:
        """One-way delay between two sites, or within one."""
        if one == other:
            return LAN_DELAY_S
        return self.delays_s[(one, other)] if (one, other) in self.delays_s else self.delays_s[(other, one)]

    def address(self, name: str) -> str:
        """A host's IPv4 address: 10.66.SITE.HOST."""
        host = self.host(name)
        site = [site.name for site in self.sites].index(host.site)
        mates = [each.name for each in self.hosts if each.site == host.site]
        return f"10.66.{site + 1}.{mates.index(name) + 1}"

    def bound_s(self, name: str, size_bytes: int) -> float:
        """Least time in which `size_bytes` can come from the head to one host, without any round trip.

        The bytes over the smallest cut on the way: the head's own link, the WAN links, the host's own link.
        """
        host, head = self.host(name), self.host(HEAD)
        cuts = [head.up, host.down]
        if host.site != head.site:
            cuts += [self.site(head.site).up, self.site(host.site).down]
        return size_bytes / min(cuts)

    def rtt_s(self, name: str) -> float:
        """Round-trip time between the head and a host."""
        return 2 * self.delay_s(self.host(name).site, self.host(HEAD).site)


def three_sites(
    *,
    wan: float,
    access: float,
    delays_s: tuple[float, float, float],
    loss: float = 0.0,
    spare: str = "",
    seed: int = 1,
) -> Plan:
    """The lab of T1 to T4: the head and 2 hosts in site a, 3 hosts each in b and c.

    Rates in bytes per second; `delays_s` one way for a-b, a-c and b-c. `spare` names a site that gets one host more.
    """
    names = ("a", "b", "c")
    members = {"a": [HEAD, "a1", "a2"], "b": ["b1", "b2", "b3"], "c": ["c1", "c2", "c3"]}
    if spare:
        members[spare].append(f"{spare}{len(members[spare]) + 1}")
    return Plan(
        tuple(Site(name, wan, wan) for name in names),
        tuple(Host(host, name, access, access) for name in names for host in members[name]),
        dict(zip(combinations(names, 2), delays_s, strict=True)),
        loss=loss,
        seed=seed,
    )
