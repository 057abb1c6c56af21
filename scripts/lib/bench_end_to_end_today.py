"""Today's ways of bringing a step to hosts: the whole checkpoint over HTTP, or XOR deltas that each host applies.

    copy TARGET URL FILE…               one host: fetch these files
    apply TARGET FOLDER                 one host: apply the deltas in a folder
    give OLD NEW FOLDER ADDRESS PORT    the trainer's host in the WAN lab: make the deltas and serve them
    take TARGET URL                     another host there: fetch and apply them

A delta is what slime and Stitch put in their stores: new XOR old through zstd-1, file by file. A host decompresses
what it reads and writes over the checkpoint that it holds, in place. Nothing is checked and nothing is synced.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.request import urlopen

import numpy as np
import zstandard
from aiohttp import web
from wanlab import worker

WAIT_S = 600.0
BLOCK = 8 << 20


def full_copy(directory: Path, hosts: Iterable[Path]) -> float:
    """Every host copies the whole checkpoint over HTTP on this machine; seconds."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        names = [path.name for path in sorted(directory.iterdir())]
        return _on_hosts("copy", hosts, f"http://127.0.0.1:{server.server_port}", *names)
    finally:
        server.shutdown()


def delta_folder(old: Path, new: Path, folder: Path, hosts: Iterable[Path]) -> float:
    """Deltas into a shared folder, which every host reads and applies to its checkpoint; seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    began = time.perf_counter()
    encode(old, new, folder)
    return time.perf_counter() - began + _on_hosts("apply", hosts, str(folder))


def encode(old: Path, new: Path, folder: Path) -> None:
    """Write the delta of each file of `new` into `folder`, a thread for each core."""
    _each(lambda path: _encode(old / path.name, path, folder / path.name), sorted(new.iterdir()))


def _encode(old: Path, new: Path, out: Path) -> None:
    compressor = zstandard.ZstdCompressor(level=1)
    with out.open("wb") as file, compressor.stream_writer(file) as writer:
        before, after = np.memmap(old, np.uint8, "r"), np.memmap(new, np.uint8, "r")
        for at in range(0, len(after), BLOCK):
            writer.write(np.bitwise_xor(before[at : at + BLOCK], after[at : at + BLOCK]).data)


def _apply(delta: BinaryIO, checkpoint: Path) -> None:
    held = np.memmap(checkpoint, np.uint8, "r+")
    with delta, zstandard.ZstdDecompressor().stream_reader(delta) as reader:
        for at in range(0, len(held), BLOCK):
            part = held[at : at + BLOCK]
            np.bitwise_xor(part, np.frombuffer(reader.read(len(part)), np.uint8), out=part)


def _each(work: Callable[[Path], None], paths: Iterable[Path]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(work, paths):
            pass


def same(one: Path, other: Path) -> bool:
    """Whether two directories' files hold the same bytes."""
    return all(
        np.array_equal(np.memmap(path, np.uint8, "r"), np.memmap(other / path.name, np.uint8, "r"))
        for path in one.iterdir()
    )


def _on_hosts(what: str, hosts: Iterable[Path], *arguments: str) -> float:
    began = time.perf_counter()
    running = [subprocess.Popen([sys.executable, __file__, what, str(target), *arguments]) for target in hosts]
    for process in running:
        if process.wait(WAIT_S):
            raise SystemExit(f"bench_end_to_end: a host's {what} failed")
    return time.perf_counter() - began


# -- the programs of single hosts --------------------------------------------------------------------------------


def copy(target: Path, url: str, names: Iterable[str]) -> None:
    """Fetch files, one after another."""
    target.mkdir(exist_ok=True)
    for name in names:
        with urlopen(f"{url}/{name}") as source, (target / name).open("wb") as file:  # noqa: S310 - our own server
            shutil.copyfileobj(source, file, BLOCK)


async def give(old: Path, new: Path, folder: Path, address: str, port: int) -> None:
    """Serve the deltas as soon as all are made: the index is answered then, so that no host has to look again."""
    made, names = asyncio.Event(), [path.name for path in new.iterdir()]  # noqa: ASYNC240 - nobody waits yet

    async def index(_: web.Request) -> web.Response:
        await made.wait()
        return web.json_response(names)

    async def delta(request: web.Request) -> web.FileResponse:
        return web.FileResponse(folder / Path(request.match_info["name"]).name)

    app = web.Application()
    app.router.add_get("/index", index)
    app.router.add_get("/files/{name}", delta)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    await asyncio.to_thread(worker.ready)
    await asyncio.to_thread(encode, old, new, folder)
    made.set()
    worker.done()
    await asyncio.to_thread(worker.linger)
    await runner.cleanup()


def take(target: Path, url: str) -> None:
    """Fetch every delta and apply it while it comes, as many at once as there are files."""
    worker.ready()
    with urlopen(f"{url}/index") as answer:  # noqa: S310 - our own server
        names = json.load(answer)
    with ThreadPoolExecutor(len(names)) as pool:
        for _ in pool.map(lambda name: _apply(urlopen(f"{url}/files/{name}"), target / name), names):  # noqa: S310
            pass
    worker.done()
    worker.linger()


def main() -> None:
    match sys.argv[1:]:
        case ["copy", target, url, *names]:
            copy(Path(target), url, names)
        case ["apply", target, folder]:
            _each(lambda path: _apply(path.open("rb"), Path(target) / path.name), sorted(Path(folder).iterdir()))
        case ["give", old, new, folder, address, port]:
            asyncio.run(give(Path(old), Path(new), Path(folder), address, int(port)))
        case ["take", target, url]:
            take(Path(target), url)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
