"""Sites for nodes that were given none: those within a few milliseconds of each other share a label.

Each unlabelled node takes the least label among its own and those of its near unlabelled peers, so a label spreads
through a cluster, and stays when the node that it came from has left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .link import Link

NEAR_S: Final = 0.005
PREFIX: Final = "~"


def label_of(node: bytes, current: str, links: Iterable[Link]) -> str:
    """The label of an unlabelled node that now calls its site `current` ("" at first)."""
    own = PREFIX + node[:5].hex()
    near = [
        link.site
        for link in links
        if link.site.startswith(PREFIX) and link.min_rtt_s is not None and link.min_rtt_s < NEAR_S
    ]
    return min([own, *near, *([current] if current else [])])
