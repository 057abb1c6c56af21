"""What both contract servers share: real HTTP, a "model" that is a file, tokens that tell which weights made them.

A weights directory holds `weights.txt`. A token's id is the number in it, its text that number and a space; so an
answer shows, token by token, which weights made it, whatever any label says. Nothing here sleeps: tokens flow as fast
as they are read, or one at a time when a test says so.
"""

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web


def write_weights(path: Path, number: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "weights.txt").write_text(str(number))


def read_weights(path: str) -> int:
    return int((Path(path) / "weights.txt").read_text())


class ContractEngine:
    """Starts with the weights 0 and the label that an engine has before anybody gave it one."""

    kind = ""
    boot_label: str | None = "default"
    ends_with_connection = True
    """Whether a request ends when its connection is closed."""

    def __init__(self) -> None:
        self.faults: dict[str, list[str]] = {}
        """What goes wrong next, by route: "refuse", "garbage", "hang", "die", and what the servers add."""
        self.calls: list[tuple[str, Any]] = []
        """Commands that came in, in order: the path, and the body or the query."""
        self.generated: list[dict[str, Any]] = []
        """Bodies of generation requests, as they arrived here."""
        self.headers: list[dict[str, str]] = []
        self.aborted: list[str] = []
        self.broken_off = 0
        """Requests whose connection was closed before they had ended."""
        self.port = 0
        self.changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._boot()

    def _boot(self) -> None:
        self.weights = 0
        self.label = self.boot_label
        self.path = "/boot"
        self.paused = False
        self.running: dict[str, int] = {}
        """Tokens made so far, by request."""
        self.adapters: dict[str, str] = {}
        self.allowed: int | None = None
        """Tokens that may still be made; None for any number."""

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, or start anew on the same port with the weights it boots with."""
        self._boot()
        app = web.Application(client_max_size=2**30)
        self.routes(app)
        self._runner = web.AppRunner(
            app, handler_cancellation=self.ends_with_connection, shutdown_timeout=0.01, access_log=None
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *_):
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def routes(self, app: web.Application) -> None:
        raise NotImplementedError

    async def until(self, condition: Any) -> None:
        async with self.changed, asyncio.timeout(20):
            await self.changed.wait_for(condition)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def allow(self, tokens: int | None) -> None:
        """Let so many tokens more be made, or any number."""
        self.allowed = None if tokens is None else (self.allowed or 0) + tokens
        await self.tell()

    def count(self, path: str) -> int:
        return Counter(name for name, _ in self.calls)[path]

    # -- going wrong --------------------------------------------------------------------------------------------

    async def fault(self, path: str) -> str | None:
        """The next fault of a route; "hang" and "die" are carried out here."""
        planned = self.faults.get(path)
        fault = planned.pop(0) if planned else None
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "die":
            asyncio.get_running_loop().create_task(self.stop())
            await asyncio.Event().wait()
        return fault

    @staticmethod
    def garbage() -> web.Response:
        return web.Response(text="<html>not the engine you were looking for</html>", content_type="text/html")

    # -- generating ---------------------------------------------------------------------------------------------

    async def tokens(self, rid: str, count: int):
        """Gives the weights that made each token, one by one."""
        self.running[rid] = 0
        await self.tell()
        try:
            for _ in range(count):
                async with self.changed:
                    await self.changed.wait_for(lambda: (not self.paused and self.allowed != 0) or rid in self.aborted)
                    if rid in self.aborted:
                        return
                    if self.allowed is not None:
                        self.allowed -= 1
                    self.running[rid] += 1
                    self.changed.notify_all()
                yield self.weights
        except (asyncio.CancelledError, ConnectionError):
            self.broken_off += 1
            raise
        finally:
            self.running.pop(rid, None)
            with contextlib.suppress(asyncio.CancelledError):
                await self.tell()

    async def sse(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        return response

    @staticmethod
    async def event(response: web.StreamResponse, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        await response.write(f"data: {text}\n\n".encode())

    def remember(self, request: web.Request, body: dict[str, Any]) -> None:
        self.generated.append(body)
        self.headers.append(dict(request.headers))
