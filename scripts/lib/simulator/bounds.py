"""Bounds: the least time in which any policy could bring the bytes to one host.

Bytes over the smallest cut on the host's path, plus two round trips to the head (one to hear of it, one to ask).
"""

from __future__ import annotations

from .places import Map


def lower_bound_s(map_: Map, host: int, size: int) -> float:
    """Seconds from the publish until `host` can have `size` bytes. Cuts: see DESIGN.md, "The swarm".

    The head's access uplink; the host's own downlink; the rest of a site can only get what comes in over its WAN
    link and what its members' uplinks give. For a host at another site also the uplink of the head's site, the
    downlink of the host's, and all sites' uplinks together against one copy into each site.
    """
    head, me = map_.hosts[0], map_.hosts[host]
    home, mine = map_.sites[head.site], map_.sites[me.site]
    others = [each for at, each in enumerate(map_.hosts) if at]
    seconds = [size / head.up, size / me.down, len(others) * size / sum(each.up for each in map_.hosts)]
    neighbours = [each for each in others if each.site == me.site]
    inside = sum(each.up for each in neighbours) + (head.up if me.site == head.site else mine.down)
    seconds.append(len(neighbours) * size / inside)
    if me.site != head.site:
        receiving = {each.site for each in others} - {head.site}
        sending = {each.site for each in map_.hosts}
        seconds += [size / home.up, size / mine.down]
        seconds.append(len(receiving) * size / sum(map_.sites[site].up for site in sending))
    return max(seconds) + 4 * map_.one_way_s(0, host)
