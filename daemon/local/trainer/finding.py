"""Finds the checkpoint folders in a directory that a trainer has finished, and says of the others what they lack.

A folder is finished when it holds the marker file; or, without one, when nothing in it has changed for a while and it
is whole: every safetensors file as long as its header says, every file there that an index names. A folder of changes
(see `slime.format`) is finished with its index, which its writer writes last.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ....storage.errors import StorageError
from ....storage.safetensors import LENGTH_BYTES, file_regions, header_length
from .selecting import INDEX_SUFFIX, is_delta

Finished = Literal["auto", "marker", "index", "settled"]

_UNFINISHED: Final = ("tmp-*", "*.tmp", "*.incomplete")
"""Names that trainers give to folders in the making."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One folder as it was seen. `stamp` is another one as soon as anything in it is."""

    path: Path
    stamp: str
    newest_ns: int
    """When the newest file in it was last written."""
    marked: bool
    indexed: bool

    @property
    def delta(self) -> bool:
        """Whether it holds changes instead of a checkpoint. Opens the index, which may be megabytes."""
        return self.indexed and is_delta(self.path)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def age(self) -> tuple[int, list[int | str]]:
        """Sorts folders by when they were finished, and by the numbers in their names where that is the same."""
        return self.newest_ns, natural(self.name)


def natural(name: str) -> list[int | str]:
    """A sorting key that puts step_9 before step_10. Kinds of parts alternate, so keys can always be compared."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]


def step_of(name: str) -> int | None:
    """The last number in a folder's name."""
    found = re.findall(r"[0-9]+", name)
    return int(found[-1]) if found else None


def look(directory: Path, match: str, marker: str) -> list[Sight]:
    """Every folder in `directory` that may be a checkpoint, oldest first. Raises OSError when it cannot be read."""
    found = []
    for entry in os.scandir(directory):
        hidden = entry.name.startswith(".") or any(fnmatch.fnmatchcase(entry.name, each) for each in _UNFINISHED)
        if not hidden and fnmatch.fnmatchcase(entry.name, match) and entry.is_dir():
            sight = _sight(Path(entry.path), marker)
            if sight is not None:
                found.append(sight)
    return sorted(found, key=lambda each: each.age)


def _sight(path: Path, marker: str) -> Sight | None:
    """What can be seen of a folder without opening its files, or None for one that is empty or just vanishes."""
    seen = hashlib.sha256()
    newest, names = 0, set()
    try:
        for folder, folders, files in os.walk(path, followlinks=True):
            folders.sort()
            for name in sorted(files):
                found = Path(folder, name).stat()
                seen.update(f"{folder}\0{name}\0{found.st_size} {found.st_mtime_ns} {found.st_ino}\0".encode())
                newest = max(newest, found.st_mtime_ns)
                if Path(folder) == path:
                    names.add(name)
    except OSError:
        return None
    if not newest:
        return None
    indexed = any(name.endswith(INDEX_SUFFIX) for name in names)
    return Sight(path, seen.hexdigest()[:32], newest, marker in names, indexed)


class Patience:
    """Remembers since when folders look as they do."""

    def __init__(self, finished: Finished, settle_s: float) -> None:
        self._finished = finished
        self._settle_s = settle_s
        self._since: dict[str, tuple[str, float]] = {}

    def is_finished(self, sight: Sight, now: float) -> bool:
        """Whether a folder has what its trainer writes last, or has not changed for long enough."""
        stamp, since = self._since.get(sight.name, ("", now))
        if stamp != sight.stamp:
            since = now
            self._since[sight.name] = sight.stamp, now
        settled = now - since >= self._settle_s
        match self._finished:
            case "marker":
                return sight.marked
            case "index":
                return sight.indexed
            case "settled":
                return settled
        return sight.marked or settled or sight.delta

    def forget(self, names: set[str]) -> None:
        """Keep only what is known of `names`."""
        self._since = {name: kept for name, kept in self._since.items() if name in names}


def missing(path: Path) -> str | None:
    """What a folder lacks to be a checkpoint, or None when it is whole."""
    try:
        shards = sorted(path.glob("*.safetensors"))
        for index in sorted(path.glob(f"*{INDEX_SUFFIX}")):
            for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
                if not (path / name).is_file():
                    return f"{name}, which {index.name} names, is not there"
        for shard in shards:
            _check_whole(shard)
    except StorageError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "its index is not one of safetensors files"
    return None if shards or is_delta(path) else "it holds no safetensors file"


def _check_whole(path: Path) -> None:
    """Raise NotACheckpointError unless a safetensors file is as long as its header says."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = header_length(file.read(LENGTH_BYTES), size, str(path))
        file_regions(file.read(length), size, str(path))
