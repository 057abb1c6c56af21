"""Any other server with OpenAI's routes: told of new weights at one path of its own, when it has one.

`POST {reload_path}` {"model_path", "weight_version"} -> {"weight_version"}, answered when the weights are loaded.
Without such a path the engine cannot be moved: requests pass, and those that ask for a version are refused.
"""

from __future__ import annotations

import contextlib

from ..gateway.choice import Applied
from ..gateway.stamp import Members
from .base import PROBE_S, EngineAnswerError, EngineRefusedError, HttpEngine, Load, Running


class OpenAiEngine(HttpEngine):
    """One server that speaks OpenAI's API."""

    name = "openai"
    pauses = False

    def __init__(self, url: str, *, load_timeout_s: float, reload_path: str = "") -> None:
        super().__init__(url, load_timeout_s=load_timeout_s)
        self._reload_path = reload_path
        self._label: str | None = None
        self.loads = bool(reload_path)
        self.blocked_routes = frozenset({reload_path} if reload_path else ())

    async def pause(self, *, idle: bool) -> None:
        """It cannot be paused: the gateway lets requests end first."""

    async def resume(self) -> None:
        """It was never paused."""

    async def load(self, load: Load, *, full: bool) -> None:
        """Tell it, and remember what it said."""
        del full  # there is but one way
        self._label = None
        if load.adapter:
            raise EngineAnswerError(
                "an engine of kind 'openai' cannot be given adapters",
                remedy="leave them out, or serve them with sglang or vllm",
            )
        body = {"model_path": load.path, "weight_version": str(load.applied.version)}
        answer = await self.table("POST", self._reload_path, body, timeout_s=self._load_timeout_s)
        label = answer.get("weight_version")
        self._label = label if isinstance(label, str) else None

    async def confirm(self, load: Load) -> None:
        """The answer to the load must have named the version."""
        if self._label != str(load.applied.version):
            raise EngineAnswerError(
                f"the engine says that it has version {self._label!r} after loading version {load.applied.version}"
            )

    async def running(self) -> Running:
        """That it answers, and what it said last: nobody can ask it more."""
        with contextlib.suppress(EngineRefusedError):  # that is an answer too
            await self.call("GET", "/v1/models", timeout_s=PROBE_S)
        return Running(self._label, None)

    async def abort(self, request: Members) -> None:
        """Closing the connection is all that can be done."""

    def prepare(self, request: Members, weights: list[Applied]) -> Members:
        """Nothing is added that an unknown server might refuse."""
        del weights
        return request
