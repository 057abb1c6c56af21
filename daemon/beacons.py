"""Beacons: the head says every few seconds which version is the newest: so all others can tell quiet from frozen."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..protocol.manifest import Beacon
from ..protocol.messages import ObjectKind
from ..protocol.signed import sign
from ..storage.errors import StorageError
from .fleet.fleet import Fleet
from .publisher import Publisher

EVERY_S: Final = 10.0

_log: Final = structlog.get_logger(__name__)


class Beacons:
    """Signs a beacon for each stream that this node publishes. `run` is its task."""

    def __init__(self, publisher: Publisher, fleet: Fleet, key: Ed25519PrivateKey) -> None:
        self._publisher = publisher
        self._fleet = fleet
        self._key = key

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            try:
                self.say(int(time.time()))
            except (StorageError, OSError) as error:  # a catalog that cannot be read just now ends no daemon
                _log.warning("beacon not said", reason=str(error))
            await asyncio.sleep(EVERY_S)

    def say(self, unix_s: int) -> None:
        """Say it once."""
        if self._fleet.standing.is_copied:
            return
        gossip = self._fleet.swarm.gossip
        for stream, record in list(gossip.streams.items()):
            head = gossip.head_header(stream)
            if head is None or head.epoch != record.epoch or not self._publisher.owns(stream):
                continue
            made = self._publisher.newest_made(stream)
            if made is not None and made < (head.epoch, head.version):
                continue  # somebody else's: not to be confirmed
            beacon = Beacon(stream, head.epoch, head.version, head.digest, unix_s)
            self._fleet.publish(ObjectKind.BEACON, sign(beacon, self._key))
