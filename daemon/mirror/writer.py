"""Writer: the publisher's copy of its streams in a mirror. Runs behind the publishes and never holds one up.

What is to be there is what is complete here. Chunks go first, then the list that names them; what retention removed
leaves the list first and goes a while later. All state is in the mirror itself: after a restart it is listed again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ...protocol.chain import plan_route
from ...protocol.errors import ProtocolError, SealError
from ...protocol.manifest import MirrorRecord, Route, Transition
from ...protocol.messages import ObjectKind
from ...protocol.mirror import (
    NONCE_BYTES,
    LaterKeyError,
    chunk_path,
    chunks_path,
    list_path,
    seal_list,
)
from ...storage.errors import StorageError
from ..desk import Desk, signed
from .bucket import Bucket, BucketError

_log: Final = structlog.get_logger(__name__)

TURN_S: Final = 0.5
GRACE_S: Final = 120.0
"""For so long a chunk stays after the list has ceased to name it: somebody may be reading by an earlier list."""

BEACON_S: Final = 30.0
"""How old the list's beacon may be: it tells those who read nothing else a quiet publisher from an old list."""

MAX_WAIT_S: Final = 60.0
UPLOADS: Final = 4


@dataclass(slots=True)
class _Place:
    """What is known of one stream's place in the mirror."""

    record: MirrorRecord
    sizes: dict[bytes, int]  # chunks there
    said: frozenset[bytes] | None = None  # attempts in the list, as this daemon wrote it
    beacon_at: int = 0  # Unix second of the beacon in it
    unnamed: dict[bytes, float] = field(default_factory=dict)  # chunks there that the list does not name, since when


