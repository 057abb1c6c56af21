"""A contract server for SGLang: behaves as `http_server.py` and `io_struct.py` document it, field by field, errors too.

It is not SGLang. What it keeps to: routes, methods, names and types of fields, defaults, status codes, what is
answered to what, the label and the path that /model_info gives after a load, that a duplicate adapter is rejected, that
`flush_cache` with something running takes the server down, and that requests stay in the scheduler while it is paused.
"""

import asyncio
import json
from typing import Any

from aiohttp import web
from daemon.local.contract_engine import ContractEngine, read_weights

LOGPROB = "-0.12345678901234567"
"""More digits than a double has: whoever reads it as a number and writes it again changes it."""


class ContractSglang(ContractEngine):
    kind = "sglang"
    adapters_listed = True
    ends_with_connection = False  # it looks for that now and then; /abort_request is what is sure

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/abort_request", self.abort_request)
        app.router.add_post("/pause_generation", self.pause_generation)
        app.router.add_post("/continue_generation", self.continue_generation)
        app.router.add_post("/update_weights_from_disk", self.update_weights_from_disk)
        app.router.add_post("/update_weight_version", self.update_weight_version)
        app.router.add_route("*", "/flush_cache", self.flush_cache)
        app.router.add_get("/model_info", self.model_info)
        app.router.add_post("/load_lora_adapter", self.load_lora_adapter)
        app.router.add_post("/unload_lora_adapter", self.unload_lora_adapter)
        app.router.add_get("/v1/models", self.models)
        app.router.add_route("*", "/echo/{rest:.*}", self.echo)

    # -- control ------------------------------------------------------------------------------------------------

    async def _body(self, request: web.Request) -> dict[str, Any]:
        body = json.loads(await request.text() or "{}")
        self.calls.append((request.path, body))
        return body

    async def update_weights_from_disk(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if not isinstance(body.get("model_path"), str):
            return self._invalid("model_path: Field required")
        fault = await self.fault(request.path)
        if fault == "garbage":
            return self.garbage()
        if body.get("abort_all_requests", False):
            self.aborted += list(self.running)
            await self.tell()
            await self.until(lambda: not self.running)
        if body.get("flush_cache", True) and self.running:
            asyncio.get_running_loop().create_task(self.stop())  # AssertionError in the scheduler
            await asyncio.Event().wait()
        if fault == "refuse":
            message = "Failed to update weights: shapes differ. Rolling back to original weights."
            return self._outcome(False, message, status=400)
        if fault != "label_only":
            self.weights = read_weights(body["model_path"])
            self.path = body["model_path"]
        if body.get("weight_version") is not None and fault != "no_label":
            self.label = "someone else's" if fault == "other_version" else body["weight_version"]
        if not body.get("keep_pause", False):
            self.paused = False
        await self.tell()
        return self._outcome(True, "Succeeded to update model weights.")

    @staticmethod
    def _outcome(success: bool, message: str, status: int = 200) -> web.Response:
        return web.json_response({"success": success, "message": message, "num_paused_requests": 0}, status=status)

    @staticmethod
    def _invalid(message: str) -> web.Response:
        return web.json_response(
            {"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400}, status=400
        )

    async def update_weight_version(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if body.get("abort_all_requests", True):
            self.aborted += list(self.running)
        self.label = body["new_version"]
        await self.tell()
        return web.json_response({"success": True, "message": "…", "new_version": body["new_version"]})

    async def pause_generation(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if body.get("mode", "abort") not in {"abort", "retract", "in_place"}:
            return self._invalid("mode: Input should be 'abort', 'retract' or 'in_place'")
        fault = await self.fault(request.path)
        if fault == "refuse":
            return web.json_response({"error": {"message": "Internal server error"}}, status=500)
        self.paused = True
        if body.get("mode", "abort") == "abort":
            self.aborted += list(self.running)
        await self.tell()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.StreamResponse:
        await self._body(request)
        if await self.fault(request.path) == "refuse":
            return web.json_response({"error": {"message": "Internal server error"}}, status=500)
        self.paused = False
        await self.tell()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def abort_request(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        rid = body.get("rid")
        self.aborted += [each for each in self.running if body.get("abort_all") or (rid and each.startswith(rid))]
        await self.tell()
        return web.Response(status=200)

    async def flush_cache(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.path, dict(request.query)))
        if self.running:
            return web.Response(status=400, text="Flush cache failed.\n")
        return web.Response(text="Cache flushed.\n")

    async def model_info(self, request: web.Request) -> web.StreamResponse:
        fault = await self.fault(request.path)
        if fault == "garbage":
            return self.garbage()
        return web.json_response(
            {
                "model_path": self.path,
                "tokenizer_path": "/boot",
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self.label,
                "model_type": "qwen2",
            }
        )

    # -- adapters -----------------------------------------------------------------------------------------------

    async def load_lora_adapter(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        fault = await self.fault(request.path)
        name, path = body["lora_name"], body["lora_path"]
        if fault == "refuse" or name in self.adapters:
            why = f"Failed to load LoRA adapter {name}: LoRA with name {name} already loaded"
            return web.json_response({"success": False, "error_message": why, "loaded_adapters": None}, status=400)
        read_weights(path)
        self.adapters[name] = path
        return web.json_response({"success": True, "error_message": None, "loaded_adapters": dict(self.adapters)})

    async def unload_lora_adapter(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if self.adapters.pop(body["lora_name"], None) is None:
            why = f"LoRA with name {body['lora_name']} not loaded"
            return web.json_response({"success": False, "error_message": why, "loaded_adapters": None}, status=400)
        return web.json_response({"success": True, "error_message": None, "loaded_adapters": dict(self.adapters)})

    async def models(self, _request: web.Request) -> web.StreamResponse:
        cards = [{"id": "model", "object": "model", "root": "model", "parent": None}]
        if self.adapters_listed:
            cards += [{"id": k, "object": "model", "root": v, "parent": "model"} for k, v in self.adapters.items()]
        return web.json_response({"object": "list", "data": cards})

    async def echo(self, request: web.Request) -> web.StreamResponse:
        """No route of SGLang's: answers with what came in, for tests of what passes through untouched."""
        body = await request.read()
        return web.Response(
            status=207,
            body=body,
            headers={
                "X-Path": request.raw_path,
                "X-Method": request.method,
                "X-Seen": json.dumps(sorted(name.lower() for name in request.headers)),
                "Content-Type": request.headers.get("Content-Type", "application/octet-stream"),
            },
        )

    # -- generation ---------------------------------------------------------------------------------------------

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.text())
        self.remember(request, body)
        fault = await self.fault(request.path)
        if fault == "garbage":
            return web.Response(text='{"text": "ab', content_type="application/json")
        if "text" not in body and "input_ids" not in body:
            message = "Either text, input_ids or input_embeds should be provided."
            return web.json_response({"error": {"message": message}}, status=400)
        batch = isinstance(body.get("text"), list)
        rid = body.get("rid") or "made-here"
        rids = rid if isinstance(rid, list) else [f"{rid}_{i}" for i in range(len(body["text"]))] if batch else [rid]
        count = body.get("sampling_params", {}).get("max_new_tokens", 4)
        if body.get("stream"):
            response = await self.sse(request)
            made: list[int] = []
            async for token in self.tokens(rids[0], count):
                made.append(token)
                await response.write(b"data: " + self._output(rids[0], made, len(made) == count, fault, body) + b"\n\n")
            await self.event(response, "[DONE]")
            await response.write_eof()
            return response
        outputs = [
            self._output(each, [token async for token in self.tokens(each, count)], True, fault, body) for each in rids
        ]
        text = b"[" + b",".join(outputs) + b"]" if batch else outputs[0]
        return web.Response(body=text, content_type="application/json")

    def _output(self, rid: str, made: list[int], ended: bool, fault: str | None, body: dict[str, Any]) -> bytes:
        """One output as the server writes it: text, so that numbers are what a test put there."""
        label = json.dumps("5000" if fault == "other_version" else self.label)
        reason = f'{{"type":"length","length":{len(made)}}}' if ended else "null"
        where = body.get("lora_path")
        weights = read_weights(self.adapters[where]) if where in self.adapters else None
        made = [weights if weights is not None else token for token in made]
        text = json.dumps("".join(f"{token} " for token in made) + '"finish_reason":"x"')
        logprobs = ",".join(f"[{LOGPROB},{token},null]" for token in made)
        return (
            f'{{"text":{text},"output_ids":{json.dumps(made)},"meta_info":{{"id":"{rid}","finish_reason":{reason},'
            f'"prompt_tokens":3,"weight_version":{label},"total_retractions":0,'
            f'"output_token_logprobs":[{logprobs}],"routed_experts":"AAEC/+==","completion_tokens":{len(made)},'
            f'"cached_tokens":0,"e2e_latency":1.50e-3}}}}'
        ).encode()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._openai(request, "text_completion", lambda text: {"text": text}, lambda text: {"text": text})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._openai(
            request,
            "chat.completion",
            lambda text: {"message": {"role": "assistant", "content": text}},
            lambda text: {"delta": {"content": text}},
        )

    async def _openai(self, request: web.Request, kind: str, whole: Any, part: Any) -> web.StreamResponse:
        body = json.loads(await request.text())
        self.remember(request, body)
        fault = await self.fault(request.path)
        rid = body.get("rid") or "made-here"
        count = body.get("max_tokens", 4)
        head = {"id": rid, "created": 1, "model": body.get("model", "model")}
        if body.get("stream"):
            response = await self.sse(request)
            chunk_kind = kind if kind == "text_completion" else "chat.completion.chunk"
            made = 0
            async for token in self.tokens(rid, count):
                made += 1
                if fault == "die_in_answer":
                    request.transport.abort()
                    return response
                choice = {
                    "index": 0,
                    **part(f"{token} "),
                    "logprobs": None,
                    "finish_reason": None,
                    "matched_stop": None,
                }
                await self.event(response, {**head, "object": chunk_kind, "choices": [choice], "usage": None})
            choice = {"index": 0, **part(""), "logprobs": None, "finish_reason": "length", "matched_stop": None}
            await self.event(response, {**head, "object": chunk_kind, "choices": [choice], "usage": None})
            if body.get("stream_options", {}).get("include_usage"):
                usage = {"prompt_tokens": 3, "completion_tokens": made, "total_tokens": 3 + made}
                await self.event(response, {**head, "object": chunk_kind, "choices": [], "usage": usage})
            await self.event(response, "[DONE]")
            await response.write_eof()
            return response
        made_tokens = [token async for token in self.tokens(rid, count)]
        choice = {"index": 0, **whole("".join(f"{each} " for each in made_tokens)), "finish_reason": "length"}
        label = "5000" if fault == "other_version" else self.label
        usage = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count}
        answer = {**head, "object": kind, "choices": [choice], "usage": usage, "metadata": {"weight_version": label}}
        return web.json_response(answer)
