"""Node: drives one `Swarm` in the simulated world, as daemon/fleet drives it in the real one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from patchswarm.protocol.effects import (
    Dial,
    Effect,
    Hangup,
    HeadMoved,
    IndexHere,
    RouteReady,
    Send,
    Serve,
    SiteFound,
    Withdraw,
)
from patchswarm.protocol.errors import ProtocolError
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import Transition
from patchswarm.protocol.messages import META_ORDINAL, Have, Message, ObjectKind, Reject, encode_message
from patchswarm.protocol.swarm import Settings, Swarm

from .places import Host, Lie
from .release import STREAM, Identity
from .report import Tally
from .wire import Parcel, Wire

if TYPE_CHECKING:
    from .world import World

_OPEN_INDEX_S: Final = 0.001
_LOOK_S: Final = 0.1
"""As daemon/fleet/fleet.py: how often it is looked how much has come."""

_SILENT: Final = (Lie.SILENCE, Lie.FALSE_SILENCE)
_BOASTING: Final = (Lie.FALSE_HAVE, Lie.FALSE_SILENCE)


def address_of(number: int) -> str:
    """Address of the node with this number."""
    return f"host-{number}:1"


class Node:
    """A host with its daemon. `number` is its place in the world's list."""

    def __init__(self, world: World, number: int, place: int, host: Host, identity: Identity) -> None:
        self.world = world
        self.number = number
        self.place = place
        self.host = host
        self.identity = identity
        self.id = digest(identity.public)
        self.address = address_of(number)
        self.alive = False
        self.joined_s = world.clock.now_s
        self.version = 0 if world.patch.full else 1
        self.tally = Tally()
        self.store: set[bytes] = set()
        self.wires: dict[int, Wire] = {}
        self.site = world.map.sites[host.site].label
        seeds = world.seeds(place)
        settings = Settings(identity.public, world.cluster.ca_key, self.site, seeds, ("*",))
        self.swarm = Swarm(settings, self.store.__contains__, random.Random(world.rng.getrandbits(64)))  # noqa: S311
        self._serial = 1
        self.said = self._record()  # its newest record
        self._wake_s = float("inf")
        self._looked_s = 0.0
        self._expected: dict[Wire, None] = {}  # wires over which chunks come, in the order in which they began to
        self._verified_s = 0.0  # when the verifying thread is free
        self._applied_s = 0.0
        self._said_false: set[int] = set()
        self._sized: tuple[Message | None, int] = None, 0

    def start(self) -> None:
        """Come up: hold the base version, say who this is, begin to tick."""
        now_s = self.world.clock.now_s
        self.alive = True
        self.store.update(name for name, _ in self.world.releases[0].old_chunks)
        self.swarm.announce(self.said, now_s)
        self.swarm.fetch.hold(STREAM, self.world.releases[0].held, lists_first=False, now_s=now_s)
        self.swarm.tick(now_s)
        self.carry_out()

    def _record(self) -> bytes:
        """Its node record, newly signed."""
        addresses = () if self.host.nat else (self.address,)
        record = self.identity.record(self._serial, self.site, addresses)
        self._serial += 1
        return record

    def die(self, *, said: bool) -> None:
        """Stop for ever. `said`: the kernel closes the connections; else the host just falls silent."""
        self.alive = False
        for wire in list(self.wires.values()):
            if said:
                wire.close(self)
            else:
                wire.set_cut(cut=True)
        self.wires.clear()

    # -- the core -------------------------------------------------------------------------------------------

    def _tick(self, due_s: float) -> None:
        if not self.alive or due_s != self._wake_s:
            return
        self._wake_s = float("inf")
        now_s = self.world.clock.now_s
        if now_s >= self._looked_s + _LOOK_S:
            self._looked_s = now_s
            self._expected = {wire: None for wire in self._expected if wire.look_at(self)}
        self.swarm.tick(now_s)
        self.carry_out()

    def expects(self, wire: Wire) -> None:
        """Something is sent to this node over a wire."""
        self._expected[wire] = None

    def progressed(self, number: int, total_bytes: int) -> None:
        """So many bytes of chunks have come over a connection by now."""
        if self.alive:
            self.swarm.progressed(number, total_bytes, self.world.clock.now_s)

    def carry_out(self) -> None:
        """Do what the core wants done. Called after every call into it."""
        outgoing: dict[int, list[Message]] = {}
        for effect in self.swarm.effects():
            if effect.__class__ is Send:
                outgoing.setdefault(effect.link, []).append(effect.message)
            else:
                if isinstance(effect, Hangup):
                    self._flush(outgoing)
                self._do(effect)
        self._flush(outgoing)
        wake_s = self.swarm.wake_s()
        if wake_s < self._wake_s:
            self._wake_s = wake_s
            self.world.clock.at(wake_s, self._tick, wake_s)

    def _flush(self, outgoing: dict[int, list[Message]]) -> None:
        for link, messages in outgoing.items():
            wire = self.wires.get(link)
            if wire is not None:
                said = self._twist(link, messages) if self.host.lie else messages
                if said:
                    wire.send(self, said)
        outgoing.clear()

    def _do(self, effect: Effect) -> None:
        world, now_s = self.world, self.world.clock.now_s
        match effect:
            case Serve():
                self._serve(effect)
            case Withdraw():
                wire = self.wires.get(effect.link)
                if wire is not None:
                    wire.withdraw(self, effect.request)
            case Hangup():
                wire = self.wires.get(effect.link)
                if wire is not None:
                    wire.close(self)
            case Dial():
                world.dial(self, effect.address)
            case IndexHere():
                world.clock.at(now_s + _OPEN_INDEX_S, self._open_index, effect.attempt)
            case HeadMoved():
                if world.published_s is not None and self.tally.head_known_s is None:
                    self.tally.head_known_s = now_s
            case SiteFound():
                self.site = effect.site
                self.said = self._record()
                self.swarm.announce(self.said, now_s)
            case RouteReady():
                if effect.route:
                    world.clock.at(max(self._applied_s, now_s), self._commit, effect.route)
            case _:
                pass

    def _open_index(self, attempt: bytes) -> None:
        series = self.swarm.fetch.stock.series.get(attempt)
        if self.alive and series is not None and series.transition is not None:
            self.swarm.fetch.index_known(attempt, 0, self.world.indexes[attempt], self.world.clock.now_s)
            self.carry_out()

    def _commit(self, route: tuple[Transition, ...]) -> None:
        """The route is applied: this version is served from now on."""
        if not self.alive:
            return
        target, now_s = route[-1], self.world.clock.now_s
        if target.version < self.version:
            self.world.violations.append(f"node {self.number} went from version {self.version} to {target.version}")
        if target.version > self.version:
            self.version = target.version
            if target.version == self.world.releases[-1].version:
                self.world.finished(self)
        self.swarm.fetch.hold(STREAM, frozenset({target.target}), lists_first=False, now_s=now_s)
        self.carry_out()

    # -- links ----------------------------------------------------------------------------------------------

    def size_of(self, message: Message) -> int:
        """Bytes of a message. A node says the same to many: it is encoded once for those that follow each other."""
        if message is not self._sized[0]:
            self._sized = message, len(encode_message(message))
        return self._sized[1]

    def link_up(self, wire: Wire, address: str | None) -> None:
        """A connection is made."""
        end, far = wire.end_of(self), wire.far_end(self)
        end.number = self.swarm.link_up(far.node.identity.public, address, self.world.clock.now_s)
        self.wires[end.number] = wire
        self.carry_out()

    def wire_down(self, number: int) -> None:
        """A connection is gone."""
        if self.wires.pop(number, None) is not None and self.alive:
            self.swarm.link_down(number, self.world.clock.now_s)
            self.carry_out()

    def dial_failed(self, address: str) -> None:
        """Nobody answered."""
        if self.alive:
            self.swarm.dial_failed(address, self.world.clock.now_s)
            self.carry_out()

    def receive(self, wire: Wire, number: int, messages: list[Message]) -> None:
        """Control messages came."""
        if not self.alive or number not in self.wires:
            return
        swarm, now_s = self.swarm, self.world.clock.now_s
        link = swarm.links.get(number)
        greeted = link is not None and link.record is not None
        try:
            for message in messages:
                swarm.receive(number, message, now_s)
        except ProtocolError as error:
            self.world.complaints.append(f"node {self.number}: {error}")
            wire.close(self)
        if not greeted and link is not None and link.record is not None:
            self._greeted(wire, now_s)
        self.carry_out()

    def _greeted(self, wire: Wire, now_s: float) -> None:
        """As daemon/fleet does: the side that was dialled offers a lane, the other dials it."""
        end = wire.end_of(self)
        if end is wire.ends[1]:
            rtt_s = end.path.rtt_s
            wire.open_lanes(now_s + 1.5 * rtt_s, now_s + 2 * rtt_s)

    # -- chunks ---------------------------------------------------------------------------------------------

    def _serve(self, effect: Serve) -> None:
        wire = self.wires.get(effect.link)
        if wire is None or self.host.lie in _SILENT:
            return
        if effect.name not in self.store:
            self.world.violations.append(f"node {self.number} was to serve a chunk that it has not verified")
            return
        size = self.world.sizes[effect.name]
        if self.host.lie is Lie.STALL:
            wire.serve(self, Parcel(effect.request, effect.name, size // 2, True, effect.secure, ends=False))
        else:
            intact = self.host.lie is not Lie.WRONG_BYTES
            wire.serve(self, Parcel(effect.request, effect.name, size, intact, effect.secure))

    def chunk_came(self, number: int, parcel: Parcel) -> None:
        """The last byte of a chunk came: verify it, in turn."""
        if not self.alive:
            return
        now_s = self.world.clock.now_s
        self.tally.chunk_bytes += parcel.size
        if self.swarm.expected(number, parcel.name) is None or parcel.name in self.store or not parcel.intact:
            self.tally.useless_bytes += parcel.size
        self.swarm.chunk_here(number, parcel.name)
        self._verified_s = max(self._verified_s, now_s) + parcel.size / self.host.verify_rate
        self.world.clock.at(self._verified_s, self._verified, number, parcel)

    def chunk_left(self, number: int, name: bytes) -> None:
        """A chunk of a `Serve` was handed to the kernel."""
        if self.alive:
            self.swarm.chunk_served(number, name)

    def _verified(self, number: int, parcel: Parcel) -> None:
        if not self.alive:
            return
        now_s = self.world.clock.now_s
        if parcel.intact and parcel.name not in self.store:
            self.store.add(parcel.name)
            self._applied_s = max(self._applied_s, now_s) + parcel.size / self.host.apply_rate
        self.swarm.chunk_arrived(number, parcel.name, now_s, intact=parcel.intact, secure=parcel.secure)
        self.carry_out()

    def keep(self, name: bytes) -> None:
        """Take a chunk that was made here."""
        self.store.add(name)
        self.swarm.fetch.stored(name, self.world.clock.now_s)

    def learn(self, kind: ObjectKind, data: bytes) -> None:
        """Take a signed object that was known before the world began."""
        self.swarm.publish(kind, data, self.world.clock.now_s)

    # -- lies -----------------------------------------------------------------------------------------------

    def _twist(self, link: int, messages: list[Message]) -> list[Message]:
        """What a liar sends instead."""
        if self.host.lie in _SILENT:
            messages = [message for message in messages if not isinstance(message, Reject)]
        release = self.world.releases[0]
        if self.host.lie not in _BOASTING or release.attempt not in self.swarm.fetch.stock.series:
            return messages
        if link in self._said_false:
            return messages
        self._said_false.add(link)
        blobs = len(release.old_chunks) + len(release.list_chunks)
        ranges = ((0, len(release.chunks) - 1), (META_ORDINAL, META_ORDINAL + blobs - 1))
        return [*messages, Have(release.attempt, ranges)]
