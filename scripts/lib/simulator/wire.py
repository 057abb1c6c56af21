"""Wire: one connection between two nodes: control messages both ways, and a lane for chunks in each direction.

Messages of one direction arrive in order, after the path's delay and the queues on it. A cut path holds them back,
as TCP does; a closed wire loses what is under way.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from patchswarm.protocol.messages import Message, Reason, Reject

from .network import Lane, Path
from .places import TRICKLE_RATE, Lie

if TYPE_CHECKING:
    from .node import Node
    from .world import World

OVERHEAD_BYTES: Final = 4 + 22 + 52
"""Around each control message: frame length, TLS 1.3 record, TCP and IP headers with timestamps."""

WRITE_HIGH_BYTES: Final = 256 * 1024
"""As daemon/fleet/lane.py: bytes handed to the kernel ahead of what it has sent."""

RESUME_S: Final = 1.0
"""After a cut heals TCP tries again when its backed-off timer runs out."""


def has_room(lane: Lane, size: int) -> bool:
    """Whether a lane takes another chunk, when it has so many bytes that have not left."""
    return size < WRITE_HIGH_BYTES or not lane.queue


class Parcel(NamedTuple):
    """A chunk under way. `intact` is False when a liar damaged it."""

    request: int
    name: bytes
    size: int
    intact: bool
    secure: bool
    ends: bool = True
    """Whether the rest of it will ever come."""


class End:
    """One node's end of a wire: how it names the link, and what leaves from here."""

    __slots__ = ("arrives_s", "held", "in_lane", "lane", "looked_at", "node", "number", "path", "waiting")

    def __init__(self, node: Node, path: Path) -> None:
        self.node = node
        self.path = path
        self.number = -1
        self.arrives_s = 0.0  # when the last message sent from here arrives
        self.held: list[list[Message]] = []  # sent while the path was cut
        self.lane: Lane | None = None
        self.in_lane = 0  # bytes given to the lane that have not left
        self.looked_at = 0.0  # bytes that had left from here when it was looked last
        self.waiting: deque[Parcel] = deque()  # chunks that wait for room in the lane


