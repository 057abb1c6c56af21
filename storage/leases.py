"""Leases: readers' time-limited holds on versions, kept across a restart of the daemon.

A lease that runs out unreleased, or is voided, *taints* its slot: a reader may still have it mapped, so its
inodes are never written again. The taint is kept with the lease until the slot is unlinked.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from .catalog import Catalog, LeaseRow
from .errors import LeaseGoneError, StorageError, UnknownLeaseError

_REMEMBER_S: Final = 24 * 3600.0
"""How long an ended lease is answered with "gone" rather than "unknown"."""


class LeaseState(IntEnum):
    """Values are disk format."""

    HELD = 0
    EXPIRED = 1
    VOIDED = 2


@dataclass(frozen=True, slots=True)
class Held:
    """One lease in the book."""

    id: str
    epoch: int
    version: int
    manifest: bytes
    expires_at: float
    state: LeaseState
    durable: bool
    on_slot: bool
    """Whether the slot it was given on still exists."""


class LeaseBook:
    """All leases of one stream. Not thread-safe: its StreamSlots locks. Times are Unix seconds."""

    def __init__(self, stream: str, catalog: Catalog, boot: bytes) -> None:
        self._stream = stream
        self._catalog = catalog
        self._boot = boot
        self._leases: dict[str, Held] = {}
        rows = catalog.leases(stream)
        catalog.drop_leases(row.id for row in rows if row.boot != boot)  # their readers died with the machine
        for row in rows:
            if row.boot == boot:
                state = LeaseState(row.state & 3)
                self._leases[row.id] = Held(
                    row.id, row.epoch, row.version, row.manifest, row.expires_at, state, True, row.state < 4
                )

    def grant(self, epoch: int, version: int, manifest: bytes, expires_at: float, *, durable: bool) -> Held:
        """A new lease. One that is not durable is the daemon's own and ends with it."""
        held = Held(secrets.token_hex(12), epoch, version, manifest, expires_at, LeaseState.HELD, durable, True)
        self._keep(held)
        return held

    def renew(self, id: str, expires_at: float, now: float) -> Held:  # noqa: A002 - the API's own word
        """Extend a lease. Raises UnknownLeaseError; LeaseGoneError when it ran out or was voided."""
        held = self._find(id)
        if held.expires_at < now:
            self._keep(replace(held, state=LeaseState.EXPIRED))
            raise _gone(held)
        held = replace(held, expires_at=expires_at)
        self._keep(held)
        return held

    def release(self, id: str) -> Held:  # noqa: A002
        """End a lease. Raises UnknownLeaseError; LeaseGoneError when it ran out or was voided."""
        held = self._find(id)
        self._drop([id])
        return held

    def expire(self, now: float) -> None:
        """Mark what ran out; forget what ended long ago and holds nothing back."""
        for held in list(self._leases.values()):
            if held.state is LeaseState.HELD and held.expires_at < now:
                self._keep(replace(held, state=LeaseState.EXPIRED))
        self._drop(
            [
                held.id
                for held in self._leases.values()
                if held.state is not LeaseState.HELD and not held.on_slot and held.expires_at < now - _REMEMBER_S
            ]
        )

    def move(self, id: str, epoch: int, version: int, manifest: bytes) -> None:  # noqa: A002
        """The slot under a lease became another version with its holder's consent."""
        held = self._leases.get(id)
        if held is not None and held.state is LeaseState.HELD:
            # Where it is not written now, its next renewal writes it.
            self._keep_here(replace(held, epoch=epoch, version=version, manifest=manifest))

    def void(self, epoch: int, version: int) -> None:
        """End all leases on a version that must not be read any more."""
        for held in self._on(epoch, version):
            if held.state is LeaseState.HELD:
                # Nobody may read on because the catalog cannot be written.
                self._keep_here(replace(held, state=LeaseState.VOIDED))

    def slot_gone(self, epoch: int, version: int, *, but: str = "") -> None:
        """The version's inodes were unlinked: what was held on them is over, `but` for one lease."""
        for held in self._on(epoch, version):
            if held.id == but:
                continue
            state = LeaseState.VOIDED if held.state is LeaseState.HELD else held.state
            # Where it is not written, opening compares leases with slots, and comes to the same end.
            self._keep_here(replace(held, state=state, on_slot=False))

    def orders(self) -> set[tuple[int, int]]:
        """(epoch, version) of every slot that leases refer to."""
        return {(held.epoch, held.version) for held in self._leases.values() if held.on_slot}

    def is_held(self, epoch: int, version: int) -> bool:
        """Whether anyone holds the version."""
        return any(held.state is LeaseState.HELD for held in self._on(epoch, version))

    def holders(self, epoch: int, version: int) -> list[str]:
        """Ids of the leases held on the version."""
        return [held.id for held in self._on(epoch, version) if held.state is LeaseState.HELD]

    def count(self) -> int:
        """Leases that are held now, on any version."""
        return sum(held.state is LeaseState.HELD for held in self._leases.values())

    def is_tainted(self, epoch: int, version: int) -> bool:
        """Whether a reader that lost its lease may still have the version's files mapped."""
        return any(held.state is not LeaseState.HELD for held in self._on(epoch, version))

    def _on(self, epoch: int, version: int) -> list[Held]:
        return [
            held for held in self._leases.values() if held.on_slot and (held.epoch, held.version) == (epoch, version)
        ]

    def _find(self, id: str) -> Held:  # noqa: A002
        held = self._leases.get(id)
        if held is None:
            raise UnknownLeaseError(f"lease {id[:40]!r} is not known for stream {self._stream}: take a new one")
        if held.state is not LeaseState.HELD:
            raise _gone(held)
        return held

    def _keep(self, held: Held) -> None:
        if held.durable:
            state = int(held.state) + (0 if held.on_slot else 4)
            self._catalog.put_lease(
                LeaseRow(
                    held.id, self._stream, held.epoch, held.version, held.manifest, held.expires_at, state, self._boot
                )
            )
        self._leases[held.id] = held

    def _keep_here(self, held: Held) -> None:
        """Keep it in memory in any case, and in the catalog where that can be written."""
        self._leases[held.id] = held
        with suppress(StorageError):
            self._keep(held)

    def _drop(self, ids: list[str]) -> None:
        durable = [id_ for id_ in ids if self._leases[id_].durable]
        if durable:
            self._catalog.drop_leases(durable)
        for id_ in ids:
            del self._leases[id_]


def _gone(held: Held) -> LeaseGoneError:
    why = "was voided" if held.state is LeaseState.VOIDED else "ran out"
    return LeaseGoneError(f"lease {held.id} on version {held.version} {why}: take a new one and load again")
