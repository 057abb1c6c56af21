"""Publishes what a trainer has: a state dict of any framework and device, the shares of its ranks, or a directory.

    publisher = Publisher("qwen", side_files="/models/Qwen3-8B")
    version = publisher.publish(model.state_dict(), label=f"step {step}", dtype=torch.bfloat16)

Several ranks write side by side, and one of them commits after a barrier:

    publisher.stage(share(model.state_dict(), rank, world), rank=rank, world=world, label=f"step {step}")
    torch.distributed.barrier()
    if rank == 0:
        version = publisher.commit(world=world, label=f"step {step}")

Tensors go to a staging folder piece by piece, never a second time into memory; the daemon reads them there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from ..client import Client
from ..model import PublishProgress, PublishResult
from . import ranks, staging
from .arrays import PIECE_BYTES, Cast, Reader, identity, spec_of
from .errors import BadTensorError
from .layout import Known, Last, check_layout, last_layout
from .selecting import DEFAULT_EXCLUDES, is_delta, link_side_files, selected
from .writing import SHARD_BYTES, Writer, Written

__all__ = ["Publisher", "Source", "share"]

Source = Mapping[str, Any] | Iterable[tuple[str, Any]] | str | os.PathLike[str]
"""Name to tensor; pairs of both, one at a time; or a checkpoint directory."""

RANKS_TIMEOUT_S: Final = 600.0

_METADATA: Final = {"format": "pt"}


class Publisher:
    """Publishes versions of one stream on the head. Use it from one thread at a time.

    `staging` is a folder that this process may write and the daemon may read, with room for one version. Ranks on
    several hosts need one that all see. Without it: $PATCHSWARM_STAGING, or `.staging` in the daemon's slot_dir.
    `side_files` is a directory whose other files (config.json, the tokenizer) go with every version that is made from
    tensors.
    """

    def __init__(
        self,
        stream: str,
        *,
        client: Client | None = None,
        staging: str | os.PathLike[str] | None = None,
        side_files: str | os.PathLike[str] | None = None,
        shard_bytes: int = SHARD_BYTES,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.stream = stream
        self.client = client or Client()
        self.last: PublishResult | None = None
        """What the last publish cost."""
        self._root = Path(staging) if staging is not None else None
        self._side_files = None if side_files is None else Path(side_files)
        self._shard_bytes = shard_bytes
        self._reader = Reader(piece_bytes)
        self._last: Last | None = None

    def publish(
        self,
        source: Source,
        *,
        label: str = "",
        dtype: Any = None,
        keep: Sequence[str] = (),
        layout_change: bool = False,
        base: bool = False,
        exclude: Sequence[str] = DEFAULT_EXCLUDES,
        progress: Callable[[PublishProgress], None] | None = None,
    ) -> int:
        """Publish `source` as the next version and return its number, the one that requests name.

        Floating tensors of 16 bits and more become `dtype` (torch's, numpy's or its name), those that match a glob
        pattern of `keep` excepted. Names that are the same memory, as tied weights are in a mapping, are written once,
        under the first. Names, shapes and dtypes must be those of the version before, unless `layout_change`. From a
        directory what `exclude` names is left out: optimizer states and the like. `base`: the hosts have these bytes.

        Raises BadTensorError, LayoutChangedError, StagingError, and what `Client.publish` raises. Nothing is
        published then.
        """
        if isinstance(source, str | os.PathLike):
            return self._publish_directory(Path(source), label, exclude, base=base, progress=progress)
        cast = Cast(dtype, tuple(keep))
        known = None if layout_change else self._known()
        with staging.own_folder(self._staging(), self.stream) as folder:
            written = self._write(source, folder, cast, known)
            return self._finish(written, folder, label, known, base=base, progress=progress)

    def stage(
        self,
        tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
        *,
        rank: int,
        world: int,
        label: str,
        attempt: str | None = None,
        dtype: Any = None,
        keep: Sequence[str] = (),
    ) -> None:
        """Write this rank's part of a version; on its return the rank may reach the barrier before `commit`.

        All ranks give the same `label` and `attempt`, which tells one start of the trainer from the next where they
        use labels again (default: torchrun's run and restart). Raises BadTensorError or StagingError.
        """
        if not 0 <= rank < world:
            raise BadInputError(f"rank={rank} of world={world}: give a rank from 0 to world - 1")
        attempt = ranks.default_attempt() if attempt is None else attempt
        folder = staging.ranks_folder(self._staging(), self.stream, label, attempt)
        mine = staging.rank_folder(folder, rank)
        try:
            written = self._write(tensors, mine, Cast(dtype, tuple(keep)), None)
            ranks.mark_done(mine, world, written)
        except BaseException:
            shutil.rmtree(mine, ignore_errors=True)
            raise

    def commit(
        self,
        *,
        world: int,
        label: str,
        attempt: str | None = None,
        layout_change: bool = False,
        timeout_s: float = RANKS_TIMEOUT_S,
        progress: Callable[[PublishProgress], None] | None = None,
    ) -> int:
        """Publish what `world` ranks have staged under `label`; returns the version. One rank does this.

        Call it after a barrier that all ranks reach after `stage`. Without one it waits for them up to `timeout_s`,
        and then the label must not be one of an earlier, failed attempt. Raises RankMissingError, and what `publish`
        raises; the staged files are gone then as well.
        """
        attempt = ranks.default_attempt() if attempt is None else attempt
        root = self._staging()
        folder = staging.ranks_folder(root, self.stream, label, attempt)
        staging.remove_older_ranks(root, self.stream, folder)
        try:
            written = ranks.gather([folder / f"rank-{rank:05}" for rank in range(world)], timeout_s)
            return self._finish(
                written, folder, label, None if layout_change else self._known(), base=False, progress=progress
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _publish_directory(
        self,
        directory: Path,
        label: str,
        exclude: Sequence[str],
        *,
        base: bool,
        progress: Callable[[PublishProgress], None] | None,
    ) -> int:
        if is_delta(directory):
            raise BadInputError(
                f"{directory} holds the changes of a delta, not a checkpoint: publish it with "
                "'patchswarm publish --slime-delta'"
            )
        with selected(directory, exclude, self._staging(), self.stream) as folder:
            self.last = self.client.publish(folder, stream=self.stream, label=label, base=base, progress=progress)
        return self.last.version

    def _write(
        self, tensors: Mapping[str, Any] | Iterable[tuple[str, Any]], folder: Path, cast: Cast, known: Known | None
    ) -> list[Written]:
        writer = Writer(folder, "part", shard_bytes=self._shard_bytes, reader=self._reader, cast=cast)
        if not isinstance(tensors, Mapping):
            return writer.write_stream(tensors, _METADATA)
        tensors, aliases = untied(tensors)
        if known is not None:  # before anything is written
            check_layout(self.stream, known, {name: spec_of(name, each, cast) for name, each in tensors.items()})
        return writer.write(tensors, {**aliases, **_METADATA})

    def _finish(
        self,
        written: list[Written],
        folder: Path,
        label: str,
        known: Known | None,
        *,
        base: bool,
        progress: Callable[[PublishProgress], None] | None,
    ) -> int:
        """Put the checkpoint together, look whether it is like the last, publish it."""
        specs = ranks.specs_of(written)
        if not specs:
            raise BadTensorError(f"there is no tensor to publish in stream {self.stream!r}")
        if known is not None:
            check_layout(self.stream, known, specs)
        files = folder / "files"
        files.mkdir(exist_ok=True)
        ranks.assemble(written, files)
        if self._side_files is not None:
            link_side_files(self._side_files, files)
        self.last = self.client.publish(files, stream=self.stream, label=label, base=base, progress=progress)
        self._last = Last(self.last.manifest, {name: (spec.dtype, spec.shape) for name, spec in specs.items()})
        return self.last.version

    def _known(self) -> Known | None:
        """The tensors of the newest version, if there is one."""
        self._last = last_layout(self.client, self.stream, self._last)
        return None if self._last is None else self._last.known

    def _staging(self) -> Path:
        return staging.root_of(self.client, self._root)


def untied(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors without names that are another name's memory, and which names those are, by the name that is left.

    The first name of the mapping stays: in a state dict that is the input embedding, which loaders look for.
    """
    first: dict[object, str] = {}
    kept: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        known = identity(tensor)
        if known is not None and first.setdefault(known, name) != name:
            aliases[name] = first[known]
        else:
            kept[name] = tensor
    return kept, aliases


def share(tensors: Mapping[str, Any], rank: int, world: int) -> Iterator[tuple[str, Any]]:
    """A rank's share of a state dict that all ranks have, whole or as DTensors, about as large as the others'.

    A DTensor is gathered when it is its turn, which takes all ranks: every rank walks its share to the end, over a
    state dict with the same names in the same order.
    """
    loads = [0] * world
    for name, tensor in tensors.items():
        owner = loads.index(min(loads))
        loads[owner] += prod(tensor.shape) * int(tensor.dtype.itemsize)
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if owner == rank:
            yield name, whole
