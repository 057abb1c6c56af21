"""Reach: where this node dials when it has only a peer's word for it.

A member says of itself under which addresses it is reached, and all others dial there: whoever has a membership could
have a fleet knock at loopback services, at a provider's metadata server, or all at one victim. So what is not in this
node's own configuration is looked up once, checked, dialled as the number that was checked, and not too often.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ..config import Node
from ..units import parse_address

BURST: Final = 32
"""Dials to one host in a row; then one every EVERY_S. Several nodes may stand behind one address."""

EVERY_S: Final = 2.0
MAX_HOSTS: Final = 4096
"""Hosts of which dials are counted; the one dialled longest ago is forgotten first."""

METADATA: Final = frozenset(
    ipaddress.ip_address(each) for each in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192")
)
"""Where providers answer their guests with credentials."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class ReachError(OSError):
    """An address that is not dialled."""


class Reach:
    """Says which addresses are dialled. `node` is this node's configuration."""

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        own = [parse_address(address)[0] for address in (*node.addresses, *((node.listen,) if node.listen else ()))]
        seeds = [parse_address(address)[0] for address in node.seeds]
        self._seeds = frozenset(node.seeds)
        self._networks = tuple(ipaddress.ip_network(each) for each in node.dial_networks)
        self._on_loopback = any(_is_loopback(host) for host in (*own, *seeds))
        self._clock = clock
        self._dialled: OrderedDict[str, tuple[float, float]] = OrderedDict()  # host -> (tokens left, when)

    async def resolve(self, address: str) -> tuple[str, int]:
        """(IP address, port) to dial for HOST:PORT. Raises ReachError, another OSError, or ValueError."""
        host, port = parse_address(address)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        places = [str(each[4][0]) for each in found]
        if address in self._seeds:
            return places[0], port
        for place in places:
            ip = _plain(ipaddress.ip_address(place.partition("%")[0]))
            if self.allows(ip):
                self._count(ip)
                return place, port
        raise ReachError(f"{address} is no place that a peer may send this node to")

    def allows(self, ip: Address) -> bool:
        """Whether a peer may send this node there."""
        if any(ip in network for network in self._networks):
            return True
        if ip.is_loopback:
            return self._on_loopback
        return not (ip in METADATA or ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved)

    def _count(self, ip: Address) -> None:
        """Take one dial off what a host may get. Raises ReachError when it has had enough."""
        if ip.is_loopback:
            return  # whoever lives there has been allowed, and is many
        host, now_s = str(ip), self._clock()
        left, at_s = self._dialled.pop(host, (float(BURST), now_s))
        left = min(float(BURST), left + (now_s - at_s) / EVERY_S)
        if left < 1:
            self._dialled[host] = left, now_s
            raise ReachError(f"{host} was dialled too often")
        self._dialled[host] = left - 1, now_s
        while len(self._dialled) > MAX_HOSTS:
            self._dialled.popitem(last=False)


def _plain(ip: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, or itself."""
    if isinstance(ip, ipaddress.IPv6Address):
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
