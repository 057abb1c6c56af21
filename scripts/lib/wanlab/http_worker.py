"""Baseline: plain HTTP from the head. `serve HOST PORT FILE`, or `get URL FILE SHA256`."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout, web

from . import worker

_READ_BYTES = 1024 * 1024


async def serve(host: str, port: int, path: Path) -> None:
    """Serve one file."""

    async def answer(_: web.Request) -> web.FileResponse:
        return web.FileResponse(path)

    app = web.Application()
    app.router.add_get("/file", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    await asyncio.to_thread(worker.ready)
    worker.done()
    await asyncio.to_thread(worker.linger)
    await runner.cleanup()


async def get(url: str, path: Path, sha256: str) -> None:
    """Fetch it into `path`, and hash what came."""
    async with ClientSession(timeout=ClientTimeout(total=None)) as session:
        await asyncio.to_thread(worker.ready)
        digest = hashlib.sha256()
        with path.open("wb") as file:
            async with session.get(url) as response:
                response.raise_for_status()
                async for data in response.content.iter_chunked(_READ_BYTES):
                    digest.update(data)
                    file.write(data)
        if digest.hexdigest() != sha256:
            raise SystemExit(f"{url} gave other bytes than the head's")
        worker.done()
    await asyncio.to_thread(worker.linger)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", host, port, path]:
            asyncio.run(serve(host, int(port), Path(path)))
        case ["get", url, path, sha256]:
            asyncio.run(get(url, Path(path), sha256))
        case _:
            raise SystemExit(__doc__)
