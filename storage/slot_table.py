"""The slots that a stream has: which is served, who reads what, what is proven, what is retired."""

from __future__ import annotations

import os
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..protocol.ids import check_stream_name
from ..protocol.layout import Layout
from .catalog import Catalog, Mark
from .directories import Directories, Directory
from .errors import SlotGoneError, SlotsBusyError, StorageError, VerifyStoppedError
from .files import Files, make_folders
from .leases import Held, LeaseBook
from .mapped import MappedFiles
from .state import Phase
from .verify import RUN_BLOCKS, checked_blocks, compare_blocks, hashers


@dataclass(frozen=True, slots=True)
class Slot:
    """One materialised version, as it was when asked for."""

    path: Path
    stream: str
    epoch: int
    version: int
    manifest: bytes
    label: str
    layout: Layout
    proven: bool
    """The whole digest table was checked."""
    twin: bool
    """A hidden copy, never served."""
    withdrawn: bool
    """Holds a wrong block: not served until repaired."""
    suspect: bool
    """Written before the machine's last boot: not served until `verify_slot` and `mark_proven`."""

    @property
    def order(self) -> tuple[int, int]:
        """(epoch, version): the order of versions."""
        return self.epoch, self.version


@dataclass(frozen=True, slots=True)
class Lease:
    """A reader's hold on a version until `expires_at` (Unix seconds)."""

    id: str
    stream: str
    epoch: int
    version: int
    path: Path
    proven: bool
    manifest: bytes
    label: str
    expires_at: float


