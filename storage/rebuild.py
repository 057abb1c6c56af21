"""Making a directory hold the bytes of a version: files laid out anew, matching regions copied, journals undone.

Everything here works on a directory that no reader sees: a slot being built.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from ..protocol.layout import BLOCK_BYTES, File, Layout, match_regions
from .errors import NoSpaceError
from .files import (
    Files,
    exists,
    make_folders,
    named,
    read_at,
    remove_file,
    remove_tree,
    write_at,
)
from .journal import WHOLE, Journal, Touched, undo_difference
from .mapped import Bytes, MappedFiles, RegionTable
from .state import FRESH_NAME

_PIECE_BYTES: Final = 4 * BLOCK_BYTES
_PAGE: Final = 4096


class ByteSource(Protocol):
    """Where a version's bytes can be read: one of our slots, or a foreign checkpoint."""

    @property
    def layout(self) -> Layout:
        """The layout that file numbers refer to."""

    def read(self, file: int, offset: int, size: int) -> Bytes:
        """`size` bytes of a file, as uint8. Raises StorageError when they are not there any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a directory of layout `old` becomes one of layout `new`.

    `kept` files stay as they are, by number in `new`; `fresh` ones are made and filled; `removed` paths go.
    """

    old: Layout | None
    new: Layout
    kept: tuple[int, ...]
    fresh: tuple[int, ...]
    removed: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be done."""
        return not self.fresh and not self.removed

    def space_bytes(self) -> int:
        """Bytes that must be free to make the fresh files, page by page."""
        return sum(-(-self.new.files[file].size // _PAGE) * _PAGE for file in self.fresh)


def plan(old: Layout | None, new: Layout, *, same_bytes: bool) -> Plan:
    """The plan for a directory of layout `old` (None: empty).

    With `same_bytes` the directory holds the bytes that the transition starts from, so a file is kept only when
    each of its regions is compared with itself; otherwise any file of the right size is kept, to be overwritten.
    """
    if old is None:
        return Plan(None, new, (), tuple(range(len(new.files))), ())
    if old is new or old == new:
        return Plan(old, new, tuple(range(len(new.files))), (), ())
    before = {file.path: number for number, file in enumerate(old.files)}
    kept: list[int] = []
    fresh: list[int] = []
    stays = _unmoved(old, new) if same_bytes else None
    for number, file in enumerate(new.files):
        was = before.get(file.path)
        if was is None:
            fresh.append(number)
        elif stays is None:
            (kept if old.files[was].size == file.size else fresh).append(number)
        else:
            (kept if number in stays else fresh).append(number)
    after = {file.path for file in new.files}
    removed = tuple(path for path in before if path not in after)
    return Plan(old, new, tuple(kept), tuple(fresh), removed)


def _unmoved(old: Layout, new: Layout) -> set[int]:
    """Files of `new` that stand in `old` region for region, each region matched with itself."""
    starts = np.cumsum([0] + [len(file.regions) for file in old.files])
    before = {file.path: number for number, file in enumerate(old.files)}
    match = match_regions(old, new)
    found, at = set(), 0
    for number, file in enumerate(new.files):
        end = at + len(file.regions)
        was = before.get(file.path)
        if was is not None and old.files[was].regions == file.regions:
            first = int(starts[was])
            if match[at:end] == list(range(first, first + len(file.regions))):
                found.add(number)
        at = end
    return found


def reshape(
    files: Files,
    directory: Path,
    plan: Plan,
    source: ByteSource | None,
    journal: Journal,
    threads: int,
    *,
    overwrite_kept: bool,
) -> None:
    """Carry out a plan, filling regions that match one of `source` from there and leaving the others zero.

    With `overwrite_kept` the kept files are filled too. Nothing that exists is touched before all space is
    allocated. Raises NoSpaceError.
    """
    fresh = directory / FRESH_NAME
    try:
        remove_tree(files, fresh)
        files.make_folder(fresh)
        for file in plan.fresh:
            _allocate(files, fresh / str(file), plan.new.files[file].size)
    except (OSError, NoSpaceError):
        remove_tree(files, fresh)
        raise
    if source is not None:
        targets = {file: fresh / str(file) for file in plan.fresh}
        if overwrite_kept:
            journal.append([Touched(plan.new.files[file].path, 0, WHOLE) for file in plan.kept])
            targets |= {file: directory / plan.new.files[file].path for file in plan.kept}
        copy_regions(files, source, plan.new, targets, threads)
    _swap_in(files, directory, plan, journal)


def _swap_in(files: Files, directory: Path, plan: Plan, journal: Journal) -> None:
    paths = [*plan.removed, *(plan.new.files[file].path for file in plan.fresh)]
    journal.append([Touched(path, 0, WHOLE) for path in paths])
    for path in plan.removed:
        remove_file(files, directory / path)
    # A path may turn from file to folder or back, so folders that nothing needs go before new files come.
    _remove_empty_folders(files, directory, plan)
    for file in plan.fresh:
        target = directory / plan.new.files[file].path
        make_folders(files, target.parent)
        files.rename(directory / FRESH_NAME / str(file), target)
    remove_tree(files, directory / FRESH_NAME)


def _remove_empty_folders(files: Files, directory: Path, plan: Plan) -> None:
    needed = _folders_of(file.path for file in plan.new.files)
    gone = _folders_of(plan.removed) - needed
    for folder in sorted(gone, key=len, reverse=True):
        if exists(files, directory / folder):
            files.remove_folder(directory / folder)


def _folders_of(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        parts = path.split("/")
        found.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return found


def make_anew(files: Files, path: Path, size: int) -> None:
    """Put a file of `size` zeros, with its room on the disk, in the place of what is there. Raises NoSpaceError."""
    remove_file(files, path)
    make_folders(files, path.parent)
    _allocate(files, path, size)


def _allocate(files: Files, path: Path, size: int) -> None:
    with named(path):
        fd = files.open_write(path)
        try:
            files.truncate(fd, size)
            if size:
                files.allocate(fd, size)
        finally:
            files.close(fd)


def copy_regions(files: Files, source: ByteSource, new: Layout, targets: Mapping[int, Path], threads: int) -> None:
    """Fill files of layout `new` (number to path) with the regions of `source` that match theirs."""
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(_copy, files, source, *piece) for piece in _pieces(source.layout, new, targets)]:
            done.result()


def _copy(files: Files, source: ByteSource, path: Path, offset: int, file: int, source_offset: int, size: int) -> None:
    data = source.read(file, source_offset, size)
    with named(path):
        fd = files.open_write(path)
        try:
            write_at(files, fd, data.data, offset)
        finally:
            files.close(fd)


def _pieces(old: Layout, new: Layout, targets: Mapping[int, Path]) -> Iterator[tuple[Path, int, int, int, int]]:
    """(target, offset, source file, source offset, size): runs of regions that stay together, cut into pieces."""
    table = RegionTable(old)
    match = match_regions(old, new)
    at = 0
    for number, file in enumerate(new.files):
        first, at = at, at + len(file.regions)
        if number in targets:
            for offset, was, source_offset, size in _runs(file, match[first:at], table):
                for done in range(0, size, _PIECE_BYTES):
                    yield targets[number], offset + done, was, source_offset + done, min(_PIECE_BYTES, size - done)


def _runs(file: File, match: Sequence[int], table: RegionTable) -> Iterator[tuple[int, int, int, int]]:
    offset = 0
    run: tuple[int, int, int, int] | None = None
    for region, was in zip(file.regions, match, strict=True):
        if was >= 0 and region.size:
            source, at = int(table.file[was]), int(table.offset[was])
            if run and run[1] == source and run[0] + run[3] == offset and run[2] + run[3] == at:
                run = (run[0], source, run[2], run[3] + region.size)
            else:
                if run:
                    yield run
                run = (offset, source, at, region.size)
        offset += region.size
    if run:
        yield run


def renew_inodes(files: Files, directory: Path, layout: Layout, numbers: Iterable[int]) -> None:
    """Put files with the same bytes and new inodes in the place of the old ones, which readers may keep mapped.

    One file at a time, so it needs room for the largest. Raises NoSpaceError, and some files are new then.
    """
    fresh = directory / FRESH_NAME
    same = MappedFiles(directory, layout, files, writable=False)
    try:
        files.make_folder(fresh)
        for number in numbers:
            _allocate(files, fresh / "copy", layout.files[number].size)
            for piece in _cut(fresh / "copy", number, [(0, layout.files[number].size)]):
                _copy(files, same, *piece)
            files.rename(fresh / "copy", directory / layout.files[number].path)
    finally:
        remove_tree(files, fresh)


def restore(files: Files, directory: Path, touched: Sequence[Touched], good: MappedFiles, threads: int) -> None:
    """Make a directory hold again what `good` holds, given everything that was touched since it did.

    Raises NoSpaceError, and then the directory is worth nothing.
    """
    whole = {each.path for each in touched if each.size == WHOLE}
    numbers = {file.path: number for number, file in enumerate(good.layout.files)}
    for path in whole - numbers.keys():
        remove_file(files, directory / path)
    stray = Plan(None, good.layout, (), (), tuple(whole - numbers.keys()))
    _remove_empty_folders(files, directory, stray)
    pieces: list[tuple[Path, int, int, int, int]] = []
    for path in whole & numbers.keys():
        number = numbers[path]
        size = good.layout.files[number].size
        make_anew(files, directory / path, size)
        pieces += _cut(directory / path, number, [(0, size)])
    ranges: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for each in touched:
        if each.path in numbers and each.path not in whole:
            ranges[each.path].append((each.offset, each.size))
    for path, spans in ranges.items():
        pieces += _cut(directory / path, numbers[path], _merged(spans))
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(_copy, files, good, *piece) for piece in pieces]:
            done.result()


def _cut(path: Path, number: int, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[Path, int, int, int, int]]:
    for offset, size in spans:
        for at in range(offset, offset + size, _PIECE_BYTES):
            yield path, at, number, at, min(_PIECE_BYTES, offset + size - at)


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for offset, size in sorted(spans):
        if merged and offset <= sum(merged[-1]):
            start, length = merged[-1]
            merged[-1] = (start, max(length, offset + size - start))
        else:
            merged.append((offset, size))
    return merged


def undo(files: Files, directory: Path, touched: Sequence[Touched]) -> None:
    """Write the old bytes of an undo journal back, newest first."""
    for each in reversed(touched):
        path = directory / each.path
        fd = files.open_write(path)
        try:
            data = np.empty(each.size, np.uint8)
            read_at(files, fd, data.data, each.offset)
            undo_difference(data, each.undo)
            write_at(files, fd, data.data, each.offset)
        finally:
            files.close(fd)
