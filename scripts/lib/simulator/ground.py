"""Ground: the links of a map as they are laid in a network, and the paths over them."""

from __future__ import annotations

from .clock import Clock
from .network import Network, Path
from .places import Map, Patch
from .tcp import Tcp

_FINEST_S = 2.5e-4
_COARSEST_S = 2e-2


def step_of(map_: Map, patch: Patch) -> float:
    """Half of the time in which the fastest host takes a chunk, within reason: seconds."""
    chunk = patch.size / patch.chunks
    return min(max(chunk / max(host.down for host in map_.hosts) / 2, _FINEST_S), _COARSEST_S)


class Ground:
    """Every site's shared links and every host's own, in one network."""

    def __init__(self, map_: Map, clock: Clock, tcp: Tcp, step_s: float) -> None:
        self.map = map_
        self.network = Network(clock, tcp, step_s)
        self.site_links = [
            tuple(self.network.add_link(rate, map_.wan_buffer_s) for rate in (site.up, site.down))
            for site in map_.sites
        ]
        """Per site: numbers of its links (up, down)."""
        self._host_links = [
            tuple(self.network.add_link(rate, map_.access_buffer_s) for rate in (host.up, host.down))
            for host in map_.hosts
        ]

    def path(self, a: int, b: int) -> Path:
        """From host `a` to host `b` of the map."""
        map_ = self.map
        here, there = map_.hosts[a].site, map_.hosts[b].site
        delay_s = map_.one_way_s(a, b)
        up, down = self._host_links[a][0], self._host_links[b][1]
        if here == there:
            return Path((up, down), delay_s, 2 * delay_s, 0.0)
        return Path((up, self.site_links[here][0], self.site_links[there][1], down), delay_s, 2 * delay_s, map_.loss)
