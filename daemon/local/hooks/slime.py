"""slime, and whatever else calls a post-write hook: each weight folder that the trainer writes becomes a version.

    --update-weight-transport disk
    --custom-update-weight-post-write-path patchswarm.daemon.local.hooks.slime.publish_weights

The stream is $PATCHSWARM_STREAM. In delta mode the hosts' folders are written by `patchswarm write-deltas`, and engines
are started with

    --sglang-custom-pull-weights-pre-read-hook patchswarm.daemon.local.hooks.slime.wait_for_weights

so that /pull_weights waits until the version is on its host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import VersionNotReadyError
from ..slime.format import folder_name, number_of
from ..slime.source import applied
from ..trainer.selecting import files_below, is_delta
from .settings import Settings, global_rank, settings_of, wait_s

_LOOK_AGAIN_S: Final = 0.05


def publish_weights(args: Any, version_dir: str, rollout_engines: Sequence[Any]) -> int | None:
    """Publish what the trainer has just written into `version_dir`; the version's number, None on ranks but the first.

    slime calls this on every rank after all have written, and once at the start with the folder of all versions,
    emptied: then what the engines were started with, `args.hf_checkpoint`, is published as weight_v000000, on which the
    first delta builds. The label of a version is its folder's name. Raises what `Publisher.publish` raises.
    """
    del rollout_engines  # they are told by slime itself
    if global_rank() != 0:
        return None
    settings = settings_of(args)
    folder = Path(version_dir)
    if number_of(folder.name) is None and not files_below(folder):
        base = str(args.hf_checkpoint)
        return settings.publisher().publish(base, label=folder_name(0), base=settings.register_base)
    if is_delta(folder):
        return _publish_delta(settings, folder)
    return settings.publisher().publish(folder, label=folder.name)


def wait_for_weights(source_dir: str, target_version: int) -> None:
    """Wait until `write-deltas` has written a version into `source_dir`, at most $PATCHSWARM_WAIT_S seconds.

    Raises VersionNotReadyError when it has not by then: the engine answers /pull_weights with that.
    """
    folder = Path(source_dir) / folder_name(target_version)
    limit_s = wait_s()
    deadline = time.monotonic() + limit_s
    while not folder.is_dir():
        if time.monotonic() >= deadline:
            raise VersionNotReadyError(
                f"{folder} has not been written after {limit_s:g} s",
                remedy=f"see whether 'patchswarm write-deltas {source_dir}' runs",
            )
        time.sleep(_LOOK_AGAIN_S)


def _publish_delta(settings: Settings, folder: Path) -> int:
    client = settings.client()
    with applied(folder, client, settings.stream, settings.root()) as checkpoint:
        return client.publish(checkpoint, stream=settings.stream, label=folder.name).version
