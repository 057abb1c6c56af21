"""Upkeep: every slot of a stream is proven against its digest table, again and again, and mended when it is wrong.

A slot from before the last boot is verified before it is served; a new version in the background once it is; every
slot again within `verify_every_s`. A version with a wrong block is withdrawn at once, then its blocks are mended
from its twin, or from other nodes; where nobody has them, the slot is dropped and the version is fetched anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from ..protocol.errors import ProtocolError
from ..storage.errors import SlotDamagedError, SlotGoneError, SlotsBusyError, StorageError, VerifyStoppedError
from ..storage.slots import Slot
from .background import in_thread
from .replica import Replica

_log: Final = structlog.get_logger(__name__)

RETRY_S: Final = 5.0
"""After a check that could not be done, or mending that failed."""

LISTS_WAIT_S: Final = 60.0
"""How long an unserved slot waits for its digest table before it is dropped: it can never be served without."""

MEND_BLOCKS: Final = 16
"""Blocks fetched from other nodes at a time: bounds the memory that mending takes."""

FetchBlocks = Callable[[bytes, Sequence[int], bytes], Awaitable[dict[int, bytes]]]
"""(manifest, block numbers, digest table) to the blocks that other nodes gave."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found in one slot. `left` are the wrong blocks that were not mended."""

    slot: Slot
    blocks: int
    bad: int
    left: int
    problem: str = ""
    """Why the slot could not be checked."""


@dataclass(slots=True)
class Checking:
    """How far a check has come that somebody waits for."""

    version: int
    total_bytes: int
    done_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """So many bytes more are checked."""
        self.done_bytes += size_bytes


