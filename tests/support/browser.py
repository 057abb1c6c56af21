"""A real Chromium without a window, driven over its own protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """One page. `complaints` are what it wrote to the console, and what it threw."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session = ""
        self.complaints: list[str] = []

    async def open(self, url: str) -> None:
        """Show a page."""
        target = await self._send("Target.createTarget", url="about:blank")
        attached = await self._send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        await self._send("Runtime.enable")
        await self._send("Log.enable")
        await self._send("Page.enable")
        await self._send("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await self._send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str, within_s: float = 20) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(within_s):
            while not await self.run(script):  # noqa: ASYNC110 - the page is another process
                await asyncio.sleep(0.05)

    async def be(self, width: int, height: int, *, dark: bool = False) -> None:
        """Have a window of this size, and a colour scheme."""
        await self._send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path) -> None:
        """Write what is seen as PNG."""
        shot = await self._send("Page.captureScreenshot", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    async def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": self._session} if self._session else {}))
        async for heard in self._socket:
            found: dict[str, Any] = heard.json()
            match found.get("method"):
                case "Runtime.exceptionThrown":
                    self.complaints.append(str(found["params"]["exceptionDetails"]))
                case "Log.entryAdded":
                    self.complaints.append(str(found["params"]["entry"]["text"]))
            if found.get("id") == number:
                assert "error" not in found, found["error"]
                result: dict[str, Any] = found["result"]
                return result
        raise AssertionError(f"the browser ended during {method}")


@contextlib.asynccontextmanager
async def tab_of_chromium() -> AsyncIterator[Tab]:
    """A tab of a browser of its own."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
            f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            async with asyncio.timeout(60):
                while not (line := (await process.stderr.readline()).decode()).startswith("DevTools listening on "):
                    assert line, "the browser ended"
            address = line.removeprefix("DevTools listening on ").strip()
            async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
                yield Tab(socket)
        finally:
            process.kill()
            await process.wait()
