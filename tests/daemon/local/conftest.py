"""A daemon's local API on real sockets in a thread of its own, under each event loop, over an in-memory service."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
import uvloop
from support.local_service import MemoryService

from patchswarm.daemon.local.api import LocalApi, LocalConfig, serve_local

TOKEN = "a-token-for-tests-only"
T = TypeVar("T")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The slug of a problem document, which this answer must be."""
        assert self.headers["content-type"].startswith("application/problem+json"), self
        document = self.json()
        assert document["status"] == self.status
        assert document["title"]
        assert document["detail"]
        return document["type"].removeprefix("urn:patchswarm:problem:")


@dataclass
class RunningApi:
    """What tests hold: the service (touch it with `run` only), and ways to talk to its API."""

    service: MemoryService
    api: LocalApi
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]
    """Stop the API and wait until it has; the fixture does it too."""
    logged: list[Any]
    """What the API logged. An error that a test does not take out of it by its end fails the test."""
    connections: list[http.client.HTTPConnection] = field(default_factory=list)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run on the API's event loop and wait for it."""
        return self.submit(coroutine).result(30)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def commit(self, version: int, **options: Any) -> None:
        self.run(self.service.commit(version, **options))

    def wait_for(self, condition: Any) -> None:
        """Wait until `condition` of the service holds: it is told of every change."""
        self.run(self.service.changed_once(lambda: condition(self.service)))

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(str(self.api.socket))
        return connection

    def connection(self) -> http.client.HTTPConnection:
        """A connection that stays open between requests."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = self.connect()
        self.connections.append(connection)
        return connection

    def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Answer:
        connection = connection or self.connection()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, target, data, headers or {})
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())


@pytest.fixture(params=["uvloop", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> Any:
    return uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop


@pytest.fixture
def local_config(tmp_path: Path) -> LocalConfig:
    """Tests that need another configuration override this."""
    tcp, token = ("127.0.0.1", 0), "reading-and-leasing-only"
    return LocalConfig(socket=tmp_path / "api.sock", tcp=tcp, token=token, admin_token=TOKEN)


@pytest.fixture
def api(tmp_path: Path, local_config: LocalConfig, loop_factory: Any) -> Iterator[RunningApi]:
    """The API of an empty service, up and answering."""
    ready: Future[RunningApi] = Future()
    ended = threading.Event()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def stop() -> None:
            with contextlib.suppress(RuntimeError):  # stopped before: the loop is closed
                loop.call_soon_threadsafe(told.set)
            thread.join(30)
            assert ended.is_set(), "the API did not stop cleanly"

        service = MemoryService(tmp_path / "slots")
        async with serve_local(service, local_config) as running:
            ready.set_result(RunningApi(service, running, loop, stop, logged))
            await told.wait()

    def main() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(serve())
            ended.set()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=main, name="local-api")
    with structlog.testing.capture_logs() as logged:
        thread.start()
        running = ready.result(30)
        try:
            yield running
        finally:
            for connection in running.connections:
                connection.close()
            running.stop()
    assert [entry for entry in logged if entry["log_level"] == "error"] == []
