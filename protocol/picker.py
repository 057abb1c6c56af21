"""Picker: which missing chunk to ask from which peer next.

Nearest first: peers of the same site, then by round-trip time, then by what is already asked of them. Each peer
is asked for no more bytes at once than its window. Where several chunks could be asked, a random one is, so that
the members of a site fetch different ones and can exchange them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .link import Link
from .messages import META_ORDINAL
from .ranges import iterate
from .series import Series

WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Bytes asked of one peer at a time."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One request to send."""

    link: Link
    series: Series
    ordinal: int


def pick(
    series: Sequence[Series],
    lists: Sequence[Series],
    links: Iterable[Link],
    under_way: set[bytes],
    site: str,
    rng: random.Random,
) -> list[Pick]:
    """Requests to send now.

    `series` in order of urgency; of those in `lists` only the blobs are wanted. Chunks `under_way`
    are left alone; the picked ones are added to it. The caller sends and notes each request.
    """
    picks: list[Pick] = []
    ready = sorted(
        (link for link in links if link.record is not None and link.inflight_bytes < WINDOW_BYTES),
        key=lambda link: (link.strikes, link.record is None or link.record.site != site, link.srtt_s or 1.0),
    )
    room = {link.number: WINDOW_BYTES - link.inflight_bytes for link in ready}
    todo = [(one, one.missing_meta(), 0) for one in lists]
    todo += [(one, one.missing_meta(), one.missing_data()) for one in series]
    for one, meta, data in todo:
        if not meta and not data:
            continue
        for link in ready:
            offered = link.offers(one.attempt)
            if offered is None or room[link.number] <= 0:
                continue
            wanted = [META_ORDINAL + index for index in _shuffled(offered.meta & meta, rng)]
            wanted += _shuffled(offered.data & data, rng)
            for ordinal in wanted:
                name, size = one.entry(ordinal)
                if name in under_way or name in link.by_name:
                    continue
                under_way.add(name)
                room[link.number] -= size
                picks.append(Pick(link, one, ordinal))
                if room[link.number] <= 0:
                    break
    return picks


def _shuffled(bitmap: int, rng: random.Random) -> list[int]:
    """Ordinals of `bitmap` in rising order from a random start, around the end."""
    ordinals = list(iterate(bitmap))
    if len(ordinals) < 2:
        return ordinals
    start = rng.randrange(len(ordinals))
    return ordinals[start:] + ordinals[:start]
