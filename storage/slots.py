"""Alternating slots: which version is served, who reads what, and which directory is written next."""

from __future__ import annotations

import os
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ..protocol.ids import check_stream_name
from ..protocol.layout import Layout
from .building import Building
from .catalog import Catalog
from .directories import Directories, Directory
from .errors import NoSpaceError, NotNewerError, SlotGoneError, SlotsBusyError, StorageError
from .files import Files
from .leases import Held, LeaseBook
from .mapped import MappedFiles
from .rebuild import ByteSource, Plan, plan, reshape
from .state import Phase
from .verify import DIGEST_BYTES, bad_blocks, good_block


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


class StreamSlots:
    """The slots of one stream on this node. Thread-safe. `open` first.

    `directory` is `<slot_dir>/<stream>`; `count` (1 to 4) bounds how many versions it holds at once. At most one
    version is being built at a time.
    """

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
        self._building: Building | None = None
        self._exclusive = ""
        self._under: Directory | None = None

    def open(self) -> None:
        """Read what is there and finish, undo or drop what a crash left half-done.

        Raises HomeError for a directory that is not ours or of a later format.
        """
        with self._lock:
            self._directories.open()
            newest = self._directories.newest()
            mark = self._catalog.mark(self.stream)
            if newest and (mark is None or newest.order > (mark.epoch, mark.version)):
                self._catalog.raise_mark(self.stream, *newest.order, newest.state.manifest)
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
            return _slot(newest) if newest and self._servable(newest) else None

    def slots(self) -> list[Slot]:
        """All slots, oldest first; twins and unservable ones included."""
        with self._lock:
            return [_slot(each) for each in sorted(self._directories.all, key=lambda each: (each.order, each.is_ready))]

    def find(self, manifest: bytes) -> Slot | None:
        """A slot that holds the bytes of a manifest, a committed one rather than a twin."""
        with self._lock:
            found = self._directories.holding(manifest)
            return _slot(found[0]) if found else None

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

    def verify_slot(self, slot: Slot, digests: bytes, threads: int | None = None) -> list[int]:
        """Numbers of the blocks of a slot that differ from a digest table. Raises SlotGoneError."""
        with self.hold(slot) as mapped:
            return bad_blocks(mapped, slot.layout, digests, threads or self._threads)

    def mark_proven(self, slot: Slot) -> Slot:
        """Record that a slot's whole digest table was checked; it may be served again if it could not be."""
        return self._restate(slot, proven=True, withdrawn=False, boot=self._directories.boot)

    def withdraw(self, slot: Slot) -> Slot:
        """Stop serving a slot in which a wrong block was found, and void the leases on it."""
        with self._lock:
            if not slot.twin:
                self._book.void(*slot.order)
            return self._restate(slot, proven=False, withdrawn=True)

    def repair(
        self, slot: Slot, bad: Sequence[int], digests: bytes, fetch: Callable[[int], bytes | None] | None = None
    ) -> list[int]:
        """Mend the blocks `bad` of a slot from another slot with the same manifest, or from `fetch(number)`.

        Only blocks that hash to the digest table are written, into new inodes where a reader may have the old ones
        mapped. Returns the blocks that nobody had; when there are none, a `verify_slot` over the whole slot and
        `mark_proven` make it served again. The slot must be a twin, suspect or withdrawn. Raises SlotGoneError,
        SlotsBusyError, NoSpaceError.
        """
        with self._lock:
            found = self._get(slot)
            if found.is_whole and found.is_ready:
                raise StorageError(f"{found.path} is being served: withdraw it before it is repaired")
            if self._is_held(found):
                raise SlotsBusyError(f"{found.path} is being read: wait for its leases to end")
            others = [each for each in self._directories.holding(slot.manifest) if each is not found]
            tainted = self._is_tainted(found)
            for each in (found, *others):
                self._pins[each] += 1
        try:
            return self._mend(found, others, bad, digests, fetch, tainted=tainted)
        finally:
            for each in (found, *others):
                self._unpin(each)

    def _mend(
        self,
        found: Directory,
        others: Sequence[Directory],
        bad: Sequence[int],
        digests: bytes,
        fetch: Callable[[int], bytes | None] | None,
        *,
        tainted: bool,
    ) -> list[int]:
        blocks = list(found.layout.blocks())
        sources = [partial(_block, other, blocks) for other in others] + ([fetch] if fetch else [])
        renewed: set[int] = set()
        left = []
        for number in bad:
            data = good_block(digests[DIGEST_BYTES * number :][:DIGEST_BYTES], number, sources)
            if data is None:
                left.append(number)
                continue
            file, offset, size = blocks[number]
            if tainted and file not in renewed:
                self._directories.renew_inodes(found, [file])
                renewed.add(file)
            found.mapped.write(file, offset, size, data)
        return left

    def drop(self, slot: Slot) -> None:
        """Remove a slot for good, whatever it is. Raises SlotsBusyError when it is being read."""
        with self._lock:
            found = self._get(slot)
            if self._is_held(found):
                raise SlotsBusyError(f"{found.path} is being read: wait for its leases to end")
            self._drop(found)
        self._directories.empty_trash()

    def _restate(self, slot: Slot, **changes: object) -> Slot:
        with self._lock:
            found = self._get(slot)
            self._directories.restate(found, msgspec.structs.replace(found.state, **changes))
            return _slot(found)

    def _get(self, slot: Slot) -> Directory:
        for each in self._directories.all:
            if each.state.manifest == slot.manifest and each.order == slot.order and each.is_ready is not slot.twin:
                return each
        raise SlotGoneError(f"version {slot.version} of {slot.stream} is not in {slot.path} any more")

    def _servable(self, found: Directory) -> bool:
        if not (found.is_ready and found.is_whole):
            return False
        mark = self._catalog.mark(self.stream)
        newest = self._directories.newest()
        return found is not newest or mark is None or found.order >= (mark.epoch, mark.version)

    # building

    def begin(self, layout: Layout, source: Slot | ByteSource | None, *, exclusive: str = "") -> Building:
        """A directory with files of `layout`, holding what of `source` matches, ready for the transition from it.

        The directory that already holds the bytes of the slot `source` is taken as it is; otherwise an unheld one
        is filled by copying. A stream with one slot changes its current version in place and keeps the old bytes
        until the commit; nobody may be reading it but the holder of the lease `exclusive`.
        Raises SlotsBusyError when every slot is held, NoSpaceError before anything is touched, SlotGoneError.
        """
        with self._lock:
            if self._building is not None:
                raise SlotsBusyError(f"{self.stream} is building a version already: commit or abort it first")
            fill, held = self._choose(layout, source, exclusive)
        building = self._building
        assert building is not None
        try:
            self._directories.empty_trash()
            fill(building)
        except BaseException:
            building.abort()
            raise
        finally:
            if held:
                self._unpin(held)
        return building

    def _choose(
        self, layout: Layout, source: Slot | ByteSource | None, exclusive: str
    ) -> tuple[Callable[[Building], None], Directory | None]:
        """Take a directory; what is left to do to fill it, and one that is pinned until that is done."""
        if not isinstance(source, Slot):
            return self._choose_copy(layout, source, None), None
        found = self._get(source)
        spare = self._spare_of(found)
        if spare is not None:
            self._check_space(plan(spare.layout, layout, same_bytes=True), 0)
            self._start(spare, spare.mapped, Phase.BUILDING)
            return lambda building: building.advance(layout), None
        if self.count == 1 and found.layout == layout:
            self._check_exclusive(found, exclusive)
            tainted = self._is_tainted(found)
            self._start(found, found.mapped, Phase.UNDO)
            self._exclusive = exclusive
            return (self._free_of_readers if tainted else lambda _: None), None
        fill = self._choose_copy(layout, found.mapped, found)
        self._pins[found] += 1
        return fill, found

    def _free_of_readers(self, building: Building) -> None:
        """A reader that lost its lease may still have the only slot mapped: write other inodes than those."""
        found = self._taken(building)
        self._directories.renew_inodes(found, range(len(found.layout.files)))
        building.mapped = found.mapped
        with self._lock:
            self._book.slot_gone(*found.order, but=self._exclusive)

    def _spare_of(self, source: Directory) -> Directory | None:
        """A directory with the same bytes that may be written, a twin first."""
        same = sorted(self._directories.holding(source.state.manifest), key=lambda each: each.is_ready)
        return next((each for each in same if self._is_free(each) and not self._is_tainted(each)), None)

    def _choose_copy(
        self, layout: Layout, source: ByteSource | None, keep: Directory | None
    ) -> Callable[[Building], None]:
        victim = self._victim(keep)
        reuse = victim is not None and source is not None and not self._is_tainted(victim)
        if victim is not None and reuse:
            change = plan(victim.layout, layout, same_bytes=False)
            self._check_space(change, 0)
            self._start(victim, victim.mapped.relaid(layout, change.kept), Phase.BUILDING, forget=True)
        else:
            change = plan(None, layout, same_bytes=False)
            self._check_space(change, victim.layout.size if victim else 0)
            if victim is not None:
                self._drop(victim)
            created = self._directories.create(layout)
            self._start(created, created.mapped, None)
        return lambda building: reshape(
            self._files, building.directory, change, source, building.journal, self._threads, overwrite_kept=reuse
        )

    def _victim(self, keep: Directory | None) -> Directory | None:
        """The directory that makes way for a new version; None when there is room for one more."""
        if len(self._directories.all) < self.count or (self.count == 1 and keep is not None):
            return None  # with one slot, a new layout stands beside the old one until it is committed
        free = [each for each in self._directories.all if each is not keep and self._is_free(each)]
        if not free:
            raise SlotsBusyError(
                f"all {self.count} slots of {self.stream} are in use: wait for a lease to end, or raise slots"
            )
        return min(free, key=lambda each: (each.is_whole, each.order, each.is_ready))

    def _start(self, found: Directory, mapped: MappedFiles, phase: Phase | None, *, forget: bool = False) -> None:
        if phase is not None:
            self._directories.take(found, phase, forget=forget)
        mapped.directory = found.path
        try:
            self._building = Building(self, mapped, self._files, self._threads, keep_old=phase is Phase.UNDO)
        except BaseException:
            self._directories.give_back(found)
            raise
        self._under = found

    def _check_exclusive(self, found: Directory, exclusive: str) -> None:
        others = [each for each in self._book.holders(*found.order) if each != exclusive]
        if others or self._pins[found]:
            raise SlotsBusyError(
                f"{found.path} is the only slot of {self.stream} and is being read: "
                "it changes under an exclusive lease alone"
            )

    def _check_space(self, change: Plan, freed_bytes: int) -> None:
        need, free = change.space_bytes(), self._files.free_bytes(self.directory) + freed_bytes
        if need > free:
            raise NoSpaceError(
                f"{self.directory} has {free} bytes free and the next version of {self.stream} needs {need}: "
                "free some, or move slot_dir"
            )

    def commit_building(
        self, building: Building, epoch: int, version: int, manifest: bytes, label: str, *, proven: bool
    ) -> Slot:
        """What `Building.commit` says."""
        with self._lock:
            found = self._taken(building)
            self._check_newer(epoch, version, manifest)
            for other in self._directories.all:
                if other.is_ready and other.state.version == version and self._is_held(other):
                    raise SlotsBusyError(f"{other.path} of an earlier epoch is being read: wait for its leases to end")
            before = found.order if building.keep_old else None
            for other in [each for each in self._directories.all if each.is_ready and each.state.version == version]:
                self._drop(other)
            self._finish(building, found, Phase.READY, epoch, version, manifest, label, proven=proven)
            if before:
                self._book.move(self._exclusive, epoch, version, manifest)
                self._book.slot_gone(*before)
            self._catalog.raise_mark(self.stream, epoch, version, manifest)
            self._collect()
        self._directories.empty_trash()
        return _slot(found)

    def commit_twin(
        self, building: Building, epoch: int, version: int, manifest: bytes, label: str, *, proven: bool
    ) -> Slot:
        """What `Building.commit_twin` says."""
        with self._lock:
            found = self._taken(building)
            if not any(each.is_ready for each in self._directories.holding(manifest)):
                raise SlotGoneError(f"version {version} of {self.stream} is not committed here, so it has no twin")
            self._finish(building, found, Phase.TWIN, epoch, version, manifest, label, proven=proven)
            self._collect()
        self._directories.empty_trash()
        return _slot(found)

    def _finish(
        self,
        building: Building,
        found: Directory,
        phase: Phase,
        epoch: int,
        version: int,
        manifest: bytes,
        label: str,
        *,
        proven: bool,
    ) -> None:
        state = msgspec.structs.replace(
            found.state,
            phase=phase,
            epoch=epoch,
            version=version,
            manifest=manifest,
            label=label,
            boot=self._directories.boot,
            proven=proven,
            withdrawn=False,
        )
        self._directories.settle(found, state, building.mapped)
        self._building = self._under = None

    def abort_building(self, building: Building) -> None:
        """What `Building.abort` says."""
        with self._lock:
            if self._building is not building or self._under is None:
                return
            found, self._building, self._under = self._under, None, None
            self._directories.give_back(found)
            self._collect()
        self._directories.empty_trash()

    def _taken(self, building: Building) -> Directory:
        if self._building is not building or self._under is None:
            raise StorageError(f"{building.directory} is not being built any more")
        return self._under

    def _check_newer(self, epoch: int, version: int, manifest: bytes) -> None:
        newest = self._directories.newest()
        mark = self._catalog.mark(self.stream)
        highest = max(newest.order if newest else (0, -1), (mark.epoch, mark.version) if mark else (0, -1))
        again = mark is not None and mark == (epoch, version, manifest) and (newest is None or newest.order < highest)
        if (epoch, version) <= highest and not again:
            raise NotNewerError(
                f"{self.stream} version {version} (epoch {epoch}) is not newer than version {highest[1]} "
                f"(epoch {highest[0]}): raise the version"
            )

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


def _block(found: Directory, blocks: Sequence[tuple[int, int, int]], number: int) -> bytes:
    return found.mapped.view(*blocks[number]).tobytes()


def _slot(found: Directory) -> Slot:
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
