"""Versions that several ranks write: each its own files, one of them puts the version together.

A rank says that it is done by a file, written last, that names what it has written. Whoever commits waits for all of
them, so a rank that died leaves nothing published, and an error that names it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .arrays import Spec
from .errors import BadTensorError, RankMissingError, StagingError
from .writing import Written

DONE_NAME: Final = "done.json"
INDEX_NAME: Final = "model.safetensors.index.json"
FORMAT: Final = 1
_LOOK_AGAIN_S: Final = 0.1
"""Between two looks for the ranks' files: they may come from other hosts, over a file system without events."""


def default_attempt() -> str:
    """What tells one start of a trainer from the next on all its ranks: torchrun's run and restart, if it runs here."""
    run, restart = os.environ.get("TORCHELASTIC_RUN_ID", ""), os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return f"{run}/{restart}" if run else ""


def mark_done(folder: Path, world: int, written: Sequence[Written]) -> None:
    """Say in a rank's folder that its files are whole."""
    files = {each.path.name: {name: _encoded(spec) for name, spec in each.specs.items()} for each in written}
    text = json.dumps({"format": FORMAT, "world": world, "files": files})
    making = folder / f".{DONE_NAME}"
    making.write_text(text, encoding="utf-8")
    making.replace(folder / DONE_NAME)


def gather(folders: Sequence[Path], timeout_s: float) -> list[Written]:
    """What all ranks have written, in the order of ranks, as soon as all have.

    Raises RankMissingError naming those that have not within `timeout_s`, StagingError for ranks that disagree on how
    many they are, and BadTensorError for a tensor that two ranks have written.
    """
    deadline = time.monotonic() + timeout_s
    while missing := [rank for rank, folder in enumerate(folders) if not (folder / DONE_NAME).exists()]:
        if time.monotonic() >= deadline:
            named = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            raise RankMissingError(
                f"rank {named} of {len(folders)} has not staged its part after {timeout_s:g} s: nothing is published; "
                "did it die, or use another label or staging folder?"
            )
        time.sleep(_LOOK_AGAIN_S)
    written: list[Written] = []
    owner: dict[str, int] = {}
    for rank, folder in enumerate(folders):
        for each in _read_done(folder, rank, len(folders)):
            for name in each.specs:
                if owner.setdefault(name, rank) != rank:
                    raise BadTensorError(
                        f"tensor {name!r} was staged by rank {owner[name]} and by rank {rank}: only one may write it"
                    )
            written.append(each)
    return written


def assemble(written: Sequence[Written], folder: Path) -> None:
    """Move the files into `folder` under the names that Hugging Face gives them, with an index if they are several."""
    used = [each for each in written if each.specs]
    total = len(used)
    index: dict[str, str] = {}
    for number, each in enumerate(used, 1):
        name = "model.safetensors" if total == 1 else f"model-{number:05}-of-{total:05}.safetensors"
        each.path.rename(folder / name)
        index |= dict.fromkeys(each.specs, name)
    if total > 1:
        size = sum(spec.size_bytes for each in used for spec in each.specs.values())
        document = {"metadata": {"total_size": size}, "weight_map": index}
        (folder / INDEX_NAME).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def specs_of(written: Sequence[Written]) -> dict[str, Spec]:
    """All tensors by name."""
    return {name: spec for each in written for name, spec in each.specs.items()}


def _read_done(folder: Path, rank: int, world: int) -> Iterator[Written]:
    document: Mapping[str, Any] = json.loads((folder / DONE_NAME).read_text(encoding="utf-8"))
    if document["format"] != FORMAT:
        raise StagingError(f"rank {rank} staged with another version of patchswarm: use the same one on all ranks")
    if document["world"] != world:
        raise StagingError(
            f"rank {rank} staged as one of {document['world']}, but {world} are to be committed: "
            "give all ranks the same world"
        )
    for name, specs in document["files"].items():
        yield Written(folder / name, {tensor: _decoded(spec) for tensor, spec in specs.items()})


def _encoded(spec: Spec) -> list[Any]:
    return [spec.dtype, list(spec.shape), spec.size_bytes, spec.width_bytes]


def _decoded(spec: list[Any]) -> Spec:
    dtype, shape, size, width = spec
    return Spec(dtype, tuple(shape), size, width)
