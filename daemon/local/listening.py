"""The sockets of the local API: a unix socket that replaces only what is dead, and loopback TCP."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import Final

from ..errors import ConfigError, InUseError, reason

MAX_PATH_BYTES: Final = 107
"""What fits a sockaddr_un on Linux (108 with its final zero)."""
_BACKLOG: Final = 128


def listen_unix(path: Path, mode: int) -> socket.socket:
    """A listening socket at `path` with permissions `mode`.

    A socket file that nobody answers on is replaced. Raises InUseError when somebody does, or when something
    else stands there; ConfigError when no socket can be made there.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ConfigError(f"{path}: a socket's path has at most {MAX_PATH_BYTES} bytes; choose a shorter one")
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(os.fspath(path))
        path.chmod(mode)  # before listen(): until then nobody can connect
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{path}: cannot listen here: {reason(error)}") from None
    return listener


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket on a loopback address; port 0 takes any. Raises ConfigError or InUseError."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ConfigError(f"{host!r} is no IP address of the loopback; use 127.0.0.1 or [::1]") from None
    if not address.is_loopback:
        raise ConfigError(
            f"{host} is not a loopback address; use 127.0.0.1 or [::1]: the local API is for this host only"
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InUseError(f"{host}:{port}: cannot listen here: {error.strerror}; choose another port") from None
    return listener


def remove_unix(path: Path, listener: socket.socket) -> None:
    """Close the listener and remove its file."""
    listener.close()
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _clear(path: Path) -> None:
    """Remove the socket file of a daemon that is no more."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: cannot look here: {reason(error)}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise InUseError(f"{path}: exists and is not a socket; move it away or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass  # somebody listens, and is busy
        except OSError as error:
            raise InUseError(f"{path}: cannot tell whether a daemon answers here: {reason(error)}") from None
    raise InUseError(f"{path}: another daemon answers here; stop it first or choose another path")
