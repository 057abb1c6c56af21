"""Links: the model of the lab's network. Packets enter at a time, and leave later, or not at all.

A packet passes its host's access link, its site's WAN uplink, the way between the sites, the other site's WAN
downlink and the receiver's access link; within a site the two access links only. Each link is a queue in front of
a wire: a packet waits until those before it have left, and is dropped when more than the queue holds wait.

No clock and no sockets here: `enter` and `due` are told the time, in seconds of any monotonic clock.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Final

from .plan import Plan

_DESTINATION: Final = slice(16, 20)  # RFC 791, section 3.1


class Link:
    """One direction of one link, with its counters."""

    __slots__ = ("bytes", "dropped", "free_at_s", "name", "packets", "queue_bytes", "rate")

    def __init__(self, name: str, rate: float, queue_s: float, mtu: int) -> None:
        self.name = name
        self.rate = rate
        self.queue_bytes = max(rate * queue_s, 4.0 * mtu)
        self.free_at_s = 0.0
        self.bytes = 0  # that the link carried
        self.packets = 0
        self.dropped = 0  # packets that found the queue full

    def admit(self, size: int, at_s: float) -> float:
        """When the last bit of a packet has left, or 0.0 when the queue is full and the packet is dropped."""
        start_s = self.free_at_s
        if start_s < at_s:
            start_s = at_s
        elif (start_s - at_s) * self.rate > self.queue_bytes:
            self.dropped += 1
            return 0.0
        self.bytes += size
        self.packets += 1
        self.free_at_s = start_s + size / self.rate
        return self.free_at_s


@dataclass(slots=True)
class Way:
    """The way between two sites, one direction."""

    sites: tuple[str, str]
    delay_s: float
    loss: float
    cut: bool = False
    lost: int = 0
    """Packets, at random."""
    cut_off: int = 0
    """Packets, by a partition."""


Hop = tuple[Link, Way | None]
"""A link, and the way that follows it before the next link."""


class Network:
    """All links of a plan. Hosts are numbered as in `plan.hosts`."""

    def __init__(self, plan: Plan) -> None:
        self._rng = random.Random(plan.seed)  # noqa: S311 -- which packets are lost is no secret
        self._events: list[tuple[float, int, bytes, tuple[Hop, ...], int, int]] = []
        self._serial = 0
        numbers = range(len(plan.hosts))
        up = [Link(f"{host.name} up", host.up, plan.access_queue_s, plan.mtu) for host in plan.hosts]
        down = [Link(f"{host.name} down", host.down, plan.access_queue_s, plan.mtu) for host in plan.hosts]
        wan_up = {site.name: Link(f"{site.name} wan up", site.up, plan.wan_queue_s, plan.mtu) for site in plan.sites}
        wan_down = {
            site.name: Link(f"{site.name} wan down", site.down, plan.wan_queue_s, plan.mtu) for site in plan.sites
        }
        self.links = {link.name: link for link in (*up, *down, *wan_up.values(), *wan_down.values())}
        names = [site.name for site in plan.sites]
        self.ways = {
            (one, other): Way((one, other), plan.delay_s(one, other), plan.loss if one != other else 0.0)
            for one in names
            for other in names
        }
        addresses = {_packed(plan.address(host.name)): number for number, host in enumerate(plan.hosts)}
        self._paths: list[dict[bytes, tuple[tuple[Hop, ...], int]]] = [{} for _ in numbers]
        for source in numbers:
            for address, target in addresses.items():
                one, other = plan.hosts[source].site, plan.hosts[target].site
                way = self.ways[one, other]
                wan: tuple[Hop, ...] = ((wan_up[one], way), (wan_down[other], None)) if one != other else ()
                path = ((up[source], None if wan else way), *wan, (down[target], None))
                self._paths[source][address] = (path, target)

    def enter(self, source: int, packet: bytes, now_s: float) -> None:
        """Take a packet from host number `source`. One to nobody in the lab is dropped."""
        found = self._paths[source].get(packet[_DESTINATION])
        if found is not None:
            path, target = found
            self._pass(packet, path, 0, target, now_s)

    def due(self, now_s: float) -> list[tuple[int, bytes]]:
        """Packets that have arrived by now, each with the number of its host, in order."""
        events = self._events
        arrived: list[tuple[int, bytes]] = []
        while events and events[0][0] <= now_s:
            at_s, _, packet, path, index, target = heapq.heappop(events)
            if index == len(path):
                arrived.append((target, packet))
            else:
                # The packet is at this link at `at_s`, however late the clock is looked at: rates are exact.
                self._pass(packet, path, index, target, at_s)
        return arrived

    def next_s(self) -> float | None:
        """When `due` has something to do, None when nothing is under way."""
        return self._events[0][0] if self._events else None

    def _pass(self, packet: bytes, path: tuple[Hop, ...], index: int, target: int, at_s: float) -> None:
        """Send a packet over link number `index` of its path, and along the way behind it."""
        link, way = path[index]
        at_s = link.admit(len(packet), at_s)
        if not at_s:
            return
        if way is not None:
            if way.cut:
                way.cut_off += 1
                return
            if way.loss and self._rng.random() < way.loss:
                way.lost += 1
                return
            at_s += way.delay_s
        self._serial += 1
        heapq.heappush(self._events, (at_s, self._serial, packet, path, index + 1, target))

    # -- control --------------------------------------------------------------------------------------------

    def cut(self, site: str) -> None:
        """Part a site from all others. What is under way between them still arrives."""
        for (one, other), way in self.ways.items():
            way.cut = way.cut or (one != other and site in (one, other))

    def heal(self) -> None:
        """Join all sites again."""
        for way in self.ways.values():
            way.cut = False

    def set_loss(self, loss: float) -> None:
        """Lose this share of the packets between sites from now on."""
        for (one, other), way in self.ways.items():
            way.loss = loss if one != other else 0.0

    def set_rate(self, name: str, rate: float) -> None:
        """Change the rate of one link, bytes per second. What is queued there already leaves at the old rate."""
        link = self.links[name]
        link.queue_bytes *= rate / link.rate
        link.rate = rate

    def bytes(self) -> dict[str, int]:
        """Bytes that each link has carried."""
        return {link.name: link.bytes for link in self.links.values()}

    def counters(self) -> dict[str, dict[str, int]]:
        """Bytes, packets and dropped packets by link, and lost and cut packets by way."""
        links = {
            link.name: {"bytes": link.bytes, "packets": link.packets, "dropped": link.dropped}
            for link in self.links.values()
        }
        ways = {
            f"{one} to {other}": {"lost": way.lost, "cut": way.cut_off}
            for (one, other), way in self.ways.items()
            if one != other
        }
        return links | ways


def _packed(address: str) -> bytes:
    return bytes(int(part) for part in address.split("."))
