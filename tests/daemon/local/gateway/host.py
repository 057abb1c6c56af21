"""One host for gateway tests: a daemon's real local API over streams in memory, a gateway, and what talks to it."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from daemon.local.contract_engine import write_weights

from patchswarm.daemon.local.api import LocalConfig, serve_local
from patchswarm.daemon.local.errors import LeaseGoneError, UnknownLeaseError, UnknownStreamError, UnknownVersionError
from patchswarm.daemon.local.gateway.server import GatewayConfig, serve_gateway
from patchswarm.daemon.local.gateway.status import Status
from patchswarm.daemon.local.model import HeadInfo, LeaseInfo, Readiness, StreamState, StreamStatus, VersionInfo
from patchswarm.protocol.ids import digest

STREAM = "qwen"


@dataclass
class Book:
    """One stream: what is held, what is newest here, what is announced."""

    held: dict[tuple[int, int], VersionInfo] = field(default_factory=dict)
    current: tuple[int, int] | None = None
    head: tuple[int, int] | None = None
    lag_s: float = 0.0


class MemoryDaemon:
    """A LocalService of any number of streams. A version's directory holds `weights.txt` with its own number."""

    def __init__(self, slots: Path) -> None:
        self.slots = slots
        self.books: dict[str, Book] = {}
        self.leases: dict[str, LeaseInfo] = {}
        self.ended: set[str] = set()
        self.log: list[str] = []
        self.changed = asyncio.Condition()

    async def commit(
        self,
        version: int,
        *,
        stream: str = STREAM,
        epoch: int = 1,
        weights: int | None = None,
        proven: bool = True,
        keep: bool = True,
    ) -> None:
        """Commit a version; `keep`: older ones can be leased still."""
        path = self.slots / stream / f"v{version}"
        write_weights(path, version if weights is None else weights)
        info = VersionInfo(
            stream=stream,
            epoch=epoch,
            version=version,
            label=f"step {version}",
            manifest=digest(f"{stream} {epoch} {version}".encode()).hex(),
            size_bytes=1,
            proven=proven,
            path=str(path),
        )
        async with self.changed:
            book = self.books.setdefault(stream, Book())
            if not keep:
                book.held.clear()
            book.held[epoch, version] = info
            book.current = (epoch, version)
            book.head = max(book.head or (0, 0), (epoch, version))
            self.changed.notify_all()

    async def announce(self, version: int, *, stream: str = STREAM, epoch: int = 1, lag_s: float = 0.0) -> None:
        async with self.changed:
            book = self.books.setdefault(stream, Book())
            book.head, book.lag_s = (epoch, version), lag_s
            self.changed.notify_all()

    async def withdraw(self, stream: str = STREAM) -> None:
        """Take the current version back: a block of it was wrong."""
        async with self.changed:
            book = self.books[stream]
            assert book.current is not None
            del book.held[book.current]
            book.current = max(book.held, default=None)
            self.changed.notify_all()

    async def until(self, condition: Any) -> None:
        async with self.changed, asyncio.timeout(20):
            await self.changed.wait_for(condition)

    # -- LocalService -------------------------------------------------------------------------------------------

    def _book(self, stream: str) -> Book:
        if stream not in self.books:
            raise UnknownStreamError(f"this node follows no stream {stream!r}")
        return self.books[stream]

    def streams(self) -> list[StreamStatus]:
        return [self.status(stream) for stream in self.books]

    def status(self, stream: str) -> StreamStatus:
        book = self._book(stream)
        current = book.held.get(book.current) if book.current else None
        head = None if book.head is None else HeadInfo(epoch=book.head[0], version=book.head[1], manifest="…")
        behind = (book.head[1] - (book.current[1] if book.current else 0)) if book.head else 0
        return StreamStatus(
            stream=stream,
            state=StreamState.FETCHING if behind else StreamState.CURRENT,
            current=current,
            head=head,
            lag=behind,
            lag_s=book.lag_s,
            proven=bool(current and current.proven),
        )

    async def versions(self, stream: str) -> list[VersionInfo]:
        return sorted(self._book(stream).held.values(), key=lambda each: -each.version)

    async def wait(self, stream: str, at_least: int, timeout_s: float, *, epoch: int | None = None):
        book = self._book(stream)

        def reached() -> bool:
            return book.current is not None and (
                book.current[1] >= at_least if epoch is None else book.current >= (epoch, at_least)
            )

        async with self.changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.changed.wait_for(reached)
        return book.held[book.current] if reached() else None

    async def lease(self, stream: str, version: int | None, ttl_s: float, group: Sequence[str] = ()) -> LeaseInfo:
        assert not group, "the gateways of a group agree among themselves"
        book = self._book(stream)
        order = book.current if version is None else next((o for o in book.held if o[1] == version), None)
        if order not in book.held:
            raise UnknownVersionError(f"version {version} of {stream!r} is not held here")
        info = book.held[order]
        lease = LeaseInfo(
            lease=f"lease-{len(self.leases) + 1}",
            stream=stream,
            epoch=info.epoch,
            version=info.version,
            label=info.label,
            manifest=info.manifest,
            size_bytes=1,
            path=str(info.path),
            proven=info.proven,
            expires_at=2e9 + ttl_s,
        )
        self.leases[lease.lease] = lease
        await self._say(f"leased {stream} {info.version}")
        return lease

    async def renew(self, stream: str, lease: str, ttl_s: float) -> LeaseInfo:
        return self._lease(lease)

    async def release(self, stream: str, lease: str) -> None:
        info = self._lease(lease)
        self.ended.add(lease)
        await self._say(f"released {stream} {info.version}")

    def end_leases(self) -> None:
        """Take every lease away, as a withdrawal or a run-out one does."""
        self.ended |= set(self.leases)

    def _lease(self, lease: str) -> LeaseInfo:
        if lease not in self.leases:
            raise UnknownLeaseError(f"no lease {lease!r}")
        if lease in self.ended:
            raise LeaseGoneError(f"lease {lease!r} is gone")
        return self.leases[lease]

    @property
    def open_leases(self) -> int:
        return len(set(self.leases) - self.ended)

    async def _say(self, what: str) -> None:
        async with self.changed:
            self.log.append(what)
            self.changed.notify_all()

    def peers(self):
        return []

    def ready(self) -> Readiness:
        return Readiness(ready=True)

    async def publish(self, stream, request, progress):
        raise NotImplementedError

    def open_version(self, stream, version):
        raise NotImplementedError

    def open_delta(self, stream, start, end):
        raise NotImplementedError

    def close(self):
        pass


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The data of a stream's events; "[DONE]" stays text."""
        assert self.headers["Content-Type"].startswith("text/event-stream")
        data = [event.removeprefix("data: ") for event in self.body.decode().split("\n\n") if event]
        return [each if each == "[DONE]" else json.loads(each) for each in data]


