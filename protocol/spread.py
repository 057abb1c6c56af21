"""Spread: how gossip moves between two nodes. Headers are pushed, bodies pulled once, sets compared in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from .effects import Effect, Forget, Persist, Send
from .errors import MessageError, ProtocolError
from .gossip import Body, Gossip, Learned
from .link import Link
from .manifest import Beacon, Header, MirrorRecord, Revocation, StreamRecord
from .messages import Buckets, Headers, Inventory, Message, Object, ObjectKind, Pull, Summary
from .signed import object_digest

PULL_RETRY_S: Final = 2.0
GIVE_BYTES: Final = 2 * 1024 * 1024
"""Objects given to one peer per second: a newcomer to a large fleet is fed, not flooded. The rest it asks for again."""

TAKE_BYTES: Final = 16 * 1024 * 1024
"""Objects taken from one peer per second: eight times what an honest one gives."""

COMPARED_EACH_TURN: Final = 4
"""Links whose sets are compared each second at least. Where the last comparison found a difference, the next second's
follows in any case: what a few links learn, all have a few turns later, without one word a second on each of many."""

COMPARED_EVERY: Final = 8
"""Turns after which every link has been compared, however many there are."""

_INVENTORY_MAX: Final = 1800
_PULL_MAX: Final = 1024


class Spread:
    """Exchanges the objects of one `Gossip` with all links.

    `learned` is called for each new object, after it was kept and passed on, `outdated` for each body that newer
    versions have pushed out; `follows` says whose bodies to pull.
    """

    def __init__(
        self,
        gossip: Gossip,
        links: Mapping[int, Link],
        emit: Callable[[Effect], None],
        learned: Callable[[Learned, bytes], None],
        outdated: Callable[[Body], None],
        follows: Callable[[str], bool],
    ) -> None:
        self.gossip = gossip
        self._links = links
        self._emit = emit
        self._learned = learned
        self._outdated = outdated
        self._follows = follows
        self._pulls: dict[bytes, tuple[int, float]] = {}  # body digest -> (link asked, when to ask another)
        self._waiting: dict[bytes, set[int]] = {}  # body digest -> links that asked before it was here
        self._taken: dict[int, int] = {}  # link -> bytes of objects that it sent since the last tick
        self._given: dict[int, int] = {}  # link -> bytes of objects given to it since the last tick
        self._differing: set[int] = set()  # links that were found to hold another set since the last tick
        self._turn = 0

    def publish(self, kind: ObjectKind, data: bytes, now_s: float) -> None:
        """Take an object made on this node."""
        self._take(None, kind, data, now_s)

    def introduce(self, link: Link, record: bytes, now_s: float) -> None:
        """Take the node record that a peer has said in its hello."""
        self._take(link, ObjectKind.NODE, record, now_s)

    def receive(self, link: Link, message: Message, now_s: float) -> None:
        """Handle one gossip message. Raises MessageError for one too many."""
        match message:
            case Summary():
                if message.digest != self.gossip.summary():
                    self._differing.add(link.number)
                    self._send(link, Buckets(self.gossip.sums()))
            case Buckets():
                self._differing.add(link.number)
                for number in self.gossip.differing(message.sums):
                    self._send(link, Inventory(number, tuple(sorted(self.gossip.bucket(number))[:_INVENTORY_MAX])))
            case Inventory():
                self._compare(link, message)
            case Headers():
                self._count(link, sum(map(len, message.items)))
                for item in message.items:
                    self._take(link, ObjectKind.HEADER, item, now_s)
            case Pull():
                for name in message.digests:
                    self._give(link, name)
            case Object():
                self._count(link, len(message.data))
                self._take(link, message.kind, message.data, now_s)
            case _:
                raise AssertionError(message)

    def greet(self, link: Link) -> None:
        """Begin with a new peer: compare sets at once, and tell of how young the heads are."""
        self._summarise(link)
        for _, data in self.gossip.beacons.values():
            self._send(link, Object(ObjectKind.BEACON, data))

    def _count(self, link: Link, size_bytes: int) -> None:
        taken = self._taken[link.number] = self._taken.get(link.number, 0) + size_bytes
        if taken > TAKE_BYTES:
            raise MessageError(f"over {TAKE_BYTES} bytes of signed objects came within a second")

    def _summarise(self, link: Link) -> None:
        self._send(link, Summary(self.gossip.summary()))

    def tick(self, now_s: float) -> None:
        """Compare with those whose turn it is, and ask again for bodies that did not come. Call about once a second."""
        self._given.clear()
        self._taken.clear()
        ready = [link for link in self._links.values() if link.record is not None]
        self._turn += 1
        turns = max(1, min(COMPARED_EVERY, len(ready) // COMPARED_EACH_TURN))
        for at, link in enumerate(ready, self._turn):
            if at % turns == 0 or link.number in self._differing:
                self._summarise(link)
        self._differing.clear()
        wanted = {header.digest for header in self.gossip.lacking() if self._follows(header.stream)}
        for name in [name for name in self._pulls if name not in wanted]:
            del self._pulls[name]
        if not ready:
            return
        overdue = [name for name in sorted(wanted) if self._pulls.get(name, (0, now_s))[1] <= now_s]
        for at, name in enumerate(overdue):
            asked = self._pulls.get(name, (-1, 0.0))[0]
            others = [link for link in ready if link.number != asked] or ready
            self._pull(others[at % len(others)], [name], now_s)

    def lost(self, link: Link) -> None:
        """Forget what was asked of a link that is gone; the next tick asks another."""
        for name, (asked, _) in self._pulls.items():
            if asked == link.number:
                self._pulls[name] = (asked, 0.0)
        for links in self._waiting.values():
            links.discard(link.number)

    def _compare(self, link: Link, inventory: Inventory) -> None:
        theirs = set(inventory.digests)
        mine = self.gossip.bucket(inventory.bucket)
        lacking = [name for name in theirs - mine if name[0] == inventory.bucket]
        for at in range(0, len(lacking), _PULL_MAX):
            self._send(link, Pull(tuple(sorted(lacking)[at : at + _PULL_MAX])))
        if len(theirs) < _INVENTORY_MAX:
            for name in sorted(mine - theirs):
                self._give(link, name)

    def _give(self, link: Link, name: bytes) -> None:
        held = self.gossip.get(name)
        if held is not None:
            given = self._given.get(link.number, 0)
            if given < GIVE_BYTES:
                self._given[link.number] = given + len(held[1])
                self._send(link, Object(*held))
        elif self.gossip.announced(name) is not None:
            self._waiting.setdefault(name, set()).add(link.number)

    def _take(self, link: Link | None, kind: ObjectKind, data: bytes, now_s: float) -> None:
        new = self.gossip.learn(kind, data)
        if new is None:
            return
        name = object_digest(data, type(new))
        if not isinstance(new, Beacon):
            self._emit(Persist(kind, name, data))
        origin = link.number if link else -1
        others = [other for other in self._links.values() if other.number != origin and other.record is not None]
        if isinstance(new, Header):
            for other in others:
                self._send(other, Headers((data,)))
            if link is not None and self._follows(new.stream) and not self.gossip.knows(new.digest):
                self._pull(link, [new.digest], now_s)
        elif isinstance(new, StreamRecord | Revocation | MirrorRecord | Beacon):
            for other in others:
                self._send(other, Object(kind, data))
        elif link is None:
            for other in others:  # made here: saves everyone the round trip of a pull, or a comparison
                self._send(other, Object(kind, data))
        for waiting in self._waiting.pop(name, ()):
            if waiting in self._links and link is not None:
                self._send(self._links[waiting], Object(kind, data))
        self._pulls.pop(name, None)
        self._learned(new, name)
        self._forget()
        if isinstance(new, StreamRecord):
            for early in self.gossip.take_early(new):
                with contextlib.suppress(ProtocolError):
                    self._take(link, ObjectKind.HEADER, early, now_s)

    def _forget(self) -> None:
        """Let go of what the last object has made old."""
        dropped = self.gossip.take_dropped()
        if dropped:
            self._emit(Forget(tuple(name for name, _ in dropped)))
        for name, body in dropped:
            self._waiting.pop(name, None)
            if body is not None:
                self._outdated(body)

    def _pull(self, link: Link, names: Iterable[bytes], now_s: float) -> None:
        names = tuple(names)
        for name in names:
            self._pulls[name] = (link.number, now_s + PULL_RETRY_S)
        self._send(link, Pull(names))

    def _send(self, link: Link, message: Message) -> None:
        self._emit(Send(link.number, message))
