"""A damaged or lost catalog, made anew from what can still be read of it and from the files around it.

Signed objects are in the signed log too, and they prove themselves and come again from peers. Marks must
not fall: each is the highest of what the old catalog and the slots' state files say. Leases must not be forgotten
while their reader lives: where they cannot be read, every slot counts as read by someone who lost the lease.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..protocol.errors import MessageError
from ..protocol.ids import check_stream_name
from ..protocol.messages import ObjectKind
from .catalog import Catalog, LeaseRow, Mark, log_path
from .errors import CatalogError, HomeError, NotNewerError, SlotStateError
from .files import Files, exists, remove_file, sync_folder
from .leases import LeaseState
from .signed_log import SETTING, SignedLog
from .slot_dir import HOME_KEY, home_of
from .state import Phase, SlotState, read_state


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What became of a damaged or lost catalog."""

    reason: str
    kept_as: Path | None
    """The damaged file, under its new name; None when there was none."""
    objects: int
    """Signed objects that could still be read, from the file or from the signed log."""
    marks: int
    leases_lost: bool
    """Slots are retired once they are not current, because a reader may have them."""


def open_catalog(path: Path, slot_dir: Path, files: Files | None = None) -> tuple[Catalog, Rebuilt | None]:
    """The catalog at `path`; a damaged one is rebuilt and set aside, and so is one that is gone from beside its log.

    Raises CatalogError for one of a later format.

    The new one is filled under another name and takes its place only when it is complete, so a crash on the way
    starts over or finishes, and never leaves marks behind.
    """
    files = files or Files()
    made = path.with_name(path.name + ".rebuilt")
    if exists(files, made) and not exists(files, path):
        files.rename(made, path)
    if exists(files, path) or not exists(files, log_path(path)):
        try:
            return Catalog(path, files), None
        except CatalogError as error:
            if error.later_format:
                raise
            reason = str(error)
    else:
        reason = f"{path} is missing"
    draft = path.with_name(path.name + ".rebuilding")
    for leftover in (draft, made):
        _remove(files, leftover)
    catalog = Catalog(draft, files, logged=False)
    try:
        rebuilt = _fill(catalog, path, slot_dir, files, reason)
        catalog.fold()
    except CatalogError:
        catalog.close()
        _remove(files, draft)
        raise
    finally:
        catalog.close()
    _remove(files, draft, but=draft)
    files.rename(draft, made)
    if rebuilt.kept_as is not None:
        _set_aside(files, path, rebuilt.kept_as)
    files.rename(made, path)
    sync_folder(files, path.parent)
    return Catalog(path, files), rebuilt


def _remove(files: Files, path: Path, *, but: Path | None = None) -> None:
    for each in (Path(f"{path}-wal"), Path(f"{path}-shm"), path):
        if each != but:
            remove_file(files, each)


def _set_aside(files: Files, path: Path, aside: Path) -> None:
    # The main file goes last: as long as it is there, the next start finds it damaged again.
    for suffix in ("-wal", "-shm", ""):
        if exists(files, Path(f"{path}{suffix}")):
            files.rename(Path(f"{path}{suffix}"), Path(f"{aside}{suffix}"))


def _free_name(files: Files, path: Path) -> Path:
    number = 1
    while exists(files, aside := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    return aside


def _fill(catalog: Catalog, damaged: Path, slot_dir: Path, files: Files, reason: str) -> Rebuilt:
    states = list(_slot_states(files, slot_dir))
    objects: dict[bytes, tuple[ObjectKind, bytes, bytes]] = {}
    for row in _salvage(damaged, "objects", 3):
        with suppress(ValueError, TypeError):
            objects[bytes(row[0])] = (ObjectKind(row[1]), bytes(row[0]), bytes(row[2]))
    settings = {row[0]: row[1] for row in _salvage(damaged, "settings", 2) if [*map(type, row)] == [str, bytes]}
    for entry in SignedLog(log_path(damaged), files).read().values():
        if entry.what == SETTING:
            settings.setdefault(entry.name.decode(), entry.data)
        else:
            with suppress(ValueError):
                objects.setdefault(entry.name, (ObjectKind(entry.what), entry.name, entry.data))
    catalog.put_objects(objects.values())
    for key, value in settings.items():
        catalog.put(key, value)
    home = home_of(slot_dir, files)
    if home is not None and HOME_KEY not in settings:
        catalog.put(HOME_KEY, home)
    marks = _marks(damaged, states)
    for stream, mark in marks.items():
        with suppress(NotNewerError):
            catalog.raise_mark(stream, *mark)
    lost = not _restore_leases(catalog, damaged)
    if lost:
        for state in states:
            catalog.put_lease(
                LeaseRow(
                    f"lost-{state.stream}-{state.epoch}-{state.version}",
                    state.stream,
                    state.epoch,
                    state.version,
                    state.manifest,
                    0.0,
                    LeaseState.EXPIRED,
                    files.boot_id(),
                )
            )
    there = any(exists(files, Path(f"{damaged}{suffix}")) for suffix in ("", "-wal"))
    kept_as = _free_name(files, damaged) if there else None
    return Rebuilt(reason, kept_as, len(objects), len(marks), lost)


def _slot_states(files: Files, slot_dir: Path) -> Iterator[SlotState]:
    if not exists(files, slot_dir):
        return
    for stream in files.entries(slot_dir):
        if stream.is_folder:
            for entry in files.entries(slot_dir / stream.name):
                with suppress(FileNotFoundError, NotADirectoryError, SlotStateError, HomeError):
                    state = read_state(files, slot_dir / stream.name / entry.name)
                    if state.phase is Phase.READY and state.stream == stream.name:
                        yield state


def _marks(damaged: Path, states: Sequence[SlotState]) -> dict[str, Mark]:
    found: dict[str, Mark] = {}
    rows: list[tuple[Any, ...]] = [(each.stream, each.epoch, each.version, each.manifest) for each in states]
    for row in [*rows, *_salvage(damaged, "marks", 4)]:
        with suppress(TypeError, ValueError, MessageError):
            stream, mark = check_stream_name(str(row[0])), Mark(int(row[1]), int(row[2]), bytes(row[3]))
            if len(mark.manifest) == 32 and (stream not in found or mark > found[stream]):
                found[stream] = mark
    return found


def _restore_leases(catalog: Catalog, damaged: Path) -> bool:
    """Whether all leases could be read."""
    rows: list[tuple[Any, ...]] = []
    try:
        with closing(sqlite3.connect(f"file:{damaged}?mode=ro", uri=True)) as database:
            rows = database.execute("SELECT * FROM leases").fetchall()
        for row in rows:
            catalog.put_lease(LeaseRow(*row))
    except (sqlite3.Error, TypeError, CatalogError):
        return False
    return True


def _salvage(damaged: Path, table: str, columns: int) -> Iterator[tuple[Any, ...]]:
    """Rows of a table of a damaged database, until it cannot be read on; from both ends."""
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{damaged}?mode=ro", uri=True)) as database:
            for row in database.execute(f"SELECT * FROM {table} ORDER BY 1 {order}"):  # noqa: S608 - our own names
                if len(row) == columns:
                    yield row
