"""What a gateway says of itself: the body of GET /server_info, and why it is not ready."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from .choice import Applied, Staleness
from .follower import Follower
from .gate import Gate
from .mover import Mover


class AppliedInfo(msgspec.Struct, frozen=True):
    """Weights that the engine has confirmed."""

    epoch: int
    version: int
    label: str
    manifest: str

    @classmethod
    def of(cls, applied: Applied | None) -> Self | None:
        """As the mover keeps it."""
        return None if applied is None else cls(applied.epoch, applied.version, applied.label, applied.manifest)


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One stream and how far behind its head the engine is."""

    stream: str
    adapter: str
    applied: AppliedInfo | None
    held: list[int]
    """Versions that the local daemon can lease out."""
    head: int | None
    lag: int
    lag_s: float
    on_its_way: dict[str, Any] | None


class MoveInfo(msgspec.Struct, frozen=True):
    """One move, seconds in each part of it."""

    stream: str
    version: int
    loads: int
    held_s: float
    drained_s: float
    paused_s: float


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /server_info."""

    ready: bool
    reasons: list[str]
    engine: str
    engine_url: str = ""
    state: str = "idle"
    commit_mode: str = ""
    applied: AppliedInfo | None = None
    """Of the model's own weights."""
    target: int | None = None
    active_requests: int = 0
    last_error: str | None = None
    streams: list[StreamInfo] = []
    moves: list[MoveInfo] = []
    holds: int = 0
    """Versions held for the leader of a group."""

    @classmethod
    def of(cls, engine: str, engine_url: str, quiesce: bool, gate: Gate, mover: Mover, staleness: Staleness) -> Self:
        """The status of a gateway before an engine."""
        streams = [_stream(follower, gate) for follower in mover.followers]
        reasons = [gate.blocked] if gate.blocked else []
        for follower, info in zip(mover.followers, streams, strict=True):
            reasons += _reasons(follower, info, staleness)
        if mover.failure and (reasons or mover.machine.state == "error"):
            reasons.append(f"the last move failed: {mover.failure}")
        return cls(
            ready=not reasons,
            reasons=reasons,
            engine=engine,
            engine_url=engine_url,
            state=mover.machine.state.value,
            commit_mode="quiesce" if quiesce else "in_place",
            applied=next((info.applied for info in streams if not info.adapter), None),
            target=mover.target.version if mover.target else None,
            active_requests=gate.active,
            last_error=mover.failure or None,
            streams=streams,
            moves=[MoveInfo(m.stream, m.version, m.loads, m.held_s, m.drained_s, m.paused_s) for m in mover.moves],
        )

    @classmethod
    def member(cls, holds: int) -> Self:
        """The status of a host without an engine."""
        return cls(ready=True, reasons=[], engine="none", holds=holds)


def _stream(follower: Follower, gate: Gate) -> StreamInfo:
    applied, status = gate.applied(follower.target.stream), follower.status
    behind_here = 0
    if applied is not None and follower.current is not None and follower.current > applied.order:
        behind_here = max(1, follower.current[1] - applied.version)
    return StreamInfo(
        stream=follower.target.stream,
        adapter=follower.target.adapter,
        applied=AppliedInfo.of(applied),
        held=sorted(each.version for each in follower.held),
        head=status.head.version if status and status.head else None,
        lag=(status.lag if status else 0) + behind_here,
        lag_s=max(status.lag_s if status else 0.0, follower.waiting_s(applied)),
        on_its_way=follower.on_its_way(),
    )


def _reasons(follower: Follower, info: StreamInfo, staleness: Staleness) -> list[str]:
    name = f"stream {info.stream}"
    if info.applied is None:
        return [f"{name}: no weights confirmed yet" + (f" ({follower.failure})" if follower.failure else "")]
    stale = staleness.reason(info.lag, info.lag_s)
    if stale is not None:
        return [f"{name}: {stale}"]
    if follower.failure and (staleness.versions or staleness.seconds):
        return [f"{name}: how far behind it is cannot be told: {follower.failure}"]
    return []