class SlotTable:
    """What `StreamSlots` has beside building. Thread-safe. `open` first."""

    def __init__(
        self,
        directory: Path,
        stream: str,
        catalog: Catalog,
        files: Files | None = None,
        count: int = 2,
        threads: int | None = None,
    ) -> None:
        if not 1 <= count <= 4:
            raise StorageError(f"a stream has 1 to 4 slots, not {count}")
        self.directory = directory
        self.stream = check_stream_name(stream)
        self.count = count
        self._catalog = catalog
        self._files = files or Files()
        self._threads = threads or os.cpu_count() or 1
        self._lock = threading.RLock()
        self._directories = Directories(directory, stream, self._files, self._threads)
        self._book = LeaseBook(stream, catalog, self._directories.boot)
        self._pins: Tally[Directory] = Tally()
        self._glances = 0  # runs of blocks that verifications are reading now
        self._choosing = 0  # callers that are about to take a slot: no verification begins another run
        self._calm = threading.Condition(self._lock)
        self._mark: Mark | None = None

    def open(self) -> None:
        """Read what is there and finish, undo or drop what a crash left half-done.

        Raises HomeError for a directory that is not ours or of a later format.
        """
        with self._lock:
            self._directories.open()
            self._mark = self._catalog.mark(self.stream)
            self._raise_mark_if_due()
            present = {each.order for each in self._directories.all if each.is_ready}
            for order in self._book.orders() - present:
                self._book.slot_gone(*order)
            self._collect()
        self._directories.empty_trash()

    # looking

    def current(self) -> Slot | None:
        """The newest committed version, if it may be served.

        None as well while it is withdrawn, unverified after a reboot, or older than what was once committed here.
        """
        with self._lock:
            newest = self._directories.newest()
            return shown(newest) if newest and self._servable(newest) else None

    def slots(self) -> list[Slot]:
        """All slots, oldest first; twins and unservable ones included."""
        with self._lock:
            return [shown(each) for each in sorted(self._directories.all, key=lambda each: (each.order, each.is_ready))]

    def find(self, manifest: bytes) -> Slot | None:
        """A slot that holds the bytes of a manifest, a committed one rather than a twin."""
        with self._lock:
            found = self._directories.holding(manifest)
            return shown(found[0]) if found else None

    @contextmanager
    def hold(self, slot: Slot) -> Iterator[MappedFiles]:
        """Keep a slot from being written or removed while its bytes are read. Raises SlotGoneError."""
        with self._lock:
            found = self._get(slot)
            self._pins[found] += 1
        try:
            yield found.mapped
        finally:
            self._unpin(found)

    def pin(self, slot: Slot) -> None:
        """Keep a slot until `unpin`, e.g. the head's frozen one. Pins count, and end with the process.

        Raises SlotGoneError.
        """
        with self._lock:
            self._pins[self._get(slot)] += 1

    def unpin(self, slot: Slot) -> None:
        """Take one pin off; no error when the slot is gone."""
        try:
            found = self._get(slot)
        except SlotGoneError:
            return
        self._unpin(found)

    def _unpin(self, found: Directory) -> None:
        with self._lock:
            if found in self._pins:
                self._pins[found] -= 1
            self._collect()
        self._directories.empty_trash()

    def verify_slot(
        self, slot: Slot, digests: bytes, threads: int | None = None, pace: Callable[[int], bool] | None = None
    ) -> list[int]:
        """Numbers of the blocks of a slot that differ from a digest table.

        The slot is held for some blocks at a time only, so that a step does not wait for a scrub of its spare; one
        that was taken meanwhile is a SlotGoneError. `pace(size_bytes)` is called after each run of blocks and may
        wait; when it answers False, this ends with VerifyStoppedError.
        """
        threads = threads or self._threads
        blocks = checked_blocks(slot.layout, digests)
        bad = []
        with hashers(threads) as spread:
            for first in range(0, len(blocks), RUN_BLOCKS * threads):
                last = min(first + RUN_BLOCKS * threads, len(blocks))
                with self._glance(slot) as mapped:
                    bad += compare_blocks(mapped, blocks, digests, first, last, spread)
                if pace and not pace(sum(size for _, _, size in blocks[first:last])):
                    raise VerifyStoppedError(f"verification of {slot.path} was stopped before its end")
        return bad

    @contextmanager
    def _glance(self, slot: Slot) -> Iterator[MappedFiles]:
        """Hold a slot for one run of blocks, which whoever takes a slot to write waits for."""
        with self._lock:
            self._calm.wait_for(lambda: not self._choosing)
            self._glances += 1
        try:
            with self.hold(slot) as mapped:
                yield mapped
        finally:
            with self._lock:
                self._glances -= 1
                self._calm.notify_all()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """The lock, while no verification holds a slot. Not from within the lock."""
        with self._lock:
            self._choosing += 1
            try:
                self._calm.wait_for(lambda: not self._glances)
                yield
            finally:
                self._choosing -= 1
                self._calm.notify_all()

    def mark_proven(self, slot: Slot) -> Slot:
        """Record that a slot's whole digest table was checked; it may be served again if it could not be."""
        return self._restate(slot, proven=True, withdrawn=False, boot=self._directories.boot)

    def withdraw(self, slot: Slot) -> Slot:
        """Stop serving a slot in which a wrong block was found, and void the leases on it."""
        with self._lock:
            try:
                return self._restate(slot, proven=False, withdrawn=True)
            finally:
                if not slot.twin:
                    self._book.void(*slot.order)

    def drop(self, slot: Slot) -> None:
        """Remove a slot for good, whatever it is. Raises SlotsBusyError when it is being read."""
        with self._lock:
            found = self._get(slot)
            if self._is_held(found):
                raise SlotsBusyError(f"{found.path} is being read: wait for its leases to end")
            self._drop(found)
        self._directories.empty_trash()

    def forget_vanished(self) -> list[Slot]:
        """Forget slots whose directories are gone, e.g. because a tmpfs was mounted again. Returns them."""
        with self._lock:
            gone = self._directories.vanished()
            for each in gone:
                self._drop(each)
            if gone:
                make_folders(self._files, self.directory)
            return [shown(each) for each in gone]

    def _restate(self, slot: Slot, **changes: object) -> Slot:
        with self._lock:
            found = self._get(slot)
            self._directories.restate(found, msgspec.structs.replace(found.state, **changes))
            return shown(found)

    def _get(self, slot: Slot) -> Directory:
        for each in self._directories.all:
            if each.state.manifest == slot.manifest and each.order == slot.order and each.is_ready is not slot.twin:
                return each
        raise SlotGoneError(f"version {slot.version} of {slot.stream} is not in {slot.path} any more")

    def _servable(self, found: Directory) -> bool:
        if not (found.is_ready and found.is_whole):
            return False
        if found is not self._directories.newest() or self._mark is None:
            return True
        return found.order >= (self._mark.epoch, self._mark.version)

    def _raise_mark_if_due(self) -> None:
        newest = self._directories.newest()
        if newest and (self._mark is None or newest.order > (self._mark.epoch, self._mark.version)):
            self._raise_mark(newest)

    def _raise_mark(self, found: Directory) -> None:
        mark = Mark(*found.order, found.state.manifest)
        self._catalog.raise_mark(self.stream, *mark)
        self._mark = mark

    # leases

    def lease(self, version: int | None, ttl_s: float, now: float, *, durable: bool = True) -> Lease:
        """Hold a version (None: the current one) for `ttl_s` seconds from `now`, Unix seconds.

        With `durable` the lease outlives a restart of the daemon; without, it is the daemon's own and costs no write.
        Raises SlotGoneError when the version is not here or may not be served.
        """
        with self._lock:
            if version is None:
                newest = self._directories.newest()
                found = [newest] if newest else []
            else:
                found = [each for each in self._directories.all if each.state.version == version]
            for each in sorted(found, key=lambda each: each.order, reverse=True):
                if self._servable(each):
                    held = self._book.grant(*each.order, each.state.manifest, now + ttl_s, durable=durable)
                    return _lease(held, each)
            name = "a version" if version is None else f"version {version}"
            raise SlotGoneError(f"{self.stream} does not serve {name} now: ask for its current one")

    def lease_count(self) -> int:
        """Leases that hold a slot now."""
        with self._lock:
            return self._book.count()

    def try_lease(self, version: int | None, ttl_s: float, now: float, *, durable: bool = True) -> Lease | None:
        """The same without waiting for another thread, as an event loop may call it; None when it would have to."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return None if durable and self._catalog.is_busy else self.lease(version, ttl_s, now, durable=durable)
        finally:
            self._lock.release()

    def renew(self, id: str, ttl_s: float, now: float) -> Lease:  # noqa: A002 - the API's own word
        """Extend a lease to `ttl_s` seconds from `now`. Raises UnknownLeaseError, LeaseGoneError."""
        with self._lock:
            held = self._book.renew(id, now + ttl_s, now)
            for each in self._directories.all:
                if each.is_ready and each.order == (held.epoch, held.version):
                    return _lease(held, each)
            raise SlotGoneError(f"version {held.version} of {self.stream} is being changed under lease {id}")

    def release(self, id: str) -> None:  # noqa: A002
        """End a lease. Raises UnknownLeaseError, LeaseGoneError."""
        with self._lock:
            self._book.release(id)
            self._collect()
        self._directories.empty_trash()

    def expire(self, now: float) -> None:
        """End the leases that ran out by `now`, and retire their slots: unlinked once not current, never rewritten."""
        with self._lock:
            self._raise_mark_if_due()
            self._book.expire(now)
            self._collect()
        self._directories.empty_trash()

    def _is_held(self, found: Directory) -> bool:
        return self._pins[found] > 0 or (found.is_ready and self._book.is_held(*found.order))

    def _is_tainted(self, found: Directory) -> bool:
        return found.is_ready and self._book.is_tainted(*found.order)

    def _is_free(self, found: Directory) -> bool:
        return found is not self._directories.newest() and not self._is_held(found)

    def _collect(self) -> None:
        """Drop what is retired, and what is over the count."""
        for each in list(self._directories.all):
            if self._is_tainted(each) and self._is_free(each):
                self._drop(each)
        while len(self._directories.all) > self.count:
            free = [each for each in self._directories.all if self._is_free(each)]
            if not free:
                return
            self._drop(min(free, key=lambda each: (each.is_whole, each.order, each.is_ready)))

    def _drop(self, found: Directory) -> None:
        if found.is_ready:
            self._book.slot_gone(*found.order)
        self._directories.drop(found)
        del self._pins[found]


def shown(found: Directory) -> Slot:
    """A directory as its stream shows it."""
    state = found.state
    return Slot(
        found.path,
        state.stream,
        state.epoch,
        state.version,
        state.manifest,
        state.label,
        found.layout,
        state.proven,
        state.phase is Phase.TWIN,
        state.withdrawn,
        found.suspect,
    )


def _lease(held: Held, found: Directory) -> Lease:
    state = found.state
    return Lease(
        held.id,
        state.stream,
        held.epoch,
        held.version,
        found.path,
        state.proven,
        held.manifest,
        state.label,
        held.expires_at,
    )
