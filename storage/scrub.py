"""The scrub: everything kept is read again, slowly, so that a flipped bit is found before anybody needs the byte.

A damaged chunk leaves the store. A wrong block of a slot is mended from the slot's twin; where there is none the
version is withdrawn, and the caller mends it from the swarm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .chunks import ChunkStore
from .errors import ChunkMissingError, SlotGoneError, SlotsBusyError, VerifyStoppedError
from .slots import Slot, StreamSlots


@dataclass(slots=True)
class ScrubReport:
    """What a scrub read, and what it found."""

    read_bytes: int = 0
    damaged_chunks: list[bytes] = field(default_factory=list)
    """Names of chunks that were damaged; they are not offered any more."""
    mended: list[Slot] = field(default_factory=list)
    """Slots whose wrong blocks were mended from another slot."""
    withdrawn: list[tuple[Slot, list[int]]] = field(default_factory=list)
    """Slots with wrong blocks that no slot here could mend."""


def scrub_chunks(store: ChunkStore, pace: Callable[[int], bool], report: ScrubReport) -> None:
    """Hash every chunk. `pace(size_bytes)` waits as long as the rate asks after each; False ends the scrub."""
    for name in store.names():
        try:
            size = store.size(name)
        except ChunkMissingError:
            continue
        if not store.check(name) and not store.has(name):
            report.damaged_chunks.append(name)
        report.read_bytes += size
        if not pace(size):
            return


def scrub_slots(
    slots: StreamSlots, digests_of: Callable[[bytes], bytes | None], pace: Callable[[int], bool], report: ScrubReport
) -> None:
    """Hold every slot against its digest table (`digests_of(manifest)`, None when it is not here), one thread.

    A version whose blocks were wrong is withdrawn before they are mended and proven again after.
    """

    def count(size_bytes: int) -> bool:
        report.read_bytes += size_bytes
        return pace(size_bytes)

    for slot in slots.slots():
        digests = digests_of(slot.manifest)
        if digests is None:
            continue
        try:
            bad = slots.verify_slot(slot, digests, 1, count)
            if bad:
                _mend(slots, slot, bad, digests, report)
            elif slot.withdrawn or slot.suspect or not slot.proven:
                slots.mark_proven(slot)
        except (SlotGoneError, SlotsBusyError):
            continue  # it made way for a newer version, or is being read: the next scrub sees what is there then
        except VerifyStoppedError:
            return


def _mend(slots: StreamSlots, slot: Slot, bad: list[int], digests: bytes, report: ScrubReport) -> None:
    withdrawn = slots.withdraw(slot)
    left = slots.repair(withdrawn, bad, digests)
    if left:
        report.withdrawn.append((withdrawn, left))
        return
    report.mended.append(slots.mark_proven(withdrawn))
