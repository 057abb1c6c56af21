"""View: what this host may want to know of the fleet. Questions only; nothing here changes anything out there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from ...protocol.manifest import Manifest, Subject, Transition
from ...protocol.series import Series
from ...protocol.swarm import Swarm


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a stream is behind."""

    versions: int
    seconds: float
    """Since the oldest version that is not committed here was announced."""


class View:
    """Answers from the protocol core's state."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._heard: dict[str, dict[tuple[int, int], float]] = {}  # when each version not committed here was first seen

    def manifest(self, name: bytes) -> Manifest | None:
        """The manifest with this digest, if it is known."""
        return self._swarm.gossip.manifests.get(name)

    def transition_to(self, stream: str, manifest: bytes) -> Transition | None:
        """A transition that leads to a version and whose lists are here: a step if there is one."""
        found = [each for each in self.listed(stream) if each.target == manifest]
        return min(found, key=lambda each: each.kind, default=None)

    def listed(self, stream: str) -> list[Transition]:
        """Transitions of a stream whose lists (layout, digest table, index) are all in the store."""
        series = self._swarm.fetch.stock.series
        return [
            each
            for each in self._swarm.gossip.routes(stream)
            if each.attempt in series and not series[each.attempt].missing_meta()
        ]

    def complete(self, stream: str) -> list[Transition]:
        """Transitions of a stream of which every chunk is in the store, lists included."""
        series = self._swarm.fetch.stock.series
        return [
            each
            for each in self._swarm.gossip.routes(stream)
            if each.attempt in series and series[each.attempt].complete()
        ]

    def lists_pending(self, stream: str) -> bool:
        """Whether lists are being fetched that a local base could be compared with."""
        wanted = self._swarm.fetch.routing.wanted_lists()
        return any(each.stream == stream and each.missing_meta() for each in wanted)

    def lag(self, stream: str, current: tuple[int, int] | None) -> Lag:
        """How far (epoch, version) `current`, None for nothing, is behind the newest announced version."""
        newer = {
            (header.epoch, header.version)
            for header in self._swarm.gossip.headers(stream)
            if header.subject is Subject.MANIFEST and (current is None or (header.epoch, header.version) > current)
        }
        heard = self._heard.setdefault(stream, {})
        for version in [version for version in heard if version not in newer]:
            del heard[version]
        now_s = time.monotonic()
        for version in newer:
            heard.setdefault(version, now_s)
        return Lag(len(newer), now_s - min(heard.values(), default=now_s))

    def planned(self, stream: str) -> frozenset[bytes]:
        """Attempts that the route to the head goes over."""
        following = self._swarm.fetch.routing.following.get(stream)
        return frozenset(leg.attempt for leg in (following.route or ())) if following else frozenset()

    def is_usable(self, stream: str, route: Iterable[Transition]) -> bool:
        """Whether no leg of a route was found bad."""
        following = self._swarm.fetch.routing.following.get(stream)
        return following is None or all(leg.attempt not in following.bad for leg in route)

    def fetching(self, stream: str) -> tuple[int, int, int] | None:
        """(version, bytes here, bytes in all) of the route that is being fetched, None when nothing is."""
        series = self._swarm.fetch.stock.series
        legs = [series[attempt] for attempt in self.planned(stream) if attempt in series]
        total = sum(part.size for leg in legs if leg.transition for part in leg.transition.parts)
        missing = sum(leg.missing_bytes() for leg in legs)
        if not missing:
            return None
        return max(leg.version[1] for leg in legs), max(total - missing, 0), total

    def coming(self, stream: str, current: bytes) -> Series | None:
        """The next version's series, once its layout is here: what the route to the head is, or what a head is making.

        It starts from the version `current`, or from nothing when that is empty.
        """
        table = self._swarm.fetch.stock.series
        following = self._swarm.fetch.routing.following.get(stream)
        if following is not None and following.route:
            leg = following.route[0]
            found = [table[leg.attempt]] if leg.attempt in table and leg.source == current else []
        else:
            found = [
                each
                for each in table.values()
                if each.stream == stream and each.transition is None and each.source == current
            ]
        ready = [each for each in found if not each.lacks_layout() and not self._is_ours(each)]
        return max(ready, key=lambda each: each.version, default=None)

    def _is_ours(self, series: Series) -> bool:
        of = series.transition or series.opening
        return of is not None and any(part.node == self._swarm.node for part in of.parts)

    def way_in_bytes(self, stream: str) -> int | None:
        """Bytes still to fetch of the route to the head, None when there is none that peers offer."""
        return self._swarm.fetch.routing.way_in_bytes(stream)

    def has_chunks(self, transition: Transition) -> bool:
        """Whether any chunk of a transition is here."""
        series = self._swarm.fetch.stock.series.get(transition.attempt)
        return series is not None and bool(series.have.data)

    def sites(self) -> int:
        """Sites that nodes have named, at least one."""
        return max(1, len({record.site for record in self._swarm.gossip.nodes.values()}))
