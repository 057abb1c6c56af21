"""Gossip: the signed objects a node holds, and how two nodes find out what the other lacks.

Two sorts of object. The *set* (stream records, node records, headers) is what every node ends up holding; it is
compared bucket by bucket, so agreement costs one digest. *Bodies* (openings, manifests, transitions) are named by
a header in the set and pulled once by whoever follows the stream.

Nothing here is believed before its signature is: stream records under the CA, node records under the node's own
key and the CA's membership, everything of a stream under the publisher key that its record names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from .census import Census
from .errors import MessageError
from .ids import check_stream_name, short
from .manifest import (
    Beacon,
    Header,
    Manifest,
    MirrorRecord,
    NodeRecord,
    Opening,
    Revocation,
    StreamRecord,
    Subject,
    Transition,
)
from .messages import ObjectKind
from .signed import object_digest, peek, verify

WINDOW: Final = 1024
"""Versions behind the head whose headers are kept, in the newest epoch that has versions and in the one before it.

The rule uses content only, so that all nodes drop the same."""

MAX_HEADERS: Final = 16 * WINDOW
"""Headers of one epoch of a stream, whatever its publisher signs; as many again for manifests.

Each epoch has its own: a stolen key must not fill what its successor needs.
"""

MAX_EARLY: Final = 4096
"""Headers that came before their stream's record, so that one round of anti-entropy suffices in whatever order."""

BEACON_AHEAD_S: Final = 60
"""How far ahead of this node's clock a beacon may be dated."""

MAX_STREAMS: Final = 256
Body = Opening | Manifest | Transition
Learned = StreamRecord | NodeRecord | Revocation | MirrorRecord | Beacon | Header | Opening | Manifest | Transition

_BODY_OF: Final[dict[ObjectKind, tuple[Subject, type[Opening | Manifest | Transition]]]] = {
    ObjectKind.OPENING: (Subject.OPENING, Opening),
    ObjectKind.MANIFEST: (Subject.MANIFEST, Manifest),
    ObjectKind.TRANSITION: (Subject.TRANSITION, Transition),
}


