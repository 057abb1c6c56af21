"""A contract server for vLLM in dev mode: behaves as its `rlhf`, `rpc`, `cache` and `lora` routers document, errors
too.

It is not vLLM. What it keeps to: routes, methods, names and defaults of fields and query parameters, status codes and
error bodies, that a label set by nobody is null, that an adapter is replaced only `load_inplace`, and that /pause with
`wait` answers when the last request has ended, with `keep` at once.
"""

import json
from typing import Any

from aiohttp import web
from daemon.local.contract_engine import ContractEngine, read_weights


class ContractVllm(ContractEngine):
    kind = "vllm"
    boot_label = None

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/pause", self.pause)
        app.router.add_post("/resume", self.resume)
        app.router.add_get("/is_paused", self.is_paused)
        app.router.add_post("/collective_rpc", self.collective_rpc)
        app.router.add_post("/update_weight_version", self.update_weight_version)
        app.router.add_get("/weight_info", self.weight_info)
        app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        app.router.add_post("/v1/load_lora_adapter", self.load_lora_adapter)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.completions)

    async def _body(self, request: web.Request) -> dict[str, Any]:
        body = json.loads(await request.text() or "{}")
        self.calls.append((request.path, body or dict(request.query)))
        return body

    @staticmethod
    def _error(message: str, status: int = 400, kind: str = "InvalidUserInput") -> web.Response:
        return web.json_response(
            {"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status
        )

    async def pause(self, request: web.Request) -> web.StreamResponse:
        await self._body(request)
        mode = request.query.get("mode", "abort")
        if mode not in {"abort", "wait", "keep"}:
            return web.json_response({"detail": "mode: Input should be 'abort', 'wait' or 'keep'"}, status=422)
        if await self.fault(request.path) == "refuse":
            return web.json_response({"error": "Failed to pause generation: …"}, status=500)
        if mode == "wait":
            await self.until(lambda: not self.running)
        self.paused = True
        if mode == "abort":
            self.aborted += list(self.running)
        await self.tell()
        return web.json_response({"status": "paused"})

    async def resume(self, request: web.Request) -> web.StreamResponse:
        await self._body(request)
        self.paused = False
        await self.tell()
        return web.json_response({"status": "resumed"})

    async def is_paused(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"is_paused": self.paused})

    async def collective_rpc(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if body.get("method") is None:
            return web.json_response({"detail": "Missing 'method' in request body"}, status=400)
        fault = await self.fault(request.path)
        if fault == "refuse":
            return self._error("EngineCore encountered an issue.", 500, "InternalServerError")
        if fault == "no_workers":
            return web.json_response({"results": []})
        assert body["method"] == "reload_weights"
        assert body["kwargs"]["is_checkpoint_format"] is True
        self.weights = read_weights(body["kwargs"]["weights_path"])
        return web.json_response({"results": [None, None]})

    async def update_weight_version(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if await self.fault(request.path) != "no_label":
            self.label = body["new_version"]
        return web.json_response({"success": True, "new_version": body["new_version"]})

    async def weight_info(self, request: web.Request) -> web.StreamResponse:
        if await self.fault(request.path) == "garbage":
            return self.garbage()
        return web.json_response({"weight_version": self.label})

    async def reset_prefix_cache(self, request: web.Request) -> web.StreamResponse:
        await self._body(request)
        held = self.running and request.query.get("reset_running_requests", "false") != "true"
        return web.json_response({"success": not held})

    async def load_lora_adapter(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        name = body["lora_name"]
        if name in self.adapters and not body.get("load_inplace", False):
            return self._error(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, "
                "set 'load_inplace' to True."
            )
        if await self.fault(request.path) == "refuse":
            return self._error(f"No adapter found for {body['lora_path']}", 404, "NotFoundError")
        read_weights(body["lora_path"])
        self.adapters[name] = body["lora_path"]
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def models(self, _request: web.Request) -> web.StreamResponse:
        cards = [{"id": "model", "object": "model", "root": "/boot", "parent": None}]
        cards += [{"id": k, "object": "model", "root": v, "parent": "model"} for k, v in self.adapters.items()]
        return web.json_response({"object": "list", "data": cards})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.text())
        self.remember(request, body)
        if body.get("cache_salt") == "":
            return self._error("Parameter 'cache_salt' must be a non-empty string if provided.")
        rid = f"cmpl-{len(self.generated)}"
        count = body.get("max_tokens", 16)
        adapter = self.adapters.get(body.get("model", ""))
        head = {"id": rid, "object": "text_completion", "created": 1, "model": body.get("model", "model")}
        if body.get("stream"):
            response = await self.sse(request)
            made = 0
            async for token in self.tokens(rid, count):
                made += 1
                reason = "length" if made == count else None
                choice = {"index": 0, "text": f"{token} ", "logprobs": None, "finish_reason": reason}
                await self.event(response, {**head, "choices": [choice]})
            await self.event(response, "[DONE]")
            await response.write_eof()
            return response
        made_tokens = [token async for token in self.tokens(rid, count)]
        if adapter is not None:
            made_tokens = [read_weights(adapter)] * count
        text = "".join(f"{each} " for each in made_tokens)
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
        usage = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count}
        return web.json_response({**head, "choices": [choice], "usage": usage})
