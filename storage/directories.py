"""The slot directories of one stream on disk: what each holds, how they change names, how a crash is undone.

Names under `<slot_dir>/<stream>/`: `v<N>` is a committed version, `.twin-<N>` a hidden copy of one, `.building`
the one being written, `.trash-…` one being removed. What a directory holds is said by the state file in it; the
name is only how readers find it. Every step below may be the last one before a crash:

    take      rename to .building          state still READY or TWIN: opening renames it back
              state BUILDING or UNDO       journal empty: nothing was touched
    write     journal entry, then bytes    BUILDING: copied back from a slot with the same manifest, else dropped;
                                           UNDO: old bytes written back
    settle    half-made files removed
              layout file, state READY     the version counts as made: opening gives it its name
              journal removed
              rename to v<N> or .twin-<N>
    drop      rename to .trash-…           opening removes it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ..protocol.layout import Layout
from .errors import HomeError, NoSpaceError, SlotStateError
from .files import Files, exists, make_folders, remove_file, remove_tree
from .journal import WHOLE, read_journal
from .mapped import MappedFiles
from .rebuild import renew_inodes, restore, undo
from .state import (
    FRESH_NAME,
    JOURNAL_NAME,
    STATE_NAME,
    Phase,
    SlotState,
    read_layout,
    read_state,
    write_layout,
    write_state,
)

_BUILDING: Final = ".building"
_BESIDE: Final = ".building-beside"
_TWIN: Final = ".twin-"
_TRASH: Final = ".trash-"
_OURS: Final = re.compile(r"v[0-9]+|\.twin-[0-9]+|\.building(-beside)?")


@dataclass(slots=True, eq=False)
class Directory:
    """One slot directory. `suspect`: written before the machine's last boot and not verified since."""

    state: SlotState
    suspect: bool
    mapped: MappedFiles

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.mapped.directory

    @property
    def layout(self) -> Layout:
        """Which files it has."""
        return self.mapped.layout

    @property
    def order(self) -> tuple[int, int]:
        """(epoch, version): the order of versions."""
        return self.state.epoch, self.state.version

    @property
    def is_whole(self) -> bool:
        """Whether its bytes can be taken for those of its manifest."""
        return bool(self.state.manifest) and not self.suspect and not self.state.withdrawn

    @property
    def is_ready(self) -> bool:
        """Whether it is a committed version, not a twin."""
        return self.state.phase is Phase.READY