class Gossip(Census):
    """Everything gossiped that this node holds. `ca_key` is the cluster's raw Ed25519 public key."""

    def __init__(self, ca_key: bytes) -> None:
        super().__init__(ca_key)
        self._publishers: dict[tuple[str, int], bytes] = {}
        self._mirror_digests: dict[str, bytes] = {}
        self._headers: dict[str, dict[bytes, Header]] = {}
        self._held: dict[tuple[str, int], int] = {}  # headers of each epoch of a stream
        self._announced: dict[bytes, Header] = {}
        self._bodies: dict[bytes, tuple[ObjectKind, bytes]] = {}
        self._newest: dict[str, dict[int, Header]] = {}  # stream -> epoch -> its newest manifest header
        self._heads: dict[str, bytes] = {}  # stream -> digest of the newest manifest whose body is here
        self._routes: dict[str, dict[bytes, Transition]] = {}
        self._dropped: list[tuple[bytes, Body | None]] = []
        self._early: dict[bytes, tuple[str, int, bytes]] = {}  # digest -> stream, epoch, signed header: not verified
        self.beacons: dict[str, tuple[Beacon, bytes]] = {}
        """Stream -> its publisher's latest beacon, and its signed bytes. Not part of the set that nodes compare."""
        self.streams: dict[str, StreamRecord] = {}
        self.contradictions: set[str] = set()
        """Streams for which the CA has named two publishers in one epoch: each node keeps the first it hears of."""

        self.mirrors: dict[str, MirrorRecord] = {}
        self.manifests: dict[bytes, Manifest] = {}
        self.transitions: dict[bytes, Transition] = {}
        self.openings: dict[bytes, Opening] = {}

    # -- what is held ---------------------------------------------------------------------------------------

    def get(self, name: bytes) -> tuple[ObjectKind, bytes] | None:
        """Kind and signed bytes of the object with digest `name`, set or body."""
        return self._set.get(name) or self._bodies.get(name)

    def knows(self, name: bytes) -> bool:
        """Whether the object with digest `name` is held."""
        return name in self._set or name in self._bodies

    def lacking(self) -> Iterator[Header]:
        """Headers whose body is not here yet."""
        return (header for name, header in self._announced.items() if name not in self._bodies)

    def lacks_opening(self, stream: str, version: tuple[int, int]) -> bool:
        """Whether an opening of this (epoch, version) is announced whose body is not here yet."""
        return any(
            header.subject is Subject.OPENING
            and (header.epoch, header.version) == version
            and header.digest not in self._bodies
            for header in self.headers(stream)
        )

    def announced(self, name: bytes) -> Header | None:
        """The header that announces the body with digest `name`."""
        return self._announced.get(name)

    def head_digest(self, stream: str) -> bytes | None:
        """Digest of the newest manifest of `stream` whose body is here."""
        return self._heads.get(stream)

    def head(self, stream: str) -> Manifest | None:
        """The newest manifest of `stream` whose body is here."""
        name = self.head_digest(stream)
        return None if name is None else self.manifests[name]

    def head_header(self, stream: str) -> Header | None:
        """The newest manifest header of `stream`."""
        newest = self._newest.get(stream)
        return newest[max(newest)] if newest else None

    def headers(self, stream: str) -> Iterator[Header]:
        """Every header of `stream`."""
        return iter(self._headers.get(stream, {}).values())

    def routes(self, stream: str) -> list[Transition]:
        """Every transition of `stream` whose body is here."""
        return list(self._routes.get(stream, {}).values())

    def publisher(self, stream: str, epoch: int) -> bytes | None:
        """The raw key under which everything of `stream` in this epoch is signed, if its record is here."""
        return self._publishers.get((stream, epoch))

    def finished(self, stream: str, version: tuple[int, int], attempt: bytes) -> bool:
        """Whether `attempt` became this (epoch, version), or may have: its manifest is announced, not here yet."""
        for header in self.headers(stream):
            if header.subject is Subject.MANIFEST and (header.epoch, header.version) == version:
                manifest = self.manifests.get(header.digest)
                if manifest is None or manifest.attempt == attempt:
                    return True
        return False

    def take_early(self, record: StreamRecord) -> list[bytes]:
        """Signed headers that waited for this record. Who sent them is forgotten: learn them, and blame nobody."""
        of = record.stream, record.epoch
        names = [name for name, (stream, epoch, _) in self._early.items() if (stream, epoch) == of]
        return [self._early.pop(name)[2] for name in names]

    def take_dropped(self) -> list[tuple[bytes, Body | None]]:
        """(digest, body if it had one) of objects that newer ones replaced, since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def publishers(self) -> set[bytes]:
        """Ids of the nodes that made the transitions and openings held here."""
        makers: list[Transition | Opening] = [*self.transitions.values(), *self.openings.values()]
        return {part.node for made in makers for part in made.parts}

    def durable(self) -> Iterator[tuple[ObjectKind, bytes, bytes]]:
        """(kind, digest, signed bytes) of all objects, in an order in which `learn` accepts them again."""
        everything = [(kind, name, data) for name, (kind, data) in (self._set | self._bodies).items()]
        return iter(sorted(everything, key=lambda item: (item[0], item[1])))

    def words_for(self, stream: str, bodies: AbstractSet[bytes]) -> list[tuple[ObjectKind, bytes]]:
        """Kind and signed bytes of all that a node must learn, in this order, to believe these bodies of a stream."""
        headers = self._headers.get(stream, {})
        words = [
            held
            for name, held in self._set.items()
            if held[0] is ObjectKind.REVOCATION
            or (held[0] is ObjectKind.STREAM and peek(held[1], StreamRecord).stream == stream)
            or (name in headers and headers[name].digest in bodies)
        ]
        announced = {header.digest for header in headers.values()}
        words += [self._bodies[name] for name in bodies & announced if name in self._bodies]
        return sorted(words)

    def introductions(self) -> list[tuple[ObjectKind, bytes]]:
        """Kind and signed bytes of what leads to each stream in a mirror: its record, and the mirror's."""
        streams = {(record.stream, record.epoch) for record in self.mirrors.values()}
        words = [self._set[name] for name in self._mirror_digests.values()]
        for kind, data in self._set.values():
            if kind is ObjectKind.STREAM:
                record = peek(data, StreamRecord)
                if (record.stream, record.epoch) in streams:
                    words.append((kind, data))
        return sorted(words)

    # -- learning -------------------------------------------------------------------------------------------

    def learn(self, kind: ObjectKind, data: bytes) -> Learned | None:
        """Take a signed object. Returns it when it is new, None when it is known, older, of no use or one too many.

        Raises SignatureError or MessageError for an object that should not exist: the sender is at fault.
        """
        match kind:
            case ObjectKind.STREAM:
                return self._learn_stream(data)
            case ObjectKind.NODE:
                return self._learn_node(data)
            case ObjectKind.REVOCATION:
                return self._learn_revocation(data)
            case ObjectKind.MIRROR:
                return self._learn_mirror(data)
            case ObjectKind.BEACON:
                return self._learn_beacon(data)
            case ObjectKind.HEADER:
                return self._learn_header(data)
            case _:
                return self._learn_body(kind, data)

    def _learn_stream(self, data: bytes) -> StreamRecord | None:
        name = object_digest(data, StreamRecord)
        if name in self._set:
            return None
        record = verify(data, StreamRecord, self._ca_key)
        check_stream_name(record.stream)
        known = self._publishers.get((record.stream, record.epoch))
        if known is not None:
            self.contradictions.add(record.stream)
            return None  # the CA's fault, and not that of whoever brings it; another epoch mends it
        if len(self.streams) >= MAX_STREAMS and record.stream not in self.streams:
            return None  # who brings it is not at fault
        self._publishers[record.stream, record.epoch] = record.publisher
        current = self.streams.get(record.stream)
        if current is None or record.epoch > current.epoch:
            self.streams[record.stream] = record
        self._add(name, ObjectKind.STREAM, data)
        return record

    def _learn_mirror(self, data: bytes) -> MirrorRecord | None:
        name = object_digest(data, MirrorRecord)
        if name in self._set:
            return None
        record = peek(data, MirrorRecord)
        publisher = self._publishers.get((record.stream, record.epoch))
        if publisher is None:
            return None  # the stream's record is on its way; this one comes again when sets are compared
        verify(data, MirrorRecord, publisher)
        known = self.mirrors.get(record.stream)
        if known is not None:
            before = self._mirror_digests[record.stream]
            if (record.epoch, record.serial, name) < (known.epoch, known.serial, before):
                return None
            self._remove(before)
        self.mirrors[record.stream] = record
        self._mirror_digests[record.stream] = name
        self._add(name, ObjectKind.MIRROR, data)
        return record

    def _learn_beacon(self, data: bytes) -> Beacon | None:
        said = peek(data, Beacon)
        record = self.streams.get(said.stream)
        known = self.beacons.get(said.stream)
        if record is None or said.epoch != record.epoch:
            return None  # of a stream that is not known yet, or under a key that counts no more
        if known is not None and (said.epoch, said.at) <= (known[0].epoch, known[0].at):
            return None
        verify(data, Beacon, record.publisher)
        if self.members.unix_s and said.at > self.members.unix_s + BEACON_AHEAD_S:
            return None  # else whoever stole the key could keep a frozen head young for years
        self.beacons[said.stream] = said, data
        return said

    def _learn_header(self, data: bytes) -> Header | None:
        name = object_digest(data, Header)
        if name in self._set:
            return None
        header = peek(data, Header)
        publisher = self._publishers.get((header.stream, header.epoch))
        if publisher is None:
            if len(self._early) < MAX_EARLY:
                self._early[name] = (header.stream, header.epoch, data)
            return None
        verify(data, Header, publisher)
        headers, newest = self._headers.setdefault(header.stream, {}), self._newest.setdefault(header.stream, {})
        most = 2 * MAX_HEADERS if header.subject is Subject.MANIFEST else MAX_HEADERS
        held = self._held.get((header.stream, header.epoch), 0)
        if held >= most or not _kept(header, newest):
            return None
        self._add(name, ObjectKind.HEADER, data)
        headers[name] = header
        self._held[header.stream, header.epoch] = held + 1
        self._announced[header.digest] = header
        best = newest.get(header.epoch)
        if header.subject is Subject.MANIFEST and (best is None or header.version > best.version):
            newest[header.epoch] = header
            self._prune(header.stream)
        return header

    def _learn_body(self, kind: ObjectKind, data: bytes) -> Body | None:
        subject, struct = _BODY_OF[kind]
        name = object_digest(data, struct)
        header = self._announced.get(name)
        if header is None or name in self._bodies:
            return None
        body: Body = verify(data, struct, self._publishers[header.stream, header.epoch])
        if header.subject is not subject or (body.stream, body.epoch, body.version) != (
            header.stream,
            header.epoch,
            header.version,
        ):
            raise MessageError(f"header and body of {short(name)} do not agree")
        self._bodies[name] = (kind, data)
        match body:
            case Opening():
                self.openings[name] = body
            case Manifest():
                self.manifests[name] = body
                self._find_head(body.stream, name)
            case Transition():
                self.transitions[name] = body
                self._routes.setdefault(body.stream, {})[name] = body
        return body

    def _find_head(self, stream: str, name: bytes) -> None:
        """Let the manifest `name` be the head if it is newer; the larger digest wins between two of one version."""
        order = self.manifests[name].epoch, self.manifests[name].version, name
        known = self._heads.get(stream)
        if known is None or order > (self.manifests[known].epoch, self.manifests[known].version, known):
            self._heads[stream] = name

    def _prune(self, stream: str) -> None:
        """Drop what the newest manifest header has made old."""
        headers, newest = self._headers[stream], self._newest[stream]
        for epoch in sorted(newest)[:-2]:
            del newest[epoch]
        for name in [name for name, header in headers.items() if not _kept(header, newest)]:
            header = headers.pop(name)
            self._held[stream, header.epoch] -= 1
            if not self._held[stream, header.epoch]:
                del self._held[stream, header.epoch]
            self._remove(name)
            if self._announced.get(header.digest) == header:
                del self._announced[header.digest]
                if self._bodies.pop(header.digest, None) is not None:
                    self._drop_body(stream, header.digest)

    def _drop_body(self, stream: str, name: bytes) -> None:
        opening, manifest = self.openings.pop(name, None), self.manifests.pop(name, None)
        transition = self.transitions.pop(name, None)
        self._routes.get(stream, {}).pop(name, None)
        self._dropped.append((name, opening or manifest or transition))
        if self._heads.get(stream) == name:
            del self._heads[stream]
            for other in [other for other, each in self.manifests.items() if each.stream == stream]:
                self._find_head(stream, other)

    def _remove(self, name: bytes) -> None:
        super()._remove(name)
        self._dropped.append((name, None))


def _kept(header: Header, newest: Mapping[int, Header]) -> bool:
    """Whether `header` still matters, `newest` being the newest manifest header of each epoch of its stream."""
    epochs = sorted(newest)[-2:]
    if not epochs or header.epoch > epochs[-1]:
        return True  # the first words of an epoch
    if header.subject is Subject.OPENING:  # the newest version's stays: its roster deals the chunks
        return header.epoch == epochs[-1] and header.version >= newest[header.epoch].version
    if header.epoch in epochs:
        return header.version > newest[header.epoch].version - WINDOW
    return header.subject is Subject.MANIFEST and (len(epochs) < 2 or header.epoch > epochs[0])
