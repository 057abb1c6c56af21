"""What can go wrong on the daemon floor: each error is one clear line and knows its exit code."""

from __future__ import annotations

import errno
from typing import ClassVar, Final

from .exits import Exit

_STEPS: Final = {
    errno.EACCES: "run as its owner, or give this user the right to it",
    errno.EPERM: "run as its owner, or give this user the right to it",
    errno.ENOENT: "check the path, or make what is missing",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EEXIST: "choose another name, or move it away",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "remove the circle of links",
    errno.ENOSPC: "free some room there, or choose another place",
    errno.EDQUOT: "free some room there, or choose another place",
    errno.EROFS: "mount it writable, or choose another place",
    errno.EMFILE: "raise the limit of open files (LimitNOFILE)",
    errno.ENFILE: "raise the limit of open files (fs.file-max)",
    errno.EADDRINUSE: "stop who has it, or choose another port",
    errno.EADDRNOTAVAIL: "use an address of this host",
    errno.ECONNREFUSED: "start it, or check the address",
    errno.ECONNRESET: "try again",
    errno.EHOSTUNREACH: "check the address, and the way there",
    errno.ENETUNREACH: "check the address, and the way there",
    errno.ETIMEDOUT: "check the address, and the firewalls on the way",
}


def reason(error: OSError) -> str:
    """What the system says, and what to do about it."""
    said = error.strerror or str(error) or type(error).__name__
    return f"{said}; {_STEPS.get(error.errno or 0, 'see what the system log says of it')}"


class DaemonError(Exception):
    """An error to show as one line: it names the thing and says what to do.

    What to do is `remedy`: given, or what the class has; "" where the message says it already.
    """

    exit: ClassVar[Exit] = Exit.UNEXPECTED
    remedy: str = ""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}; {self.remedy}" if self.remedy else message


class BadInputError(DaemonError):
    """A value, file or token that was given is not what it should be."""

    exit = Exit.BAD_INPUT


class HomeError(DaemonError):
    """The home is missing, not initialised, not ours to use or of another format."""

    exit = Exit.HOME


class ConfigError(HomeError):
    """config.toml does not say what it may say."""


class InUseError(DaemonError):
    """Someone else holds the home, the port or the socket."""

    exit = Exit.IN_USE


class UnreachableError(DaemonError):
    """Nobody answers where somebody should."""

    exit = Exit.NOT_RUNNING


class RefusedError(DaemonError):
    """The other side, or this node's own role, does not allow it."""

    exit = Exit.REFUSED


class ConflictError(DaemonError):
    """The stream has moved on, or is being worked on."""

    exit = Exit.CONFLICT


class NotRisingError(ConflictError):
    """A version number that is not above the newest one, which `newest` names."""

    def __init__(self, message: str, newest: int) -> None:
        super().__init__(message)
        self.newest = newest


class DamagedError(DaemonError):
    """Bytes on this host are not the trainer's."""

    exit = Exit.DAMAGED
