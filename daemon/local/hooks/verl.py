"""verl: a checkpoint engine that carries weights from the actor to rollout replicas through the daemons on their hosts.

    actor_rollout_ref.rollout.checkpoint_engine.backend=patchswarm
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=patchswarm.daemon.local.hooks.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.patchswarm.stream=qwen

The actor's first rank publishes while it walks the weights; every replica reads the version from its own host's slot.
Nobody else needs a path to the trainer. Importing this module registers the engine where verl is there.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Final, TypeVar

from ..client import Client
from ..errors import LocalError, UnknownStreamError, VersionNotReadyError
from ..model import VersionInfo
from ..trainer.publisher import Publisher
from .settings import settings_of, wait_s

BACKEND: Final = "patchswarm"

Order = tuple[int, int]
"""(epoch, version)."""

T = TypeVar("T")


class PatchswarmCheckpointEngine:
    """verl's CheckpointEngine, by its methods. One in each actor rank (`is_master` in the first) and rollout worker.

    Each update goes prepare, build_topology, init_process_group, then send_weights and receive_weights side by side,
    then finalize. What the workers agree on in the first three is the newest version before the update.
    """

    wire_format = "named_tensors"

    def __init__(
        self,
        bucket_size: int,
        *,
        is_master: bool = False,
        stream: str | None = None,
        socket: str | None = None,
        staging: str | None = None,
        side_files: str | None = None,
        dtype: Any = None,
        device: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.is_master = is_master
        self._stream = stream or settings_of().stream
        self._client = Client(socket)
        self._publisher = Publisher(
            self._stream, client=self._client, staging=staging, side_files=side_files, piece_bytes=bucket_size
        )
        self._dtype = dtype
        self._device = device
        self._timeout_s = wait_s() if timeout_s is None else timeout_s
        self._after: Order | None = None

    def prepare(self) -> dict[str, Any]:
        """What this worker tells the others: the master, the newest version so far."""
        if not self.is_master:
            return {}
        try:
            newest = self._client.version(self._stream)
        except (UnknownStreamError, VersionNotReadyError):
            return {"after": None}
        return {"after": (newest.epoch, newest.version)}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """What every worker is told. Raises LocalError when no actor rank is the master."""
        told = [each["after"] for each in metadata if "after" in each]
        if len(told) != 1:
            raise LocalError(
                f"{len(told)} of {len(metadata)} verl workers are masters", remedy="make the first actor rank the one"
            )
        return {"after": told * actor_wg_world_size}, {"after": told * rollout_world_size}

    def init_process_group(self, after: Order | None) -> None:
        """There is no group to join: only what an update must come after."""
        self._after = None if after is None else (after[0], after[1])

    def finalize(self) -> None:
        """Nothing outlives an update."""
        self._after = None

    async def send_weights(
        self, weights: Iterable[tuple[str, Any]] | AsyncIterable[tuple[str, Any]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Publish the weights, on the master; other ranks walk them, because making each takes all ranks.

        Metrics of the update. Raises what `Publisher.publish` raises.
        """
        if not self.is_master:
            async for _ in _each(weights):
                pass
            return {}
        label = _label(global_steps)
        if isinstance(weights, AsyncIterable):
            pulled = _pulled(weights, asyncio.get_running_loop())
            version = await asyncio.to_thread(self._publisher.publish, pulled, label=label, dtype=self._dtype)
        else:  # on this thread, where the ranks' collectives are at home
            version = self._publisher.publish(weights, label=label, dtype=self._dtype)
        last = self._publisher.last
        assert last is not None
        return {
            "patchswarm/version": float(version),
            "patchswarm/patch_bytes": float(last.patch_bytes),
            "patchswarm/changed_fraction": last.changed_fraction,
        }

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Any]]:
        """Every tensor of the version that this update publishes, as torch has it, from this host's slot.

        Raises VersionNotReadyError when it has not come in time, LocalError when another came instead.
        """
        version = await asyncio.to_thread(self._wait, _label(global_steps))
        tensors = self._client.tensors(self._stream, version.version)
        opened = await asyncio.to_thread(tensors.__enter__)
        try:
            for name in opened:
                tensor = opened.torch(name)
                yield name, tensor if self._device is None else tensor.to(self._device)
        except BaseException as error:
            await asyncio.to_thread(tensors.__exit__, type(error), error, error.__traceback__)
            raise
        await asyncio.to_thread(tensors.__exit__, None, None, None)

    def _wait(self, label: str) -> VersionInfo:
        epoch, version = self._after or (None, -1)
        found = self._client.wait(self._stream, version + 1, self._timeout_s, epoch=epoch)
        if found is None:
            raise VersionNotReadyError(
                f"no version of {self._stream!r} after {version} has come to this host within {self._timeout_s:g} s",
                remedy="see whether the trainer has published, and whether the daemon reaches its head",
            )
        if found.label != label:
            raise LocalError(
                f"version {found.version} of {self._stream!r} is labelled {found.label!r} where {label!r} was to come",
                remedy="see whether another trainer publishes in this stream, and stop it",
            )
        return found


def _label(global_steps: int | None) -> str:
    return "" if global_steps is None else f"step {global_steps}"


async def _each(weights: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(weights, AsyncIterable):
        async for each in weights:
            yield each
    else:
        for each in weights:
            yield each


def _pulled(weights: AsyncIterable[T], loop: asyncio.AbstractEventLoop) -> Iterator[T]:
    """An asynchronous iterator, as another thread than its event loop's walks it."""
    iterator = aiter(weights)
    done = object()

    async def step() -> Any:
        return await anext(iterator, done)

    while (each := asyncio.run_coroutine_threadsafe(step(), loop).result()) is not done:
        yield each


def register() -> bool:
    """Make the engine known to verl as "patchswarm"; False where verl is not there."""
    try:
        base = importlib.import_module("verl.checkpoint_engine.base")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "verl":
            raise
        return False
    base.CheckpointEngineRegistry.register(BACKEND)(PatchswarmCheckpointEngine)
    return True


register()
