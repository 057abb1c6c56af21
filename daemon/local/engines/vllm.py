"""vLLM: weights are reloaded in every worker from the leased directory; needs VLLM_SERVER_DEV_MODE=1.

Endpoints and fields are those of `vllm/entrypoints/serve/dev/rlhf/api_router.py`, `…/dev/rpc` and `…/lora`. Adapters
need VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.
"""

from __future__ import annotations

import msgspec

from ..gateway.choice import Applied
from ..gateway.stamp import Members, encode
from .base import PROBE_S, EngineAnswerError, EngineRefusedError, HttpEngine, Load, Running, cache_key


class VllmEngine(HttpEngine):
    """One vLLM server."""

    name = "vllm"
    loads = True
    pauses = True
    blocked_routes = frozenset(
        {
            "/pause",
            "/resume",
            "/init_weight_transfer_engine",
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/update_weight_version",
            "/weight_checker",
            "/collective_rpc",
            "/sleep",
            "/wake_up",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
        }
    )

    async def pause(self, *, idle: bool) -> None:
        """`keep` freezes requests where they are; `wait` ends them first, when there should be none."""
        path = f"/pause?mode={'wait' if idle else 'keep'}"
        await self.table("POST", path, timeout_s=self._load_timeout_s)
        if (await self.table("GET", "/is_paused", timeout_s=PROBE_S)).get("is_paused") is not True:
            raise EngineAnswerError("vllm says that it is not paused after it was paused")

    async def resume(self) -> None:
        """POST /resume."""
        await self.table("POST", "/resume")

    async def load(self, load: Load, *, full: bool) -> None:
        """`reload_weights` in every worker, then the label; or an adapter under its name, in place."""
        if load.adapter:
            body = {"lora_name": load.adapter, "lora_path": load.path, "load_inplace": load.before is not None or full}
            try:
                await self.call("POST", "/v1/load_lora_adapter", body, timeout_s=self._load_timeout_s)
            except EngineRefusedError as error:
                if error.status != 400 or body["load_inplace"] or "already been loaded" not in str(error):
                    raise
                body["load_inplace"] = True  # a gateway before this one had loaded it
                await self.call("POST", "/v1/load_lora_adapter", body, timeout_s=self._load_timeout_s)
            return
        answer = await self.table(
            "POST",
            "/collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": load.path, "is_checkpoint_format": True}},
            timeout_s=self._load_timeout_s,
        )
        if not isinstance(answer.get("results"), list) or not answer["results"]:
            raise EngineAnswerError(f"vllm named no worker that reloaded its weights: {answer}")
        await self.table("POST", "/update_weight_version", {"new_version": str(load.applied.version)})
        # Prefixes are kept apart by cache_salt; this gives their memory back, or does not while requests hold it.
        await self.call("POST", "/reset_prefix_cache" + ("?reset_running_requests=true" if full else ""))

    async def confirm(self, load: Load) -> None:
        """The label that the engine says must be the one given, an adapter's path likewise."""
        if load.adapter:
            path = await self.adapter_path(load.adapter)
            if path != load.path:
                raise EngineAnswerError(f"vllm has adapter {load.adapter} from {path}, not from {load.path}")
            return
        label = (await self.running()).label
        if label != str(load.applied.version):
            raise EngineAnswerError(f"vllm says that it has version {label!r} after loading {load.applied.version}")

    async def running(self) -> Running:
        """GET /weight_info. It names no path."""
        label = (await self.table("GET", "/weight_info", timeout_s=PROBE_S)).get("weight_version")
        return Running(label if isinstance(label, str) else None, None)

    async def abort(self, request: Members) -> None:
        """Closing the connection is how vLLM is told."""

    def prepare(self, request: Members, weights: list[Applied]) -> Members:
        """Prefix `cache_salt` with the weights."""
        if not weights:
            return request
        own = msgspec.json.decode(request["cache_salt"]) if "cache_salt" in request else None
        return request | {"cache_salt": encode(cache_key(weights, own))}
