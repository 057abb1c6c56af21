"""One HTTP exchange with the daemon, over its unix socket or loopback TCP, with the standard library alone."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from ..errors import BadInputError
from .errors import ConnectionLostError, LocalError, NotRunningError, UnauthorizedError
from .model import Problem

SOCKET_NAME: Final = "patchswarm.sock"
_CONNECT_S: Final = 5.0

T = TypeVar("T")


def default_socket() -> Path:
    """$PATCHSWARM_SOCKET, or the socket in $PATCHSWARM_HOME, or the one in ~/.patchswarm."""
    if path := os.environ.get("PATCHSWARM_SOCKET"):
        return Path(path)
    return Path(os.environ.get("PATCHSWARM_HOME") or "~/.patchswarm").expanduser() / SOCKET_NAME


def stream_path(stream: str, *parts: str | int) -> str:
    """The path of something in a stream, every part escaped; slashes in a part stay what they are."""
    quoted = (urllib.parse.quote(str(part)) for part in parts)
    return "/".join(("/v1/streams", urllib.parse.quote(stream, safe=""), *quoted))


def error_of(status: int, body: bytes) -> LocalError:
    """The error that an answer with `status` stands for."""
    try:
        return LocalError.of(msgspec.json.decode(body, type=Problem))
    except msgspec.DecodeError:
        return LocalError(
            f"the daemon answered HTTP {status} and no reason", remedy="see whether a daemon answers there"
        )


def decode(body: bytes, kind: type[T]) -> T:
    """An answer's body as `kind`. Raises LocalError when it is something else: no daemon of ours, or too old."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise LocalError(
            f"the daemon answered something unexpected ({error})", remedy="see whether it is of this version"
        ) from None


class DaemonAddress:
    """Where a daemon answers: a unix socket's path, or "http://HOST:PORT" with a bearer token."""

    def __init__(self, address: Path | str, token: str) -> None:
        self.path: Path | None = Path(address)
        """The unix socket, or None for TCP."""
        self.origin = "http://localhost"
        self.headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._host, self._port = "localhost", 0
        if isinstance(address, str) and "://" in address:
            url = urllib.parse.urlsplit(address)
            if url.scheme != "http" or not url.hostname or not url.port:
                raise BadInputError(f"{address!r} is no address of a daemon; give a socket's path or http://HOST:PORT")
            self.path, self.origin = None, f"http://{url.netloc}"
            self._host, self._port = url.hostname, url.port

    def __str__(self) -> str:
        return self.origin if self.path is None else str(self.path)

    @contextlib.contextmanager
    def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: msgspec.Struct | None = None,
        timeout_s: float | None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send one request; the context gives its answer, of which nothing but the header has been read.

        `timeout_s` bounds each wait for bytes, None waits for ever. Raises LocalError: the daemon's own reason for
        an answer that is not 2xx, NotRunningError, ConnectionLostError or UnauthorizedError.
        """
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        target = path + ("?" + urllib.parse.urlencode(given) if given else "")
        data = None if body is None else msgspec.json.encode(body)
        headers = self.headers if data is None else {**self.headers, "Content-Type": "application/json"}
        connection = self._connect()
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            connection.request(method, target, body=data, headers=headers)
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise error_of(response.status, response.read())
            yield response
        except TimeoutError:
            raise ConnectionLostError(f"{self}: the daemon did not answer for {timeout_s} s") from None
        except (http.client.HTTPException, ConnectionError) as error:
            raise ConnectionLostError(f"{self}: the daemon went away in the middle of an answer ({error!r})") from None
        finally:
            connection.close()

    def refused(self, error: OSError) -> LocalError:
        """What it means that connecting failed with `error`."""
        if isinstance(error, PermissionError):
            return UnauthorizedError(f"{self}: no right to use this socket", remedy="run as its owner or in its group")
        reason = error.strerror or str(error) or type(error).__name__
        return NotRunningError(f"{self}: no daemon answers here ({reason})")

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port or None, timeout=_CONNECT_S)
        try:
            if self.path is None:
                connection.connect()
            else:
                connection.sock = _connect_unix(self.path)
        except OSError as error:
            raise self.refused(error) from None
        return connection


def read_json(response: http.client.HTTPResponse, kind: type[T]) -> T:
    """The whole answer as `kind`."""
    return decode(response.read(), kind)


def _connect_unix(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(os.fspath(path))
    except BaseException:
        connection.close()
        raise
    return connection
