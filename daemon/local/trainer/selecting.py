"""Which files of a trainer's folder make a version: a folder of links to those, where others lie beside them."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ...errors import BadInputError, reason
from . import staging

DEFAULT_EXCLUDES: Final = (
    "optimizer*.pt",
    "optimizer*.bin",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
    "training_args.bin",
    "trainer_state.json",
    "global_step*/*",
    "latest",
    "zero_to_fp32.py",
    "STABLE",
)
"""What trainers put beside the weights to go on training, and no engine reads."""

INDEX_SUFFIX: Final = ".safetensors.index.json"
_WEIGHTS: Final = ("*.safetensors", f"*{INDEX_SUFFIX}", "*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.gguf", "*.h5")
_OWN_PREFIX: Final = ".patchswarm"


def files_below(directory: Path) -> list[str]:
    """Paths of all files below a directory, '/' between parts, symlinks followed. Raises BadInputError."""
    found: list[str] = []
    try:
        for folder, folders, names in os.walk(directory, followlinks=True, onerror=_raise):
            folders.sort()
            below = Path(folder).relative_to(directory).as_posix()
            found += [name if below == "." else f"{below}/{name}" for name in sorted(names)]
    except OSError as error:
        raise BadInputError(f"{error.filename or directory}: cannot be read: {reason(error)}") from None
    return [path for path in found if not path.startswith(_OWN_PREFIX)]


@contextlib.contextmanager
def selected(directory: Path, exclude: Sequence[str], root: Path, stream: str) -> Iterator[Path]:
    """A folder that holds `directory` without what the glob patterns of `exclude` name: itself where they name nothing.

    Otherwise a folder of links below the staging folder `root`, as long as the context lasts.
    """
    directory = Path(os.path.abspath(directory))  # noqa: PTH100 -- keeps symlinks as given
    paths = files_below(directory)
    chosen = [path for path in paths if not _matches(path, exclude)]
    if len(chosen) == len(paths):
        yield directory
        return
    if not chosen:
        raise BadInputError(f"{directory}: every file in it is excluded; exclude less")
    with staging.own_folder(root, stream) as folder:
        files = folder / "files"
        for path in chosen:
            _link(directory / path, files / path)
        yield files


def link_side_files(directory: Path, files: Path) -> None:
    """Link everything but weights from `directory` into `files`, where nothing of that name is yet."""
    directory = directory.absolute()
    for path in files_below(directory):
        if not _matches(path, (*_WEIGHTS, *DEFAULT_EXCLUDES)) and not (files / path).exists():
            _link(directory / path, files / path)


def is_delta(directory: Path) -> bool:
    """Whether a folder holds changes in slime's format instead of a checkpoint."""
    try:
        index = json.loads((directory / f"model{INDEX_SUFFIX}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(index, dict) and "delta_encoding" in (index.get("metadata") or {})


def _matches(path: str, patterns: Sequence[str]) -> bool:
    name = path.rsplit("/", 1)[-1]
    return any(fnmatch.fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)


def _link(target: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def _raise(error: OSError) -> None:
    raise error
