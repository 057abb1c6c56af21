"""An engine that is one: a causal language model on the CPU behind SGLang's routes.

Generation, log-probabilities, loads from disk and in-place updates through a custom loader are real; what it has no use
for (batching, prefix caches, adapters) it does not have. All work on the model goes through one thread, so weights
change between two tokens and never within one.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import importlib
import io
import json
import pickle
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from aiohttp import web
from openai_forms import Chat, Text
from safetensors.torch import load_file
from tiny_model import Sequence, Token, new_model, parameters_of, tokens_of, tokens_of_chat

T = TypeVar("T")


class RequestError(Exception):
    """The request cannot be met: 400."""


class _Unpickler(pickle.Unpickler):
    """As SGLang's: tensors come in, and nothing that could run."""

    def find_class(self, module: str, name: str) -> Any:
        """A class or function of torch's."""
        if module.split(".", maxsplit=1)[0] not in {"torch", "collections"}:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module, name)


class Engine:
    """The model, what is running on it, and what it is called."""

    def __init__(self, path: Path, loaders: list[str]) -> None:
        self.model = new_model(0).to(torch.bfloat16)
        self.path = str(path)
        self.label = "default"
        self._loaders = loaders
        self._worker = ThreadPoolExecutor(1)
        self._going = asyncio.Event()
        self._going.set()
        self._running: set[str] = set()
        self._aborted: set[str] = set()
        self._load_from(path)

    def routes(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=1 << 30)
        posts: dict[str, Callable[..., Any]] = {
            "/generate": self.generate,
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
            "/abort_request": self.abort_request,
            "/pause_generation": self.pause_generation,
            "/continue_generation": self.continue_generation,
            "/update_weights_from_disk": self.update_weights_from_disk,
            "/update_weights_from_tensor": self.update_weights_from_tensor,
            "/update_weight_version": self.update_weight_version,
        }
        for path, handler in posts.items():
            app.router.add_post(path, _answering(handler))
        app.router.add_route("*", "/flush_cache", self.flush_cache)
        app.router.add_get("/model_info", self.model_info)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        return app

    async def _in_worker(self, work: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *given)

    # -- weights --------------------------------------------------------------------------------------------

    def _load_from(self, path: Path) -> None:
        """Copy a checkpoint's tensors over the model's. Raises RequestError before any is, when they do not fit."""
        try:
            files = sorted(path.glob("*.safetensors"))
            given = {name: tensor for file in files for name, tensor in load_file(file).items()}
        except OSError as error:
            raise RequestError(f"Failed to update weights: {error}. Rolling back to original weights.") from None
        held = dict(parameters_of(self.model))
        if {name: tensor.shape for name, tensor in given.items()} != {
            name: value.shape for name, value in held.items()
        }:
            raise RequestError(f"Failed to update weights: tensors of {path} are not the model's. Rolling back.")
        with torch.no_grad():
            for name, tensor in given.items():
                held[name].copy_(tensor)

    async def update_weights_from_disk(self, body: dict[str, Any]) -> web.Response:
        """POST /update_weights_from_disk."""
        if body.get("abort_all_requests", False):
            self._aborted |= self._running
        if body.get("flush_cache", True) and self._running:
            raise RequestError("Cache flush failed after updating weights: requests are running.")
        await self._in_worker(self._load_from, Path(body["model_path"]))
        self.path = body["model_path"]
        self.label = body.get("weight_version") or self.label
        if not body.get("keep_pause", False):
            self._going.set()
        return web.json_response(
            {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        )

    async def update_weights_from_tensor(self, body: dict[str, Any]) -> web.Response:
        """POST /update_weights_from_tensor, with a custom loader only."""
        name = body.get("load_format")
        if name not in self._loaders:
            raise RequestError(f"Unknown load_format={name}")
        module, _, function = name.rpartition(".")
        loader = getattr(importlib.import_module(module), function)
        raw = base64.b64decode(body["serialized_named_tensors"][0], validate=True)
        named = _Unpickler(io.BytesIO(raw)).load()
        try:
            await self._in_worker(loader, self.model, named)
        except Exception as error:
            raise RequestError(f"Failed to update parameters: {error}") from error
        self.label = body.get("weight_version") or self.label
        return web.json_response({"success": True, "message": "Success"})

    async def update_weight_version(self, body: dict[str, Any]) -> web.Response:
        """POST /update_weight_version."""
        if body.get("abort_all_requests", True):
            self._aborted |= self._running
        self.label = body["new_version"]
        return web.json_response({"success": True, "message": "", "new_version": self.label})

    async def pause_generation(self, body: dict[str, Any]) -> web.Response:
        """POST /pause_generation: whatever the mode, nothing is generated afterwards."""
        self._going.clear()
        if body.get("mode", "abort") == "abort":
            self._aborted |= self._running
        await self._in_worker(lambda: None)  # the token that was being made is made
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, _body: dict[str, Any]) -> web.Response:
        """POST /continue_generation."""
        self._going.set()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, _request: web.Request) -> web.Response:
        """There is none."""
        if self._running:
            return web.Response(status=400, text="Flush cache failed.\n")
        return web.Response(text="Cache flushed.\n")

    async def model_info(self, _request: web.Request) -> web.Response:
        """GET /model_info."""
        info = {"model_path": self.path, "is_generation": True, "weight_version": self.label, "model_type": "qwen2"}
        return web.json_response(info)

    async def models(self, _request: web.Request) -> web.Response:
        """GET /v1/models."""
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model", "root": self.path}]})

    async def health(self, _request: web.Request) -> web.Response:
        """GET /health."""
        return web.Response()

    # -- generation -----------------------------------------------------------------------------------------

    async def _tokens(
        self, rid: str, prompt: list[int], count: int, temperature: float, seed: int
    ) -> AsyncIterator[Token]:
        sequence = Sequence(self.model, prompt, temperature, seed)
        self._running.add(rid)
        try:
            for _ in range(count):
                await self._going.wait()
                if rid in self._aborted:
                    return
                yield await self._in_worker(sequence.next)
        finally:
            self._running.discard(rid)
            self._aborted.discard(rid)

    async def abort_request(self, body: dict[str, Any]) -> web.Response:
        """POST /abort_request."""
        rid = body.get("rid")
        self._aborted |= {each for each in self._running if body.get("abort_all") or (rid and each.startswith(rid))}
        return web.Response()

    async def generate(self, body: dict[str, Any]) -> web.Response:
        """POST /generate, one prompt, whole."""
        rid, sampling = body.get("rid") or uuid.uuid4().hex, body.get("sampling_params", {})
        prompt = body["input_ids"] if "input_ids" in body else tokens_of(body["text"])
        count = sampling.get("max_new_tokens", 16)
        temperature, seed = sampling.get("temperature", 1.0), sampling.get("sampling_seed", 0)
        made = [token async for token in self._tokens(rid, prompt, count, temperature, seed)]
        reason = {"type": "length", "length": len(made)} if len(made) == count else {"type": "abort"}
        meta = {
            "id": rid,
            "finish_reason": reason,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(made),
            "weight_version": self.label,
        }
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[token.logprob, token.id, None] for token in made]
        text = "".join(token.text for token in made)
        return web.json_response({"text": text, "output_ids": [token.id for token in made], "meta_info": meta})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        body = await request.json()
        return await self._openai(request, body, tokens_of(body["prompt"]), "text_completion", Text)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body = await request.json()
        return await self._openai(request, body, tokens_of_chat(body["messages"]), "chat.completion", Chat)

    async def _openai(
        self, request: web.Request, body: dict[str, Any], prompt: list[int], kind: str, form: type[Text | Chat]
    ) -> web.StreamResponse:
        rid = body.get("rid") or uuid.uuid4().hex
        count = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        tokens = self._tokens(rid, prompt, count, body.get("temperature", 1.0), body.get("seed") or 0)
        head = {"id": rid, "created": 0, "model": body.get("model", "tiny")}
        said = bool(body.get("logprobs"))
        if not body.get("stream"):
            made = [token async for token in tokens]
            reason = "length" if len(made) == count else "abort"
            usage = {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(made),
                "total_tokens": len(prompt) + len(made),
            }
            choice = {"index": 0, **form.whole(made, said=said), "finish_reason": reason}
            return web.json_response(
                {
                    **head,
                    "object": kind,
                    "choices": [choice],
                    "usage": usage,
                    "metadata": {"weight_version": self.label},
                }
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        left = count
        async for token in tokens:
            left -= 1
            choice = {"index": 0, **form.part([token], said=said), "finish_reason": None if left else "length"}
            event = {**head, "object": form.chunk, "choices": [choice]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _answering(handler: Callable[..., Any]) -> Callable[[web.Request], Any]:
    """Handlers take the request where they stream, and its body where they do not; what cannot be met is a 400."""
    streams = handler.__name__ in {"completions", "chat"}

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(
                request if streams else json.loads(await request.text() or "{}")
            )
        except (RequestError, KeyError, TypeError, pickle.UnpicklingError) as error:
            return web.json_response({"success": False, "message": str(error)}, status=400)
        return response

    return answer


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/reference_engine", description=__doc__)
    parser.add_argument("--model-path", type=Path, required=True, help="checkpoint directory to begin with")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument(
        "--custom-weight-loader", nargs="*", default=[], help="import paths of loaders that are allowed"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)  # the same sums in the same order, whatever else runs

    async def app() -> web.Application:
        return Engine(options.model_path, options.custom_weight_loader).routes()

    web.run_app(
        app(),
        host=options.host,
        port=options.port,
        print=lambda _: print("ready", flush=True),
        handler_cancellation=True,
    )


if __name__ == "__main__":
    main()
