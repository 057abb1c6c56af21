"""Alternating slots: which directory is written next, and how what was built becomes a version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from ..protocol.layout import Layout
from .building import Building
from .catalog import Catalog
from .directories import Directory
from .errors import NotNewerError, SlotGoneError, SlotsBusyError, StorageError
from .files import Files, exists
from .journal import Journal
from .mapped import MappedFiles
from .rebuild import ByteSource, Plan, make_anew, plan, reshape
from .slot_table import Lease, Slot, SlotTable, shown
from .space import SetAside, Space
from .state import JOURNAL_NAME, Phase
from .verify import DIGEST_BYTES, good_block

__all__ = ["Lease", "Slot", "StreamSlots"]


class StreamSlots(SlotTable):
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
        space: Space | None = None,
    ) -> None:
        super().__init__(directory, stream, catalog, files, count, threads)
        self._building: Building | None = None
        self._under: Directory | None = None
        self._recovering = False
        self._exclusive = ""
        space = space or Space(self._files, margin_bytes=0)
        self._next = SetAside(space, directory, f"the next version of {stream}")
        """Space for the version that `begin` is making files for, or that it will."""

    def set_aside(self, version_bytes: int) -> None:
        """Keep space for a next version of so many bytes, until the next `begin` takes it; 0 gives it back.

        None is needed where a directory that is here will be written, or is being. Raises NoSpaceError.
        """
        with self._lock:
            here = len(self._directories.all) + len(self._directories.pending)
            has_spare = self._building is not None or here >= self.count
            if self._building is None:
                self._next.keep(0 if has_spare else version_bytes)

    def begin(self, layout: Layout, source: Slot | ByteSource | None, *, exclusive: str = "") -> Building:
        """A directory with files of `layout`, holding what of `source` matches, ready for the transition from it.

        The directory that already holds the bytes of the slot `source` is taken as it is; otherwise an unheld one
        is filled by copying. A stream with one slot changes its current version in place and keeps the old bytes
        until the commit; nobody may be reading it but the holder of the lease `exclusive`.
        Raises SlotsBusyError when every slot is held, NoSpaceError before anything is touched, SlotGoneError.
        """
        if self._directories.pending:
            self.recover()
        with self._undisturbed():
            if self._building is not None or self._recovering:
                raise SlotsBusyError(f"{self.stream} is building a version already: commit or abort it first")
            try:
                fill, held = self._choose(layout, source, exclusive)
            except BaseException:
                self._next.give_back()
                raise
        building = self._building
        assert building is not None
        try:
            self._directories.empty_trash()
            fill(building)
        except BaseException:
            building.abort()
            raise
        finally:
            self._next.give_back()
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

    def move_building(self, building: Building, layout: Layout) -> None:
        """Let a building in the only slot go on in a directory of its own, of another layout."""
        with self._lock:
            old = self._taken(building)
            change = plan(None, layout, same_bytes=False)
            try:
                self._check_space(change, 0)
                beside = self._directories.create(layout, beside=True)
            finally:
                self._next.give_back()
        journal = Journal(beside.path / JOURNAL_NAME, self._files)
        try:
            reshape(self._files, beside.path, change, building.mapped, journal, self._threads, overwrite_kept=False)
        except BaseException:
            journal.close()
            self._directories.give_back(beside)
            raise
        with self._lock:
            building.journal.close()
            self._directories.give_back(old)
            building.mapped, building.journal, building.keep_old = beside.mapped, journal, False
            self._under = beside

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
        newest = self._directories.newest()
        free = [each for each in self._directories.all if each is not keep and self._is_free(each)]
        if not free and newest and newest is not keep and newest.state.withdrawn and not self._is_held(newest):
            free = [newest]  # it is not served, and nobody mends it now
        # With one slot, what cannot be made in place stands beside the old version until it is committed.
        room = self.count if self.count > 1 or free else 2
        if len(self._directories.all) < room:
            return None
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
                "wait for its leases to end, or raise slots"
            )

    def _check_space(self, change: Plan, freed_bytes: int) -> None:
        need = max(change.space_bytes() - freed_bytes, 0)
        self._next.keep(need)

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
            # The version is committed: a catalog that cannot be written now is written by the next `expire`.
            with suppress(StorageError):
                self._raise_mark(found)
            self._collect()
        self._directories.empty_trash()
        return shown(found)

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
        return shown(found)

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
            found = self._under
        try:
            self._give_back(found)
        except BaseException:
            self._directories.pending.append(found)  # the next `begin` tries again: it may be the only spare
            raise
        finally:
            self._building = self._under = None

    def recover(self) -> None:
        """Bring back the spare that was being written when the process ended. `begin` does it where nobody did.

        Takes as long as copying what had been written. Raises SlotsBusyError while a version is being built.
        """
        with self._lock:
            if self._building is not None or self._recovering:
                raise SlotsBusyError(f"{self.stream} is building a version: wait until it is committed")
            self._recovering = True
        try:
            while self._directories.pending:
                self._give_back(self._directories.pending[-1])  # stays until it is done, to be tried again
                self._directories.pending.pop()
        finally:
            self._recovering = False

    def _give_back(self, found: Directory) -> None:
        """End a building without a version, without keeping anyone waiting for the copying."""
        with self._lock:
            good = [] if found.suspect else self._directories.holding(found.state.manifest)
            for each in good:
                self._pins[each] += 1
        try:
            state = self._directories.bring_back(found, good)
            with self._lock:
                self._directories.put_back(found, state)
        finally:
            for each in good:
                self._unpin(each)
        with self._lock:
            self._collect()
        self._directories.empty_trash()

    def _taken(self, building: Building) -> Directory:
        if self._building is not building or self._under is None:
            raise StorageError(f"{building.directory} is not being built any more")
        return self._under

    def _check_newer(self, epoch: int, version: int, manifest: bytes) -> None:
        newest = self._directories.newest()
        mark = self._mark
        highest = max(newest.order if newest else (0, -1), (mark.epoch, mark.version) if mark else (0, -1))
        again = mark is not None and mark == (epoch, version, manifest) and (newest is None or newest.order < highest)
        if (epoch, version) <= highest and not again:
            raise NotNewerError(
                f"{self.stream} version {version} (epoch {epoch}) is not newer than version {highest[1]} "
                f"(epoch {highest[0]}): raise the version"
            )

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
            found = self._to_repair(slot)
            others = [each for each in self._directories.holding(slot.manifest) if each is not found]
            tainted = self._is_tainted(found)
            for each in (found, *others):
                self._pins[each] += 1
        try:
            return self._mend(found, others, bad, digests, fetch, tainted=tainted)
        finally:
            for each in (found, *others):
                self._unpin(each)

    def refit(self, slot: Slot) -> None:
        """Make files that are missing, or have another size, anew and empty: their blocks are wrong, to be repaired.

        The slot must be a twin, suspect or withdrawn. Raises SlotGoneError, SlotsBusyError, NoSpaceError.
        """
        with self._lock:
            found = self._to_repair(slot)
            for file in found.layout.files:
                path = found.path / file.path
                if not exists(self._files, path) or self._files.stat(path).st_size != file.size:
                    make_anew(self._files, path, file.size)

    def _to_repair(self, slot: Slot) -> Directory:
        """A slot that nobody reads and that is not served. Under the lock. Raises SlotsBusyError, StorageError."""
        found = self._get(slot)
        if found.is_whole and found.is_ready:
            raise StorageError(f"{found.path} is being served: withdraw it before it is repaired")
        if self._is_held(found):
            raise SlotsBusyError(f"{found.path} is being read: wait for its leases to end")
        return found

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


def _block(found: Directory, blocks: Sequence[tuple[int, int, int]], number: int) -> bytes:
    return found.mapped.view(*blocks[number]).tobytes()