class Gateway:
    """A running gateway and a client of it."""

    def __init__(self, url: str, session: aiohttp.ClientSession, status: Any) -> None:
        self.url = url
        self.session = session
        self.read_status = status

    @property
    def status(self) -> Status:
        return self.read_status()

    async def ask(
        self, path: str, body: Any = None, *, method: str | None = None, headers: Any = None, data: bytes | None = None
    ) -> Answer:
        method = method or ("GET" if body is None and data is None else "POST")
        if body is not None:
            data, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}
        async with self.session.request(method, self.url + path, data=data, headers=headers) as response:
            return Answer(response.status, response.headers, await response.read())

    async def generate(self, path: str = "/generate", **body: Any) -> Answer:
        if path == "/generate":
            body = {"text": "hi", **body}
        return await self.ask(path, body)

    async def until(self, condition: Any) -> Status:
        """Wait until the status fulfils `condition`. The gateway has no event for it that a client could wait on."""
        async with asyncio.timeout(20):
            while not condition(self.status):  # noqa: ASYNC110 -- as its clients do
                await asyncio.sleep(0.005)
        return self.status

    async def at(self, version: int) -> Status:
        return await self.until(lambda s: s.applied is not None and s.applied.version == version and s.state == "idle")


@contextlib.asynccontextmanager
async def daemon(folder: Path, slots: Path | None = None):
    """A daemon's local API; gives the service and its socket."""
    service = MemoryDaemon(slots or folder / "slots")
    config = LocalConfig(socket=folder / "api.sock")
    async with serve_local(service, config):
        yield service, config.socket


@contextlib.asynccontextmanager
async def gateway(socket: Path, **settings: Any):
    """A gateway on any port, watching its engine more often than it would."""
    defaults = {"engine": "sglang", "listen": ("127.0.0.1", 0), "socket": socket, "stream": STREAM, "watch_s": 0.05}
    async with serve_gateway(GatewayConfig(**{**defaults, **settings})) as running, aiohttp.ClientSession() as session:
        yield Gateway(f"http://127.0.0.1:{running.address[1]}", session, running.status)
