"""What a driver is, and the HTTP exchanges that all of them are made of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

import aiohttp
import msgspec

from ...errors import DaemonError, UnreachableError
from ...exits import Exit
from ..gateway.choice import Applied
from ..gateway.stamp import Members

CONTROL_S: Final = 30.0
"""Longest wait for an answer to a command that moves no weights."""
PROBE_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
MAX_SAID: Final = 300


class EngineError(DaemonError):
    """The engine did not do as it was told."""

    remedy = "see the engine's log"
    exit = Exit.REFUSED


class EngineGoneError(EngineError, UnreachableError):
    """Nobody answers at the engine's address, or the connection broke."""

    remedy = "see whether the engine runs, and at this address"
    exit = Exit.NOT_RUNNING


class EngineHungError(EngineError):
    """The engine did not answer in time."""

    exit = Exit.TIMEOUT


class EngineRefusedError(EngineError):
    """The engine answered with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class EngineAnswerError(EngineError):
    """The engine answered something that it should not, or holds other weights than it was given."""


@dataclass(frozen=True, slots=True)
class Load:
    """Weights to load: the directory of one version, leased for as long as the load takes."""

    stream: str
    path: str
    applied: Applied
    """What the engine holds afterwards."""
    before: Applied | None
    """What it holds now, when that is known."""
    adapter: str = ""
    """Name of the LoRA adapter that the version is; "" for the model's own weights."""
    idle: bool = False
    """Whether every request that went through the gateway has ended."""


@dataclass(frozen=True, slots=True)
class Running:
    """What an engine says that it runs. None where it does not say."""

    label: str | None
    path: str | None


class Engine(Protocol):
    """One running engine. Every method raises EngineError."""

    name: str
    blocked_routes: frozenset[str]
    """Paths that change weights or stop generation: only the gateway may use them."""
    loads: bool
    """Whether it can be told to load weights at all."""
    pauses: bool
    """Whether requests can stay in it while weights change."""

    async def pause(self, *, idle: bool) -> None:
        """Generate no more until `resume`; requests in it stay. `idle`: there should be none, wait for the last."""

    async def load(self, load: Load, *, full: bool) -> None:
        """Load weights. `full`: with nothing kept of what was before, as after a failed load."""

    async def confirm(self, load: Load) -> None:
        """Raise EngineAnswerError unless the engine says that it has these weights."""

    async def resume(self) -> None:
        """Generate again."""

    async def running(self) -> Running:
        """What it runs now."""

    async def abort(self, request: Members) -> None:
        """End the request with this body, whose connection is closed already."""

    def prepare(self, request: Members, weights: list[Applied]) -> Members:
        """The request as the engine gets it: with an id to abort it by, and with prefixes kept apart by weights."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def cache_key(weights: list[Applied], own: str | None) -> str:
    """Whatever was cached under other weights, or by another tenant, has another key."""
    versions = ".".join(f"{each.epoch}.{each.version}.{each.manifest[:8]}" for each in weights)
    return f"wv{versions};{own or ''}"


class HttpEngine:
    """An engine at an address: one session, timeouts on everything, every failure an EngineError."""

    name = "engine"

    def __init__(self, url: str, *, load_timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._load_timeout_s = load_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Each command has its own connection: one that the engine closed meanwhile is no failed load.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def call(self, method: str, path: str, body: object = None, *, timeout_s: float = CONTROL_S) -> Any:
        """One exchange: the answer's JSON, or its text when it is none. Raises EngineError for anything but 2xx."""
        assert self._session is not None, "enter the engine's context first"
        what = f"{self.name} at {self._url}: {method} {path.partition('?')[0]}"
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(
                    method, self._url + path, data=data, headers=headers, timeout=aiohttp.ClientTimeout()
                ) as response,
            ):
                answer = await response.content.read(MAX_ANSWER_BYTES)
                while chunk := await response.content.read(MAX_ANSWER_BYTES):
                    answer += chunk
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise EngineAnswerError(f"{what} answered more than {MAX_ANSWER_BYTES} bytes")
        except TimeoutError:
            raise EngineHungError(f"{what} did not answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineGoneError(f"{what}: no answer ({error})") from None
        if not 200 <= response.status < 300:
            said = " ".join(answer.decode(errors="replace").split())[:MAX_SAID]
            raise EngineRefusedError(f"{what} answered {response.status}: {said or 'no reason'}", response.status)
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError:
            return answer.decode(errors="replace")

    async def table(
        self, method: str, path: str, body: object = None, *, timeout_s: float = CONTROL_S
    ) -> dict[str, Any]:
        """As `call`, for answers that are JSON objects. Raises EngineAnswerError for any other."""
        answer = await self.call(method, path, body, timeout_s=timeout_s)
        if not isinstance(answer, dict):
            raise EngineAnswerError(
                f"{self.name} at {self._url}: {method} {path} answered {str(answer)[:MAX_SAID]!r}, not a JSON object"
            )
        return answer

    async def adapter_path(self, name: str) -> str | None:
        """Where the LoRA adapter `name` was loaded from, as GET /v1/models says, or None without it."""
        models = (await self.table("GET", "/v1/models", timeout_s=PROBE_S)).get("data")
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and model.get("id") == name:
                root = model.get("root")
                return root if isinstance(root, str) else None
        return None
