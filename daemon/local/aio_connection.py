"""HTTP exchanges with the daemon from an event loop, over its unix socket or loopback TCP, on aiohttp."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import yarl

from .asks import Ask
from .connection import DaemonAddress, decode, error_of
from .errors import ConnectionLostError

T = TypeVar("T")


class AsyncConnection:
    """Connections to one daemon, kept open between requests."""

    def __init__(self, address: Path | str, token: str, timeout_s: float) -> None:
        self._address = DaemonAddress(address, token)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Get ready; connects with the first request."""
        path = self._address.path
        connector = aiohttp.TCPConnector() if path is None else aiohttp.UnixConnector(str(path))
        self._session = aiohttp.ClientSession(connector=connector, headers=self._address.headers)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, ask: Ask[T]) -> T:
        """One exchange, its answer read as what it should be. Raises what `exchange` raises."""
        async with self.exchange(ask) as response:
            return decode(await response.read() or b"{}", ask.answer)

    @asynccontextmanager
    async def exchange(self, ask: Ask[Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request; the context gives its answer, the body unread. As `DaemonAddress.exchange`."""
        assert self._session is not None, "enter the client's context first"
        given = {name: str(value) for name, value in ask.query.items() if value is not None}
        url = yarl.URL(self._address.origin + ask.path, encoded=True)
        data = None if ask.body is None else msgspec.json.encode(ask.body)
        timeout_s = ask.timeout_s(self._timeout_s)
        try:
            async with self._session.request(
                ask.method,
                url.with_query(given) if given else url,
                data=data,
                headers={} if data is None else {"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=None, sock_read=timeout_s),
            ) as response:
                if not 200 <= response.status < 300:
                    raise error_of(response.status, await response.read())
                yield response
        except aiohttp.ClientConnectorError as error:
            raise self._address.refused(error.os_error) from None
        except TimeoutError:
            raise ConnectionLostError(f"{self._address}: the daemon did not answer for {timeout_s} s") from None
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ConnectionLostError(
                f"{self._address}: the daemon went away in the middle of an answer ({error!r})"
            ) from None
