"""Watch: what an operator should know of the streams: frozen or foreign heads, and what no publisher says."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

from ..protocol.alarms import alarms
from .fleet.fleet import Fleet
from .publisher import Publisher

FROZEN_S: Final = 60.0
"""Age of the publisher's last word from which on it is an alarm: six beacons are missing then."""


class Watch:
    """Questions about the streams of one node."""

    def __init__(self, fleet: Fleet, publisher: Publisher) -> None:
        self._fleet = fleet
        self._publisher = publisher
        self._since_s = time.monotonic()

    def head_age_s(self, stream: str) -> float | None:
        """Seconds since the publisher said which version is the newest, by its clock and ours; None before any word."""
        beacon = self._fleet.swarm.gossip.beacons.get(stream)
        return None if beacon is None else max(0.0, time.time() - beacon[0].at)

    def problems(self, streams: Iterable[str]) -> Iterator[str]:
        """What is wrong, one line each."""
        for stream in sorted(streams):
            for problem in self._of(stream):
                yield f"stream {stream}: {problem}"

    def _of(self, stream: str) -> Iterator[str]:
        gossip = self._fleet.swarm.gossip
        record, header = gossip.streams.get(stream), gossip.head_header(stream)
        age_s = self.head_age_s(stream)
        silent_s = time.monotonic() - self._since_s
        if age_s is not None and age_s > FROZEN_S:
            yield (
                f"its publisher was last heard {age_s:.0f} s ago: it stopped, this node is cut off from it, or a clock "
                "is wrong; what is served may be old"
            )
        elif age_s is None and header is not None and silent_s > FROZEN_S:
            yield (
                f"its publisher has not been heard for {silent_s:.0f} s, since this node started; "
                "what is served may be old"
            )
        beacon = gossip.beacons.get(stream)
        if beacon is not None and age_s is not None and age_s <= FROZEN_S:
            newest = (header.epoch, header.version) if header else (0, 0)
            if (beacon[0].epoch, beacon[0].version) > newest:
                yield f"its publisher has version {beacon[0].version}, but nobody tells this node more of it"
        if stream in gossip.contradictions:
            yield (
                "the CA has named two publishers in one epoch, and nodes may follow one or the other: "
                "'patchswarm publisher adopt' on the right one begins a new epoch"
            )
        if record is None:
            return
        yield from alarms(gossip.headers(stream), record.epoch)
        mark = self._publisher.newest_made(stream)
        if mark is not None and header is not None and (header.epoch, header.version) > mark:
            yield (
                f"version {header.version} is signed with this node's publisher key, and not by this node: the key is "
                "stolen, or the home is a copy or an old backup; 'patchswarm publisher rotate' takes it from others"
            )