class Upkeep:
    """The upkeep of one stream's slots. `run` is its task; the rest is called on the event loop.

    `share` of the time, at most, goes into checks that nothing waits for.
    """

    def __init__(self, replica: Replica, fetch: FetchBlocks, *, every_s: float, share: float) -> None:
        self._replica = replica
        self._fetch = fetch
        self.set_pace(every_s=every_s, share=share)
        self._lock = asyncio.Lock()
        began_s = time.monotonic()
        self._due_s: dict[tuple[bytes, bool], float] = {}  # slots that were checked, or could not be: when next
        self._last_s = {False: began_s, True: began_s}  # the last whole check of a committed version, of a twin
        self._without_lists_s: dict[bytes, float] = {}
        self.checking: Checking | None = None
        """What is being verified because somebody asked for it, or before it may be served."""

    def set_pace(self, *, every_s: float, share: float) -> None:
        """Check each slot at least so often, with at most this share of the time."""
        self._every_s = every_s
        self._share = share

    async def run(self) -> None:
        """Check what is due until cancelled."""
        while True:
            changed = self._replica.changes()
            slot, due_s = self._next()
            if slot is not None and due_s <= time.monotonic():
                async with self._lock:
                    await self._check(slot, mend=True)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(due_s - time.monotonic(), 0.001) if slot else None):
                    await changed.wait()

    async def check_all(self, *, mend: bool) -> list[Checked]:
        """Check every slot now, at full speed. Wrong ones are withdrawn; with `mend` they are mended before this ends.

        Without, they are mended afterwards.
        """
        async with self._lock:
            slots = self._replica.slots.slots()
            self.checking = Checking(0, sum(slot.layout.size for slot in slots))
            try:
                return [await self._check(slot, mend=mend, asked=True) for slot in slots]
            finally:
                self.checking = None

    # -- what is due ----------------------------------------------------------------------------------------

    def _next(self) -> tuple[Slot | None, float]:
        """The slot to be checked next, and when (monotonic)."""
        slots = self._replica.slots.slots()
        keys = {_key(slot) for slot in slots}
        self._due_s = {key: due_s for key, due_s in self._due_s.items() if key in keys}
        order = sorted(slots, key=lambda slot: (self._due(slot), not slot.suspect, slot.twin, -slot.version))
        return (order[0], self._due(order[0])) if order else (None, 0.0)

    def _due(self, slot: Slot) -> float:
        if slot.suspect or slot.withdrawn or not (slot.proven or slot.twin):
            return self._due_s.get(_key(slot), 0.0)
        # A twin changes with each step: what counts is when one was last seen to be whole.
        return self._due_s.get(_key(slot), self._last_s[slot.twin] + self._every_s)

    def _later(self, slot: Slot, wait_s: float) -> None:
        self._due_s[_key(slot)] = time.monotonic() + wait_s

    # -- checking -------------------------------------------------------------------------------------------

    async def _check(self, slot: Slot, *, mend: bool, asked: bool = False) -> Checked:
        blocks = sum(1 for _ in slot.layout.blocks())
        urgent = slot.suspect or slot.withdrawn or asked
        with self._showing(slot, asked=asked):
            return await self._check_now(slot, blocks, mend=mend, urgent=urgent)

    @contextlib.contextmanager
    def _showing(self, slot: Slot, *, asked: bool) -> Iterator[None]:
        """Have `checking` say how far it has come, where somebody waits for it."""
        if asked and self.checking is not None:
            self.checking.version = slot.version  # one of several: they count together
            yield
        elif slot.suspect and not slot.twin:
            self.checking = Checking(slot.version, slot.layout.size)
            try:
                yield
            finally:
                self.checking = None
        else:
            yield

    async def _check_now(self, slot: Slot, blocks: int, *, mend: bool, urgent: bool) -> Checked:
        try:
            digests = await self._replica.digests_of(slot.manifest)
            if digests is None:
                return await self._without_lists(slot, blocks)
            self._later(slot, RETRY_S)
            try:
                bad = await self._verify(slot, digests, urgent=urgent)
            except SlotDamagedError as error:
                slot = await self._refitted(slot, error)
                bad = await self._verify(slot, digests, urgent=True)
            left = await self._found(slot, bad, digests, mend=mend)
        except (SlotGoneError, SlotsBusyError, VerifyStoppedError) as error:
            return Checked(slot, blocks, 0, 0, str(error))  # it made way for a newer version, or is being read
        except (StorageError, ProtocolError, OSError) as error:
            _log.warning("check failed", stream=slot.stream, version=slot.version, reason=str(error))
            self._replica.report(f"version {slot.version} could not be checked or mended: {error}")
            return Checked(slot, blocks, 0, 0, str(error))
        return Checked(slot, blocks, len(bad), left)

    async def _without_lists(self, slot: Slot, blocks: int) -> Checked:
        """A slot whose digest table is not here cannot be checked; one that is not served then is of no use."""
        since_s = self._without_lists_s.setdefault(slot.manifest, time.monotonic())
        self._later(slot, RETRY_S)
        if (slot.suspect or slot.withdrawn) and time.monotonic() - since_s > LISTS_WAIT_S:
            with contextlib.suppress(SlotsBusyError, SlotGoneError):
                await asyncio.to_thread(self._replica.slots.drop, slot)
                _log.warning("slot dropped: nothing to verify it by", stream=slot.stream, version=slot.version)
            self._replica.lost()
        return Checked(slot, blocks, 0, 0, "its digest table is not here")

    async def _refitted(self, slot: Slot, error: SlotDamagedError) -> Slot:
        """A slot that lacks a file, or part of one: withdrawn, with an empty one in its place, which is then mended."""
        replica = self._replica
        _log.error("files lost", stream=slot.stream, version=slot.version, twin=slot.twin, reason=str(error))
        replica.report(f"version {slot.version} has lost files ({error}): withdrawn, being mended")
        damaged = await asyncio.to_thread(replica.withdraw, slot)
        async with replica.quietly():
            await asyncio.to_thread(replica.slots.refit, damaged)
        return damaged

    async def _verify(self, slot: Slot, digests: bytes, *, urgent: bool) -> list[int]:
        """Numbers of wrong blocks. One that nothing waits for goes slowly, in one thread."""
        slots = self._replica.slots
        # Steps that come faster than a check ends would put it off for ever: once it is overdue, they wait.
        overdue = time.monotonic() > self._last_s[slot.twin] + 2 * self._every_s
        share = 1.0 if urgent or overdue or not slot.proven else self._share
        threads = self._replica.threads if urgent else max(1, self._replica.threads // 2) if not slot.proven else 1
        with contextlib.ExitStack() as stack:
            if overdue:
                slots.pin(slot)
                stack.callback(slots.unpin, slot)
            done = self.checking.add if self.checking is not None else None
            return await in_thread(partial(slots.verify_slot, slot, digests, threads), share, done)

    async def _found(self, slot: Slot, bad: list[int], digests: bytes, *, mend: bool) -> int:
        """Act on what a check found; returns how many wrong blocks are left."""
        replica = self._replica
        if not bad:
            self._last_s[slot.twin] = time.monotonic()
            if slot.suspect or slot.withdrawn or not slot.proven:
                await asyncio.to_thread(replica.slots.mark_proven, slot)
                replica.checked()
            self._later(slot, self._every_s)
            return 0
        _log.error("wrong blocks", stream=slot.stream, version=slot.version, twin=slot.twin, blocks=bad[:8])
        replica.report(f"version {slot.version} had {len(bad)} wrong blocks in {slot.path}: withdrawn, being mended")
        damaged = await asyncio.to_thread(replica.withdraw, slot)
        if not mend:
            self._later(slot, 0.0)
            return len(bad)
        return await self._mend(damaged, bad, digests)

    # -- mending --------------------------------------------------------------------------------------------

    async def _mend(self, slot: Slot, bad: list[int], digests: bytes) -> int:
        replica = self._replica
        async with replica.quietly():
            await asyncio.to_thread(self._vouch, slot, digests)
            left = await asyncio.to_thread(replica.slots.repair, slot, bad, digests)
            left = await self._from_others(slot, left, digests)
            if left:
                # Nobody has the bytes: what is here is of no use, and the version comes again by a route.
                await asyncio.to_thread(replica.slots.drop, slot)
            else:
                await asyncio.to_thread(replica.slots.mark_proven, slot)
        if left:
            _log.error("slot dropped", stream=slot.stream, version=slot.version, wrong_blocks=len(left))
            replica.report(f"version {slot.version} had {len(left)} wrong blocks that no node has: fetched anew")
            replica.lost()
            return len(left)
        _log.warning("mended", stream=slot.stream, version=slot.version, blocks=len(bad))
        replica.report(f"version {slot.version} had {len(bad)} wrong blocks in {slot.path}: mended")
        self._last_s[slot.twin] = time.monotonic()
        self._later(slot, self._every_s)
        replica.checked()
        return 0

    def _vouch(self, slot: Slot, digests: bytes) -> None:
        """After a reboot the twin is unproven too: see whether it may serve as a source."""
        slots = self._replica.slots
        for other in [each for each in slots.slots() if each.manifest == slot.manifest and each.twin != slot.twin]:
            if other.suspect and not other.withdrawn and not slots.verify_slot(other, digests):
                slots.mark_proven(other)

    async def _from_others(self, slot: Slot, left: list[int], digests: bytes) -> list[int]:
        """Mend blocks with bytes of other nodes; returns those that could not be had."""
        missing = []
        for at in range(0, len(left), MEND_BLOCKS):
            some = left[at : at + MEND_BLOCKS]
            got = await self._fetch(slot.manifest, some, digests)
            missing += await asyncio.to_thread(self._replica.slots.repair, slot, some, digests, got.get)
        return missing


def _key(slot: Slot) -> tuple[bytes, bool]:
    return slot.manifest, slot.twin