class Directories:
    """All slot directories of a stream but the one being built. Not thread-safe: its StreamSlots locks."""

    def __init__(self, root: Path, stream: str, files: Files, threads: int) -> None:
        self.root = root
        self.boot = files.boot_id()
        self.all: list[Directory] = []
        self.pending: list[Directory] = []
        self._stream = stream
        self._files = files
        self._threads = threads
        self._trash: list[tuple[Path, MappedFiles | None]] = []

    def open(self) -> None:
        """Read what is there; finish, undo or drop what a crash left half-done, if that is needed to serve.

        A spare that was being written is left in `pending`: bringing it back may take long, and nobody waits for it.

        Raises HomeError for a directory that is not ours, of another stream, or of a later format.
        """
        make_folders(self._files, self.root)
        self.all, self.pending = [], []
        half_done: list[Directory] = []
        for entry in self._files.entries(self.root):
            path = self.root / entry.name
            if entry.name.startswith(_TRASH):
                self._trash.append((path, None))
            elif entry.is_folder and _OURS.fullmatch(entry.name):
                found = self._load(path)
                if found is not None:
                    in_use = not entry.name.startswith(_BUILDING) and found.state.phase in (Phase.READY, Phase.TWIN)
                    (self.all if in_use else half_done).append(found)
        for found in half_done:
            if found.state.phase is Phase.BUILDING and found.state.manifest and not found.suspect:
                self.pending.append(found)
            else:
                self.give_back(found)
        for found in self.all:
            remove_file(self._files, found.path / JOURNAL_NAME)
            remove_tree(self._files, found.path / FRESH_NAME)
        self.empty_trash()

    def _load(self, path: Path) -> Directory | None:
        try:
            state = read_state(self._files, path)
            if state.stream != self._stream:
                raise HomeError(f"{path} belongs to stream {state.stream!r}, not {self._stream!r}: move it back")
            layout = read_layout(self._files, path, state.layout)
        except FileNotFoundError:
            if path.name.startswith("v"):
                raise HomeError(f"{path} is not a slot of ours: move it away, or set another slot_dir") from None
            self._to_trash(path)
            return None
        except SlotStateError:
            self._to_trash(path)
            return None
        found = Directory(state, state.boot != self.boot, self._mapped(path, layout))
        settled = found.state.phase in (Phase.READY, Phase.TWIN) and not path.name.startswith(_BUILDING)
        if settled and path != self._named(found):
            raise HomeError(f"{path} holds version {state.version}: rename it back to {self._named(found).name}")
        return found

    # looking

    def newest(self) -> Directory | None:
        """The newest committed version."""
        return max((each for each in self.all if each.is_ready), key=lambda each: each.order, default=None)

    def holding(self, manifest: bytes) -> list[Directory]:
        """Directories with the bytes of a manifest, committed ones first."""
        found = [each for each in self.all if manifest and each.state.manifest == manifest and each.is_whole]
        return sorted(found, key=lambda each: each.state.phase)

    def vanished(self) -> list[Directory]:
        """Directories that are no longer there: somebody removed them, or mounted something over them."""
        return [each for each in self.all if not exists(self._files, each.path / STATE_NAME)]

    # changing

    def create(self, layout: Layout, *, beside: bool = False) -> Directory:
        """A new directory under the name of the one being built, or `beside` it, empty, of nothing yet."""
        path = self._building_path(_BESIDE if beside else _BUILDING)
        self._files.make_folder(path)
        state = SlotState(Phase.BUILDING, self._stream, 0, 0, b"", "", layout.root(), self.boot, False, False)
        try:
            write_layout(self._files, path, layout)
            write_state(self._files, path, state)
        except (OSError, NoSpaceError):
            self._to_trash(path)
            raise
        return Directory(state, suspect=False, mapped=self._mapped(path, layout))

    def take(self, found: Directory, phase: Phase, *, forget: bool) -> None:
        """Take a directory out of use to be written. With `forget`, what it holds is of no use any more."""
        before = found.state
        self._rename(found, self._building_path())
        self.all.remove(found)
        nothing = {"epoch": 0, "version": 0, "manifest": b""} if forget else {}
        try:
            remove_file(self._files, found.path / JOURNAL_NAME)
            found.state = msgspec.structs.replace(before, phase=phase, **nothing)
            write_state(self._files, found.path, found.state)
        except (OSError, NoSpaceError):
            found.state = before
            self._name(found)
            raise

    def settle(self, found: Directory, state: SlotState, mapped: MappedFiles) -> None:
        """What is being built now holds `state`, in files as `mapped`: say so in its state file, then name it."""
        remove_tree(self._files, found.path / FRESH_NAME)
        root = found.state.layout if mapped.layout == found.layout else mapped.layout.root()
        if root != found.state.layout:
            write_layout(self._files, found.path, mapped.layout)
        state = msgspec.structs.replace(state, layout=root)
        write_state(self._files, found.path, state)
        found.state, found.mapped, found.suspect = state, mapped, state.boot != self.boot
        remove_file(self._files, found.path / JOURNAL_NAME)
        self._name(found)

    def give_back(self, found: Directory) -> None:
        """End a building without a version: back to what the directory held, or to the trash."""
        self.put_back(found, self.bring_back(found, self.holding(found.state.manifest)))

    def bring_back(self, found: Directory, good: Sequence[Directory]) -> SlotState | None:
        """The long part of giving back: old bytes from the undo journal, or from `good` directories that hold them.

        Touches nothing but the directory itself, so it needs no lock while `good` stays. Returns what the directory
        holds then, None for nothing of use.
        """
        state = found.state
        try:
            if state.phase is Phase.UNDO:
                undo(self._files, found.path, read_journal(found.path / JOURNAL_NAME, self._files))
                return msgspec.structs.replace(state, phase=Phase.READY)
            if state.phase is not Phase.BUILDING:
                return state  # a crash just before or after it was written: it is what it says
            if found.suspect or not state.manifest:
                return None
            touched = read_journal(found.path / JOURNAL_NAME, self._files)
            if touched and not good:
                return None
            if touched:
                restore(self._files, found.path, touched, good[0].mapped, self._threads)
                if any(each.size == WHOLE for each in touched):  # the layout may be another, and so may inodes
                    write_layout(self._files, found.path, good[0].layout)
                    found.mapped = self._mapped(found.path, good[0].layout)
            phase = Phase.TWIN if any(each.is_ready for each in good) else Phase.READY
            return msgspec.structs.replace(state, phase=phase)
        except (SlotStateError, NoSpaceError, OSError):
            return None

    def put_back(self, found: Directory, state: SlotState | None) -> None:
        """The short part of giving back: put the directory into use as `state`, or drop it."""
        if state is None:
            self._to_trash(found.path, found.mapped)
            return
        # The journal goes first: without one the old state file says the same, and a full file system has room again.
        remove_file(self._files, found.path / JOURNAL_NAME)
        try:
            self.settle(found, state, found.mapped)
        except (NoSpaceError, OSError):
            # It may be the only version here. What stands on the disk comes to the same at the next opening.
            found.state = state
            self._name(found)

    def renew_inodes(self, found: Directory, numbers: Iterable[int]) -> None:
        """Give files of a directory new inodes, because a reader may have the old ones mapped. Raises NoSpaceError."""
        try:
            renew_inodes(self._files, found.path, found.layout, numbers)
        finally:
            found.mapped = self._mapped(found.path, found.layout)

    def restate(self, found: Directory, state: SlotState) -> None:
        """Replace a directory's state in place. Raises NoSpaceError, and then it holds until the process ends."""
        found.state, found.suspect = state, state.boot != self.boot  # holds even where it cannot be written
        write_state(self._files, found.path, state)

    def drop(self, found: Directory) -> None:
        """Take a directory away; its space is free after `empty_trash`."""
        if exists(self._files, found.path):
            self._to_trash(found.path, found.mapped)
        self.all.remove(found)

    def empty_trash(self) -> None:
        """Remove what was dropped. May take seconds for large models, so it is called without a lock.

        What the system refuses to remove stays for the next time: it is no reason to fail a commit.
        """
        while self._trash:
            try:
                path, mapped = self._trash.pop()
            except IndexError:  # another thread took it
                return
            if mapped:
                mapped.close()
            try:
                remove_tree(self._files, path)
            except OSError:
                self._trash.append((path, None))
                return

    def _name(self, found: Directory) -> None:
        """Give a directory the name that its state asks for; one of the same name makes way."""
        path = self._named(found)
        for other in [each for each in self.all if each.path == path and each is not found]:
            self.drop(other)
        if found.path != path:
            self._rename(found, path)
        if found not in self.all:
            self.all.append(found)

    def _named(self, found: Directory) -> Path:
        return self.root / f"{_TWIN if found.state.phase is Phase.TWIN else 'v'}{found.state.version}"

    def _rename(self, found: Directory, path: Path) -> None:
        self._files.rename(found.path, path)
        found.mapped.directory = path

    def _building_path(self, name: str = _BUILDING) -> Path:
        path = self.root / name
        if exists(self._files, path):
            self._to_trash(path)
        return path

    def _mapped(self, path: Path, layout: Layout) -> MappedFiles:
        return MappedFiles(path, layout, self._files, writable=True)

    def _to_trash(self, path: Path, mapped: MappedFiles | None = None) -> None:
        number = 0
        while exists(self._files, trash := self.root / f"{_TRASH}{number}"):
            number += 1
        self._files.rename(path, trash)
        self._trash.append((trash, mapped))