class Wire:
    """Built by `World.dial`; ends 0 and 1 belong to the dialler and to the node it reached."""

    __slots__ = ("cut", "ends", "open", "world")

    def __init__(self, world: World, dialler: Node, other: Node) -> None:
        self.world = world
        self.ends = (End(dialler, world.path(dialler, other)), End(other, world.path(other, dialler)))
        self.open = True
        self.cut = world.is_cut(dialler, other)

    def end_of(self, node: Node) -> End:
        """The end at `node`."""
        return self.ends[0] if self.ends[0].node is node else self.ends[1]

    def far_end(self, node: Node) -> End:
        """The end that is not at `node`."""
        return self.ends[1] if self.ends[0].node is node else self.ends[0]

    # -- control --------------------------------------------------------------------------------------------

    def send(self, sender: Node, messages: list[Message]) -> None:
        """Send control messages from `sender`."""
        if not self.open:
            return
        near = self.end_of(sender)
        size = sum([sender.size_of(message) for message in messages]) + OVERHEAD_BYTES * len(messages)
        sender.tally.control_sent += size
        if self.cut:
            near.held.append(messages)
        else:
            self._carry(near, messages, size, 0.0)

    def _carry(self, near: End, messages: list[Message], size: int, extra_s: float) -> None:
        clock, path = self.world.clock, near.path
        arrives_s = clock.now_s + path.delay_s + self.world.network.take_control(path.links, size) + extra_s
        near.arrives_s = max(near.arrives_s, arrives_s)
        clock.at(near.arrives_s, self._arrive, near, messages)

    def _arrive(self, near: End, messages: list[Message]) -> None:
        far = self.ends[1] if near is self.ends[0] else self.ends[0]
        if self.open and not self.cut:
            far.node.receive(self, far.number, messages)
        elif self.open:
            near.held.append(messages)

    # -- chunks ---------------------------------------------------------------------------------------------

    def open_lanes(self, dialler_s: float, other_s: float) -> None:
        """Let chunks flow from each end at these times: the lane's handshake is over."""
        for end, ready_s in zip(self.ends, (dialler_s, other_s), strict=True):
            self.world.clock.at(ready_s, self._lane_ready, end)

    def _lane_ready(self, end: End) -> None:
        if not self.open:
            return
        far = self.ends[1] if end is self.ends[0] else self.ends[0]
        end.lane = Lane(
            self.world.network,
            end.path,
            lambda parcel: self._came(far, parcel),
            lambda parcel: self._left(end, parcel),
        )
        if end.node.host.lie is Lie.TRICKLE:
            end.lane.cap = TRICKLE_RATE
        end.lane.block(blocked=self.cut)
        self._hand_over(end)

    def look_at(self, receiver: Node) -> bool:
        """Let the node learn, when it gets there, how much of what is sent to it has left by now.

        Returns whether more is to come than has left.
        """
        far = self.far_end(receiver)
        if not self.open:
            return False
        if far.lane is None:
            return True
        sent = far.lane.sent_bytes()
        if sent > far.looked_at:
            far.looked_at = sent
            now_s, path = self.world.clock.now_s, far.path
            arrives_s = now_s + path.delay_s + self.world.network.wait_s(path.links)
            self.world.clock.at(arrives_s, receiver.progressed, self.end_of(receiver).number, int(sent))
        return bool(far.waiting or far.lane.queue)

    def serve(self, sender: Node, parcel: Parcel) -> None:
        """Queue a chunk behind those already asked for."""
        end = self.end_of(sender)
        end.waiting.append(parcel)
        self.far_end(sender).node.expects(self)
        self._hand_over(end)

    def withdraw(self, sender: Node, request: int) -> None:
        """Reject a request whose chunk still waits for room in the lane."""
        end = self.end_of(sender)
        for parcel in [parcel for parcel in end.waiting if parcel.request == request]:
            end.waiting.remove(parcel)
            self.send(sender, [Reject(request, Reason.BUSY)])
            sender.chunk_left(end.number, parcel.name)

    def _hand_over(self, end: End) -> None:
        """Give the kernel what it has room for."""
        while self.open and end.lane is not None and end.waiting and has_room(end.lane, end.in_lane):
            parcel = end.waiting.popleft()
            end.in_lane += parcel.size
            end.lane.send(parcel, parcel.size)
            self.world.clock.at(self.world.clock.now_s, end.node.chunk_left, end.number, parcel.name)

    def _came(self, end: End, parcel: Parcel) -> None:
        if parcel.ends:
            end.node.chunk_came(end.number, parcel)

    def _left(self, end: End, parcel: Parcel) -> None:
        if not parcel.ends:
            return  # and nothing after it
        end.in_lane -= parcel.size
        self._hand_over(end)

    # -- faults ---------------------------------------------------------------------------------------------

    def set_cut(self, *, cut: bool) -> None:
        """Cut the path, or heal it: what was held back goes on a little later."""
        if cut == self.cut or not self.open:
            return
        self.cut = cut
        for end in self.ends:
            if end.lane is not None:
                end.lane.block(blocked=cut)
            if not cut:
                held, end.held = end.held, []
                for messages in held:
                    self._carry(end, messages, 0, RESUME_S)

    def close(self, by: Node | None) -> None:
        """Close the wire. The end at `by` knows at once, the other when the news reaches it; None: neither does."""
        if not self.open:
            return
        self.open = False
        for end in self.ends:
            if end.lane is not None:
                end.lane.close()
        if by is None:
            return
        near, far = self.end_of(by), self.far_end(by)
        near.node.wire_down(near.number)
        if not self.cut:
            wait_s = near.path.delay_s + self.world.network.wait_s(near.path.links)
            self.world.clock.at(max(near.arrives_s, self.world.clock.now_s + wait_s), far.node.wire_down, far.number)
