"""Effects: what the protocol core wants done. The daemon, or the simulator, does it."""

from __future__ import annotations

from dataclasses import dataclass

from .manifest import Transition
from .messages import Message, ObjectKind


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on a link."""

    link: int
    message: Message


@dataclass(frozen=True, slots=True)
class Serve:
    """Answer a request with a chunk from the store: on a lane, or in pieces on the control connection."""

    link: int
    request: int
    name: bytes
    secure: bool


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Answer with a reject what a `Serve` was to answer, if none of the chunk has left, and report `chunk_served`."""

    link: int
    request: int


@dataclass(frozen=True, slots=True)
class ServeBlock:
    """Answer a request for a block of a slot, in pieces on the control connection, or with a reject."""

    link: int
    request: int
    manifest: bytes
    block: int


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close a link and its lanes."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a control connection to this address; report `link_up`, or `dial_failed`."""

    address: str


@dataclass(frozen=True, slots=True)
class Persist:
    """A signed object was learned and should survive a restart."""

    kind: ObjectKind
    digest: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Objects that newer ones have replaced: they need not survive a restart."""

    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StreamKnown:
    """A stream that this node follows is known for the first time, or has a new record."""

    stream: str


@dataclass(frozen=True, slots=True)
class HeadMoved:
    """A newer manifest of this stream is known."""

    stream: str


@dataclass(frozen=True, slots=True)
class IndexHere:
    """All blob chunks of this attempt are stored: open its index and call `index_known`."""

    attempt: bytes


@dataclass(frozen=True, slots=True)
class RouteReady:
    """Every chunk of a route to the stream's head is stored. `route` may be empty: the head is held already."""

    stream: str
    route: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class SiteFound:
    """A node without a site label has found, or changed, its cluster: say so in its record."""

    site: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """An attempt came to nothing, or is long past: its chunks are of no use.

    `attempt` is empty for a chunk that arrived when its attempt had been dropped already.
    """

    attempt: bytes
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Rival:
    """A record of this very node was heard that another life of it has signed, and later than all of ours."""

    incarnation: bytes
    serial: int


Effect = (
    Send
    | Serve
    | Withdraw
    | ServeBlock
    | Hangup
    | Dial
    | Persist
    | Forget
    | StreamKnown
    | HeadMoved
    | IndexHere
    | RouteReady
    | SiteFound
    | Rival
    | Dropped
)
