"""SGLang: weights are loaded from the leased directory, and read back from /model_info.

Endpoints and fields are those of `sglang/srt/entrypoints/http_server.py` and `managers/io_struct.py`.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Final

import msgspec

from ..gateway.choice import Applied
from ..gateway.stamp import Members, encode
from .base import PROBE_S, EngineAnswerError, EngineRefusedError, HttpEngine, Load, Running, cache_key

FLUSH_S: Final = 10.0


class SglangEngine(HttpEngine):
    """One SGLang server."""

    name = "sglang"
    loads = True
    pauses = True
    blocked_routes = frozenset(
        {
            "/update_weights_from_disk",
            "/update_weights_from_tensor",
            "/update_weights_from_distributed",
            "/update_weights_from_ipc",
            "/update_weight_version",
            "/init_weights_update_group",
            "/destroy_weights_update_group",
            "/pull_weights",
            "/pause_generation",
            "/continue_generation",
            "/release_memory_occupation",
            "/resume_memory_occupation",
            "/load_lora_adapter",
            "/load_lora_adapter_from_tensors",
            "/unload_lora_adapter",
            "/set_internal_state",
        }
    )

    async def pause(self, *, idle: bool) -> None:
        """Requests stay in the scheduler with their caches: `in_place` is the only mode that loses nothing."""
        del idle  # the gateway has drained what it had to
        await self.table("POST", "/pause_generation", {"mode": "in_place"})

    async def resume(self) -> None:
        """POST /continue_generation."""
        await self.table("POST", "/continue_generation", {})

    async def load(self, load: Load, *, full: bool) -> None:
        """POST /update_weights_from_disk, or an adapter under its name."""
        if load.adapter:
            await self._load_adapter(load)
            return
        # flush_cache asserts that nothing runs, and would take the engine down otherwise. Prefixes are kept apart
        # by extra_key; the flush below only gives their memory back.
        body = {
            "model_path": load.path,
            "weight_version": str(load.applied.version),
            "abort_all_requests": full,
            "keep_pause": True,
            "flush_cache": False,
        }
        if full:
            body["load_format"] = "auto"
        answer = await self.table("POST", "/update_weights_from_disk", body, timeout_s=self._load_timeout_s)
        if answer.get("success") is not True:
            raise EngineAnswerError(f"sglang did not load {load.path}: {answer.get('message', answer)}")
        if load.idle or full:
            await self._flush()

    async def _flush(self) -> None:
        # It is refused while something runs that did not come through the gateway: the keys keep prefixes apart.
        with contextlib.suppress(EngineRefusedError):
            await self.call("POST", f"/flush_cache?timeout={FLUSH_S:g}", timeout_s=FLUSH_S + PROBE_S)

    async def _load_adapter(self, load: Load) -> None:
        """A duplicate name is rejected, so what has the name goes first; nothing runs on it (see the gate)."""
        if load.before is not None or await self.adapter_path(load.adapter) is not None:
            with contextlib.suppress(EngineRefusedError):  # it was not there: loading tells
                await self.table("POST", "/unload_lora_adapter", {"lora_name": load.adapter})
        body = {"lora_name": load.adapter, "lora_path": load.path}
        answer = await self.table("POST", "/load_lora_adapter", body, timeout_s=self._load_timeout_s)
        loaded = answer.get("loaded_adapters")
        if answer.get("success") is not True or not isinstance(loaded, dict) or load.adapter not in loaded:
            raise EngineAnswerError(f"sglang did not load adapter {load.adapter}: {answer}")
        where = loaded[load.adapter]
        path = where.get("lora_path") if isinstance(where, dict) else where
        if path != load.path:
            raise EngineAnswerError(f"sglang has adapter {load.adapter} from {path}, not from {load.path}")

    async def confirm(self, load: Load) -> None:
        """Both the label and the path must be the ones given: a label alone can be set without any weights."""
        if load.adapter:
            return  # the answer to the load itself named the path
        running = await self.running()
        if running.label != str(load.applied.version):
            raise EngineAnswerError(
                f"sglang says that it has version {running.label!r} after loading version {load.applied.version}"
            )
        if running.path is not None and running.path != load.path:
            raise EngineAnswerError(f"sglang says that its weights are from {running.path}, not from {load.path}")

    async def running(self) -> Running:
        """GET /model_info, or what it was called before."""
        try:
            info = await self.table("GET", "/model_info", timeout_s=PROBE_S)
        except EngineRefusedError as error:
            if error.status != 404:
                raise
            info = await self.table("GET", "/get_model_info", timeout_s=PROBE_S)
        label, path = info.get("weight_version"), info.get("model_path")
        return Running(label if isinstance(label, str) else None, path if isinstance(path, str) else None)

    async def abort(self, request: Members) -> None:
        """POST /abort_request: closing the connection alone does not end a request that has not been answered yet."""
        rid = msgspec.json.decode(request["rid"])
        for each in rid if isinstance(rid, list) else [rid]:
            await self.call("POST", "/abort_request", {"rid": each}, timeout_s=PROBE_S)

    def prepare(self, request: Members, weights: list[Applied]) -> Members:
        """Set `rid` where it is missing, and prefix `extra_key`, one or many, with the weights."""
        rid = msgspec.json.decode(request["rid"]) if "rid" in request else None
        changed = dict(request) if rid else request | {"rid": encode(uuid.uuid4().hex)}
        if weights:
            own = msgspec.json.decode(request["extra_key"]) if "extra_key" in request else None
            keys = [cache_key(weights, each) for each in own] if isinstance(own, list) else cache_key(weights, own)
            changed["extra_key"] = encode(keys)
        return changed
