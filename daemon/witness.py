"""Witness: sees what the fleet brings and what the replicas commit, and notes it in the lives of versions."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from ..protocol.effects import HeadMoved, RouteReady
from ..protocol.manifest import Manifest
from .fleet.fleet import Fleet, LocalEffect
from .fleet.intake import ChunkStored
from .lives import Lives, Moment
from .replica import Replica

_KEPT: Final = 256
"""Attempts remembered as begun."""


class Witness:
    """Notes moments in `lives`. Its methods are called on the event loop."""

    def __init__(self, fleet: Fleet, lives: Lives) -> None:
        self._fleet = fleet
        self._lives = lives
        self._begun: OrderedDict[bytes, None] = OrderedDict()

    def saw(self, effect: LocalEffect) -> None:
        """Something came from the fleet."""
        gossip = self._fleet.swarm.gossip
        match effect:
            case ChunkStored(name):
                for attempt in self._fleet.swarm.fetch.stock.attempts_of(name):
                    if attempt not in self._begun:
                        self._begin(attempt)
            case HeadMoved(stream):
                self._note(gossip.manifests.get(gossip.head_digest(stream) or b""), Moment.ANNOUNCED)
            case RouteReady(_, route) if route:
                self._note(gossip.manifests.get(route[-1].target), Moment.COMPLETE)
            case _:
                pass

    async def follow(self, replica: Replica) -> None:
        """Note what becomes of one stream's versions until cancelled. What an earlier run committed is no news."""
        manifests = self._fleet.swarm.gossip.manifests
        replica.rebuilt = lambda manifest: self._note(manifests.get(manifest), Moment.REBUILT)
        before = current.manifest if (current := replica.current()) else None
        while True:
            changed, current = replica.changes(), replica.current()
            if current is not None and current.manifest != before:
                self._note(manifests.get(current.manifest), Moment.COMMITTED)
                if current.proven:
                    self._note(manifests.get(current.manifest), Moment.VERIFIED)
            await changed.wait()

    def _begin(self, attempt: bytes) -> None:
        """The first chunk of an attempt has come. A skip or full transition brings bytes of the version it leads to."""
        self._begun[attempt] = None
        if len(self._begun) > _KEPT:
            self._begun.popitem(last=False)
        series = self._fleet.swarm.fetch.stock.series[attempt]
        target = series.transition.target if series.transition else b""
        manifest = self._fleet.swarm.gossip.manifests.get(target)
        trace = manifest.attempt if manifest is not None else attempt
        epoch, version = series.version
        self._lives.note(series.stream, epoch, version, trace.hex(), Moment.FIRST_BYTE)

    def _note(self, manifest: Manifest | None, moment: Moment) -> None:
        if manifest is not None:
            self._lives.note(manifest.stream, manifest.epoch, manifest.version, manifest.attempt.hex(), moment)
