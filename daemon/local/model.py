"""The bodies of the local API: every request and response, as both ends see them.

Numbers carry their unit in the name; points in time are Unix seconds; digests are hexadecimal. Request bodies
refuse fields they do not know; readers of answers ignore them, so answers may grow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

PROBLEM_PREFIX: Final = "urn:patchswarm:problem:"
"""What every problem's `type` starts with; its slug follows (see `errors`)."""

MAX_WAIT_S: Final = 3600.0
MAX_TTL_S: Final = 86400.0

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_TtlSeconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL_S)]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong (RFC 9457, application/problem+json). `remedy` and `context` are our extension members."""

    type: str
    title: str
    status: int
    detail: str
    remedy: str = ""
    """What to do about it; "" where the detail says it."""
    context: dict[str, Any] = {}

    @property
    def slug(self) -> str:
        """The last word of `type`, stable for programs."""
        return self.type.removeprefix(PROBLEM_PREFIX)


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One committed version."""

    stream: str
    epoch: int
    version: int
    label: str
    manifest: str
    """Digest of the manifest: the version's identity."""
    size_bytes: int
    proven: bool
    """Whether the digest table has confirmed every block of the slot that holds it here."""
    path: str | None = None
    """The slot that holds it, or null when its bytes are not on this node. Read it under a lease only."""
    committed_at: float | None = None


class VersionLife(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a version on this node."""

    stream: str
    epoch: int
    version: int
    trace: str
    """The same on every node, and in its log lines."""
    moments: dict[str, float]
    """Unix seconds by name: announced, first_byte, complete, rebuilt, committed, verified."""


class LifeList(msgspec.Struct, frozen=True):
    """Answer of GET …/lives."""

    lives: list[VersionLife]


class HeadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version that the fleet has announced."""

    epoch: int
    version: int
    manifest: str


class StreamState(StrEnum):
    """What a node is doing in a stream."""

    WAITING = "waiting"
    """Nothing has been announced yet."""
    FETCHING = "fetching"
    REBUILDING = "rebuilding"
    PUBLISHING = "publishing"
    VERIFYING = "verifying"
    """What is here was written before the machine's last boot, and is not served until it is verified."""
    CURRENT = "current"
    """The head is committed here."""
    BEHIND = "behind"
    """A newer head is known, and nothing can be done towards it now; `last_error` may say why."""
    ERROR = "error"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a version has come that is being fetched, or verified because somebody waits for it."""

    version: int
    stage: str
    """`fetch` or `verify`."""
    done_bytes: int
    total_bytes: int


class LastError(msgspec.Struct, frozen=True, kw_only=True):
    """The last thing that went wrong in a stream."""

    at: float
    detail: str


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One stream as this node sees it."""

    stream: str
    state: StreamState
    publisher: bool = False
    """Whether this node publishes the stream."""
    current: VersionInfo | None = None
    head: HeadInfo | None = None
    lag: int = 0
    """Versions that the head is ahead of `current`."""
    lag_s: float = 0.0
    """Seconds since the oldest version not yet committed here was announced."""
    proven: bool = False
    """`current.proven`, for those who look at nothing else."""
    progress: Progress | None = None
    last_error: LastError | None = None
    head_age_s: float | None = None
    """Seconds since the publisher last said which version is the newest; None while it has not been heard."""


class StreamList(msgspec.Struct, frozen=True):
    """Answer of GET /v1/streams."""

    streams: list[StreamStatus]


class VersionList(msgspec.Struct, frozen=True):
    """Answer of GET …/versions, newest first."""

    versions: list[VersionInfo]


NodePrefix = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8,64}$")]
"""The first hex digits of a node's id, or all 64."""


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST …/leases. Without a version: the current one."""

    version: _Number | None = None
    ttl_s: _TtlSeconds = 60.0
    group: Annotated[list[NodePrefix], msgspec.Meta(max_length=64)] = []
    """Other hosts of one engine, by the first 8 or more digits of their node ids: the lease is given only when each of
    them has committed the same version, as far as this node has heard."""


class RenewRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of PUT …/leases/{lease}."""

    ttl_s: _TtlSeconds = 60.0


class LeaseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A hold on the slot at `path`: until `expires_at` nobody writes to it."""

    lease: str
    stream: str
    epoch: int
    version: int
    label: str
    manifest: str
    size_bytes: int
    path: str
    proven: bool
    expires_at: float


class PublishRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST …/versions. Without a version: one more than the newest."""

    directory: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    """Absolute path on the daemon's host."""
    version: _Number | None = None
    label: Annotated[str, msgspec.Meta(max_length=256)] = ""
    base: bool = False
    """The hosts have these bytes already: register them, send nothing."""
    streamed: bool = True
    """Hosts fetch what is encoded while the rest still is; False only to compare."""


class PublishProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a publish has come."""

    stage: str
    done_bytes: int
    total_bytes: int


class PublishResult(msgspec.Struct, frozen=True, kw_only=True):
    """A published version and what it cost."""

    stream: str
    epoch: int
    version: int
    label: str
    manifest: str
    changed_fraction: float
    """Changed elements over all elements, 0 to 1."""
    changed_elements: int
    full_bytes: int
    patch_bytes: int
    ratio: float
    """`full_bytes` over `patch_bytes`; 0 when nothing was sent."""
    chunks: int
    seconds: dict[str, float]
    """Seconds per stage, by its name."""


class PublishLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a publish's answer (application/x-ndjson): exactly one member; `result` or `problem` is the last."""

    progress: PublishProgress | None = None
    result: PublishResult | None = None
    problem: Problem | None = None


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of POST …/verify. With `repair` the answer waits until wrong blocks are mended; they are in any case."""

    repair: bool = False


class SlotCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found in one slot."""

    path: str
    epoch: int
    version: int
    twin: bool
    """A hidden copy, never served."""
    blocks: int
    """4 MiB blocks in all."""
    bad: int
    """Blocks that differed from the version's digest table."""
    left: int
    """Those that were not mended when this was answered."""
    problem: str = ""
    """Why the slot could not be checked or mended."""


class VerifyReport(msgspec.Struct, frozen=True):
    """Answer of POST …/verify."""

    slots: list[SlotCheck]


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint; `path` is below its directory, '/' between parts."""

    path: str
    size_bytes: int


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET …/versions/{v}/files."""

    version: VersionInfo
    files: list[FileInfo]


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: `size_bytes` little-endian bytes from `offset` in `file`. `dtype` is safetensors' name for it."""

    name: str
    dtype: str
    shape: list[int]
    file: str
    offset: int
    size_bytes: int


class TensorList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET …/versions/{v}/tensors."""

    version: VersionInfo
    tensors: list[TensorInfo]


class PeerHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer has committed in one stream."""

    stream: str
    epoch: int
    version: int


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another node as this one sees it."""

    node: str
    site: str
    addresses: list[str]
    connected: bool
    rtt_ms: float | None = None
    up_bytes_per_s: float = 0.0
    """Measured goodput towards the peer."""
    down_bytes_per_s: float = 0.0
    lanes: int = 0
    strikes: int = 0
    heads: list[PeerHead] = []


class PeerList(msgspec.Struct, frozen=True):
    """Answer of GET /v1/peers."""

    peers: list[PeerStatus]


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/node."""

    node: str
    site: str
    certificate_ends_at: float
    """Unix time; it is renewed long before, see `problems` when it is not."""
    problems: list[str] = []
    """What an operator should look at, one line each."""
    slot_dir: str = ""
    """Where the checkpoints lie; a trainer stages its own beside them."""


class Health(msgspec.Struct, frozen=True):
    """Answer of GET /healthz: the event loop turns."""

    ok: bool


class Readiness(msgspec.Struct, frozen=True):
    """Answer of GET /readyz: whether this node serves current weights, and if not, why."""

    ready: bool
    reasons: list[str] = []
