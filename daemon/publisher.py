"""Publisher: who may publish what under which number, one version of a stream at a time."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..protocol.ids import check_stream_name
from ..protocol.manifest import StreamRecord
from ..protocol.messages import ObjectKind
from ..storage.checkpoint import Source, scan
from ..storage.slots import Slot
from .anchors import base_setting
from .desk import Desk, signed
from .errors import ConflictError, NotRisingError, RefusedError
from .fleet.identity import Identity
from .home import TOKENS
from .making import Draft, Making, Published
from .replica import Replica

_FIRST_EPOCH: Final = 1
_FIRST_VERSION: Final = 1
_LAST_VERSION: Final = 2**63 - 1
_RUN_UP: Final = 2**62
"""No trainer gets this far: beyond it a stolen key has counted, and a new epoch begins at 1 again."""


class Publisher:
    """Publishes on the head.

    `replica` gives a stream's replica, made when the stream is new; `make_way` ends background work on its slots.
    """

    def __init__(
        self,
        identity: Identity,
        desk: Desk,
        replica: Callable[[str], Replica],
        make_way: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._identity = identity
        self._desk = desk
        self._replica = replica
        self._make_way = make_way
        self._busy: set[str] = set()
        self._checks: dict[str, tuple[bytes, bytes]] = {}
        """By stream: the version that was made last, and its blocks' checks (see `storage.trust`)."""

    async def publish(
        self,
        stream: str,
        directory: Path,
        progress: Callable[[int, int], None],
        *,
        version: int | None = None,
        label: str = "",
        register_only: bool = False,
        streamed: bool = True,
    ) -> Published:
        """Publish one directory, calling `progress(done_bytes, total_bytes)` now and then.

        With `register_only` the hosts have the bytes already, and nothing is sent; unless `streamed` nobody hears of
        the version before all of it is encoded. Raises RefusedError, ConflictError, MessageError for a name that no
        stream may have, and StorageError for a directory that cannot be published or a disk that is full.
        """
        check_stream_name(stream)
        if self._desk.fleet.standing.is_copied:
            raise RefusedError(
                "another daemon runs with the keys of this node, from a copy of its home, and what both publish would "
                "contradict: stop one, delete its home, and restart the other"
            )
        key = self._publisher_key(stream)
        if not self._desk.fleet.swarm.follows(stream):
            raise RefusedError(f"this node does not follow stream {stream}: add it to streams.follow in config.toml")
        if stream in self._busy:
            raise ConflictError(f"a publish to stream {stream} is under way: wait for it to end")
        self._busy.add(stream)
        try:
            number = self._next_version(stream, version)
            source = await asyncio.to_thread(scan, directory)
            with source:
                await asyncio.to_thread(self._check_source, source)
                self._begin_stream(stream, key)
                replica = self._replica(stream)
                async with replica.building_lock:
                    parent = self._parent(stream, replica)
                    draft = Draft(
                        stream,
                        self._desk.fleet.swarm.gossip.streams[stream].epoch,
                        number,
                        label,
                        secrets.token_bytes(16),
                        secrets.token_bytes(32),
                        source,
                        parent,
                        self._checks_of(stream, parent),
                        streamed,
                    )
                    making = Making(self._desk, draft, replica, key, progress, partial(self._make_way, stream))
                    made = await making.run(register_only=register_only)
                    self._checks[stream] = made.slot.manifest, made.checks
            if register_only:
                # Skips from the base are made later, from these files.
                self._desk.catalog.put(base_setting(made.slot.manifest), os.fsencode(directory))
            return made
        finally:
            self._busy.discard(stream)

    def _check_source(self, source: Source) -> None:
        """Raise RefusedError when a file to be published is one of this node's secrets, whatever name led there."""
        home = self._identity.keys.parent
        secret = [*self._identity.keys.glob("*"), *home.glob("invites/*"), *(home / name for name in TOKENS)]
        inodes = {(found.st_dev, found.st_ino) for path in secret if path.exists() for found in (path.stat(),)}
        if inodes & source.inodes():
            raise RefusedError(
                f"{source.directory}: holds keys or tokens of this node, which are not to be published: "
                "give the checkpoint a directory of its own"
            )

    def owns(self, stream: str) -> bool:
        """Whether this node publishes the stream."""
        key = self._identity.publisher_key
        record = self._desk.fleet.swarm.gossip.streams.get(stream)
        return key is not None and record is not None and record.publisher == key.public_key().public_bytes_raw()

    def newest_made(self, stream: str) -> tuple[int, int] | None:
        """(epoch, version) of the newest version that was published here, if this node publishes the stream.

        None in an epoch that has no version yet, and while a publish ends.
        """
        record, mark = self._desk.fleet.swarm.gossip.streams.get(stream), self._desk.catalog.mark(stream)
        if record is None or stream in self._busy or not self.owns(stream):
            return None
        head = self._desk.fleet.swarm.gossip.head_header(stream)
        if head is None or head.epoch != record.epoch:
            return None
        return (mark.epoch, mark.version) if mark is not None else (0, 0)

    def is_publishing(self, stream: str) -> bool:
        """Whether a publish is under way."""
        return stream in self._busy

    def holds_back(self, stream: str) -> bool:
        """Whether background work on a stream has to wait: it is not ours, or a publish is under way."""
        return stream in self._busy or not self.owns(stream)

    def _publisher_key(self, stream: str) -> Ed25519PrivateKey:
        key = self._identity.publisher_key
        if key is None:
            raise RefusedError(
                "this node has no publisher key: publish on the head, where 'patchswarm init' ran, or see "
                "'patchswarm publisher adopt'"
            )
        record = self._desk.fleet.swarm.gossip.streams.get(stream)
        if record is None and self._identity.ca_key is None:
            raise RefusedError(
                f"stream {stream} is new, and the cluster's CA key, which begins it, is not in this home: stop the "
                f"daemon, run 'patchswarm publisher adopt {stream} --ca-dir DIR', and start it again"
            )
        if record is not None and record.publisher != key.public_key().public_bytes_raw():
            raise RefusedError(
                f"stream {stream} belongs to another publisher key than this node's since epoch {record.epoch}; "
                "'patchswarm publisher adopt' takes it over when its head is lost"
            )
        return key

    def _next_version(self, stream: str, asked: int | None) -> int:
        head = self._desk.fleet.swarm.gossip.head(stream)
        mark = self._desk.catalog.mark(stream)
        record = self._desk.fleet.swarm.gossip.streams.get(stream)
        reached = max((each.epoch for each in (mark, head) if each is not None), default=0)
        if record is not None and 0 < reached < record.epoch:
            return self._first_of_epoch(stream, asked)
        if mark is not None and (head is None or (head.epoch, head.version) < (mark.epoch, mark.version)):
            raise RefusedError(
                f"version {mark.version} of {stream} was committed here, but what was signed for it is not known any "
                "more (a rebuilt catalog?): let this node reach another one that has it, then publish again"
            )
        newest = head.version if head else _FIRST_VERSION - 1
        if newest >= _LAST_VERSION:
            raise RefusedError(
                f"stream {stream} has reached version {newest}, the last there is: if it was not you, the publisher "
                "key is stolen; 'patchswarm publisher rotate' begins a new epoch"
            )
        if asked is None:
            return newest + 1
        if head is not None and asked <= newest:
            raise NotRisingError(
                f"version {asked} of {stream} does not rise: the newest is {newest}; name a higher one, or none to "
                f"take {newest + 1}",
                newest,
            )
        return asked

    def _first_of_epoch(self, stream: str, asked: int | None) -> int:
        """The number of the first version of a new epoch: it goes on from what there was, unless that was run up."""
        if asked is not None:
            return asked
        before = (self._desk.catalog.mark(stream), self._desk.fleet.swarm.gossip.head(stream))
        return max((each.version for each in before if each and each.version < _RUN_UP), default=_FIRST_VERSION - 1) + 1

    def _begin_stream(self, stream: str, key: Ed25519PrivateKey) -> None:
        """Have the CA bind a new stream's name to our key."""
        if stream not in self._desk.fleet.swarm.gossip.streams:
            assert self._identity.ca_key is not None
            record = StreamRecord(stream, _FIRST_EPOCH, key.public_key().public_bytes_raw())
            self._desk.announce([signed(ObjectKind.STREAM, record, self._identity.ca_key)])

    def _checks_of(self, stream: str, parent: Slot | None) -> bytes:
        made, checks = self._checks.get(stream, (b"", b""))
        return checks if parent is not None and parent.manifest == made else b""

    def _parent(self, stream: str, replica: Replica) -> Slot | None:
        """The slot that holds the newest version, or None: then the next one goes out whole."""
        head = self._desk.fleet.swarm.gossip.head_digest(stream)
        slot = None if head is None else replica.slots.find(head)
        record = self._desk.fleet.swarm.gossip.streams.get(stream)
        here = replica.current()
        if slot is None and here is not None and record is not None and here.epoch < record.epoch:
            known = self._desk.fleet.swarm.gossip.head(stream)
            if known is None or known.epoch < record.epoch:
                slot = here  # a new epoch goes on from what is here, whatever the last one came to
        return None if slot is None or slot.withdrawn or slot.suspect else slot
