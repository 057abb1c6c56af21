"""Places: the sites and hosts of a world, and the seeded ways to draw them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from patchswarm.protocol.roster import border_count, chunks_for, most_borders

MBIT: Final = 1e6 / 8
GBIT: Final = 1e9 / 8
FAR_S: Final = 0.1
"""One-way delay between the two most distant sites that `map_of_sites` can draw."""

NEAR_S: Final = 0.005
TRICKLE_RATE: Final = 20_000.0
"""Bytes per second."""


class Lie(StrEnum):
    """How a member that means harm behaves; it is a member all the same."""

    NONE = ""
    WRONG_BYTES = "wrong bytes"  # serves every chunk damaged
    FALSE_HAVE = "false have"  # says it has everything, and rejects
    SILENCE = "silence"  # says what it has, and answers no request
    FALSE_SILENCE = "false silence"  # says it has everything, and answers no request
    STALL = "stall"  # sends half of each chunk, and then nothing
    TRICKLE = "trickle"  # sends chunks at TRICKLE_RATE


@dataclass(frozen=True, slots=True)
class Site:
    """One site: its name in node records ("" for hosts without a label) and its shared links, bytes per second."""

    label: str
    up: float
    down: float


@dataclass(frozen=True, slots=True)
class Host:
    """One host. Rates in bytes per second; `delay_s` is from the host to its site's border."""

    site: int
    up: float
    down: float
    delay_s: float = 1e-4
    nat: bool = False
    lie: Lie = Lie.NONE
    verify_rate: float = 2e9
    apply_rate: float = 1e9
    known_share: float = 1.0
    """Part of the other members that it knows of at the start."""


@dataclass(frozen=True, slots=True)
class Map:
    """Everything that stands still: host 0 is the head. `delay_s[a][b]` is one way between two sites."""

    sites: tuple[Site, ...]
    hosts: tuple[Host, ...]
    delay_s: tuple[tuple[float, ...], ...]
    loss: float = 0.0
    """Share of packets lost on the way between two sites."""
    wan_buffer_s: float = 0.05
    access_buffer_s: float = 0.02

    def one_way_s(self, a: int, b: int) -> float:
        """Propagation from host `a` to host `b`."""
        first, second = self.hosts[a], self.hosts[b]
        return first.delay_s + second.delay_s + self.delay_s[first.site][second.site]


def map_of_sites(
    members: Iterable[int],
    *,
    wan: float,
    access: float,
    seed: int,
    loss: float = 0.0,
    labels: bool = True,
) -> Map:
    """Sites with `members` hosts each, at random places, all links alike. The head is one more host of the first."""
    rng = random.Random(seed)  # noqa: S311
    counts = list(members)
    places = [(rng.random(), rng.random()) for _ in counts]
    delay_s = tuple(
        tuple(0.0 if a == b else NEAR_S + (FAR_S - NEAR_S) * math.dist(a, b) / math.sqrt(2) for b in places)
        for a in places
    )
    sites = tuple(Site(f"site-{at}" if labels else "", wan, wan) for at in range(len(counts)))
    hosts = [Host(0, access, access)]
    for at, count in enumerate(counts):
        hosts += [Host(at, access, access, rng.uniform(5e-5, 3e-4)) for _ in range(count - (at == 0))]
    return Map(sites, tuple(hosts), delay_s, loss)


def mixed(plain: Map, seed: int, *, slow_hosts: float = 0.1, slow_sites: float = 0.2, factor: float = 5.0) -> Map:
    """The same map with one host in ten and one site in five slower, neither of them the head's."""
    rng = random.Random(seed)  # noqa: S311
    sites, hosts = list(plain.sites), list(plain.hosts)
    for at in rng.sample(range(1, len(sites)), round(slow_sites * len(sites))):
        sites[at] = replace(sites[at], up=sites[at].up / factor, down=sites[at].down / factor)
    for at in rng.sample(range(1, len(hosts)), round(slow_hosts * len(hosts))):
        hosts[at] = replace(hosts[at], up=hosts[at].up / factor, down=hosts[at].down / factor)
    return replace(plain, sites=tuple(sites), hosts=tuple(hosts))


@dataclass(frozen=True, slots=True)
class Patch:
    """What is published: sizes in bytes. Chunks are alike but for a few percent."""

    size: int
    chunks: int
    model_size: int = field(default=0)
    encode_rate: float = 1e9
    """Bytes of patch that the head encodes per second; chunks leave as they are made."""
    full: bool = False
    """A full transition, from nothing; else hosts hold the version before."""


def chunk_count(size: int, map_: Map) -> int:
    """Chunks of a patch by daemon/making's rule."""
    members = Counter(map_.sites[host.site].label for host in map_.hosts[1:])
    home = map_.sites[map_.hosts[0].site].label
    borders = (
        border_count(count, most_borders(len(members), count, home=site == home)) for site, count in members.items()
    )
    chunk = min(max(size / chunks_for(borders), 32 * 1024), 4 * 1024 * 1024)
    return max(1, math.ceil(size / chunk))
