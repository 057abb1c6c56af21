"""What can go wrong on the daemon floor: each error is one clear line and knows its exit code."""

from __future__ import annotations

from typing import ClassVar

from .exits import Exit


class DaemonError(Exception):
    """An error to show as one line: it names the thing and says what to do."""

    exit: ClassVar[Exit] = Exit.UNEXPECTED


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