class Writer:
    """Keeps a mirror of the streams that `owns` names. `look` reads a stream's list and learns from it."""

    def __init__(
        self,
        bucket: Bucket,
        desk: Desk,
        key: Ed25519PrivateKey,
        owns: Callable[[str], bool],
        look: Callable[[str, MirrorRecord], Awaitable[None]],
    ) -> None:
        self._bucket = bucket
        self._desk = desk
        self._key = key
        self._owns = owns
        self._look = look
        self._places: dict[str, _Place] = {}
        self._again_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Mirror until cancelled."""
        while True:
            fleet = self._desk.fleet
            for stream in [each for each in fleet.swarm.gossip.streams if self._owns(each)]:
                # Two daemons with one home would write over each other.
                if time.monotonic() >= self._again_s.get(stream, 0.0) and not fleet.standing.is_copied:
                    await self._try(stream)
            await asyncio.sleep(TURN_S)

    def problems(self) -> list[str]:
        """Streams that are not mirrored, and why."""
        return [f"stream {stream} is not mirrored: {what}" for stream, what in self._said.items()]

    async def _try(self, stream: str) -> None:
        try:
            await self._bring(stream)
        except (BucketError, ProtocolError, StorageError) as error:
            failures = self._failures[stream] = self._failures.get(stream, 0) + 1
            self._again_s[stream] = time.monotonic() + min(2.0**failures, MAX_WAIT_S)
            if self._said.get(stream) != str(error):
                self._said[stream] = str(error)
                _log.warning("not mirrored; tried again", stream=stream, reason=str(error))
        else:
            self._failures.pop(stream, None)
            self._said.pop(stream, None)

    async def _bring(self, stream: str) -> None:
        """Have the mirror hold what is complete here. Raises BucketError, ProtocolError and StorageError."""
        transitions = self._complete(stream)
        if not transitions:
            return
        place = await self._place(stream)
        transitions = self._complete(stream)  # the list may have told of more
        if not transitions or self._is_done(stream, place, transitions):
            return
        sizes = self._sizes(transitions)
        missing = [name for name, size in sizes.items() if place.sizes.get(name) != size]
        await self._upload(place, missing)
        if any(place.sizes.get(name) != size for name, size in sizes.items()):
            return  # some were deleted here meanwhile: another look
        await self._say(stream, place, transitions)
        await self._clear(place, sizes)

    def _is_done(self, stream: str, place: _Place, transitions: list[Transition]) -> bool:
        """Whether everything is as it should be: looked at twice a second, so without counting chunks."""
        named = frozenset(each.attempt for each in transitions)
        return named == place.said and not place.unnamed and not self._is_old(stream, place)

    def _is_old(self, stream: str, place: _Place) -> bool:
        """Whether the list's beacon is to be replaced by a newer one."""
        beacon = self._desk.fleet.swarm.gossip.beacons.get(stream)
        return beacon is not None and beacon[0].at - place.beacon_at >= BEACON_S

    def _complete(self, stream: str) -> list[Transition]:
        """Transitions of which every chunk is here, if they lead to the newest version: else nothing is touched."""
        fleet = self._desk.fleet
        head = fleet.swarm.gossip.head_digest(stream)
        here = fleet.view.complete(stream)
        bases = frozenset(each.target for each in here if each.kind is Route.BASE)
        if head is None or plan_route(bases, head, here, lambda each: sum(part.size for part in each.parts)) is None:
            return []
        return here

    async def _place(self, stream: str) -> _Place:
        """The stream's place, seen at first for what is in it already."""
        record = self._record(stream)
        place = self._places.get(stream)
        if place is None:
            try:
                # A head that was restored from a backup learns here what it had published since.
                await self._look(stream, record)
            except LaterKeyError:
                raise  # somebody else is the publisher now
            except SealError as error:
                _log.warning("list in the mirror is written anew", stream=stream, reason=str(error))
            found = await self._bucket.sizes(chunks_path(record))
            place = self._places[stream] = _Place(record, _by_name(found))
        elif place.record != record:
            place.record, place.said = record, None
        return place

    def _record(self, stream: str) -> MirrorRecord:
        """Place and key of the mirror; another key when the epoch is new or a member was shut out since."""
        gossip = self._desk.fleet.swarm.gossip
        known, epoch, revoked = gossip.mirrors.get(stream), gossip.streams[stream].epoch, gossip.members.revoked
        if known is None or known.epoch != epoch or known.serial < revoked:
            place = secrets.token_bytes(16) if known is None else known.place
            record = MirrorRecord(stream, epoch, revoked, place, secrets.token_bytes(32))
            self._desk.announce([signed(ObjectKind.MIRROR, record, self._key)])
        return gossip.mirrors[stream]

    def _sizes(self, transitions: Iterable[Transition]) -> dict[bytes, int]:
        """Every chunk of these transitions, lists included, with its size; those of the oldest version first."""
        series = self._desk.fleet.swarm.fetch.stock.series
        ordered = sorted(transitions, key=lambda each: (each.epoch, each.version, each.kind))
        mine = [series[each.attempt] for each in ordered]
        return {name: size for each in mine for name, size in (*each.meta, *each.chunks.values())}

    async def _upload(self, place: _Place, names: list[bytes]) -> None:
        """Copy chunks, a few at a time, within the upload limit. Raises the first BucketError."""
        if not names:
            return
        waiting = iter(names)
        errors: list[BucketError] = []

        async def work() -> None:
            for name in waiting:
                data = await self._desk.fleet.load(name)
                if data is None or errors:
                    return
                try:
                    await self._bucket.put(chunk_path(place.record, name), data)
                except BucketError as error:
                    errors.append(error)
                    return
                place.sizes[name] = len(data)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(UPLOADS, len(names))):
                tasks.create_task(work())
        if errors:
            raise errors[0]

    async def _say(self, stream: str, place: _Place, transitions: list[Transition]) -> None:
        """Write the list, if it says something else than it did."""
        gossip = self._desk.fleet.swarm.gossip
        attempts = frozenset(each.attempt for each in transitions)
        if attempts == place.said and not self._is_old(stream, place):
            return
        bodies = {name for name, each in gossip.transitions.items() if each.attempt in attempts}
        objects = gossip.words_for(stream, bodies | {each.target for each in transitions})
        beacon = gossip.beacons.get(stream)
        if beacon is not None:
            objects.append((ObjectKind.BEACON, beacon[1]))
        sealed = await asyncio.to_thread(seal_list, objects, place.record, secrets.token_bytes(NONCE_BYTES))
        await self._bucket.put(list_path(place.record), sealed)
        is_news, place.said = attempts != place.said, attempts
        place.beacon_at = beacon[0].at if beacon is not None else 0
        if is_news:
            newest = max(each.version for each in transitions)
            _log.info("mirrored", stream=stream, version=newest, transitions=len(transitions), chunks=len(place.sizes))

    async def _clear(self, place: _Place, named: dict[bytes, int]) -> None:
        """Delete what the list has not named for a while."""
        now_s = time.monotonic()
        place.unnamed = {name: place.unnamed.get(name, now_s) for name in place.sizes if name not in named}
        for name in [name for name, since_s in place.unnamed.items() if now_s - since_s >= GRACE_S]:
            await self._bucket.delete([chunk_path(place.record, name)])
            del place.sizes[name], place.unnamed[name]


def _by_name(found: dict[str, int]) -> dict[bytes, int]:
    """Sizes by the chunk's name; whatever else lies there is not ours, and stays."""
    sizes = {}
    for text, size in found.items():
        if len(text) == 64 and all(letter in "0123456789abcdef" for letter in text):
            sizes[bytes.fromhex(text)] = size
    return sizes
