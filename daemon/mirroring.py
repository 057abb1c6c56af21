"""Mirroring: a daemon's dealings with the mirror of its configuration: everybody reads it, the publisher writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .config import Mirror
from .desk import Desk
from .errors import BadInputError


class Mirroring:
    """Reads the mirror, and writes it where this node has a publisher's `key`.

    `follows` and `owns` tell which streams; `report(stream, what)` tells the operator what went wrong. Raises
    BadInputError when the package for mirrors is not installed.
    """

    def __init__(
        self,
        config: Mirror,
        desk: Desk,
        key: Ed25519PrivateKey | None,
        *,
        follows: Callable[[str], bool],
        owns: Callable[[str], bool],
        report: Callable[[str, str], None],
    ) -> None:
        try:
            from .mirror.bucket import Bucket
            from .mirror.reader import Reader
            from .mirror.writer import Writer
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "obstore":
                raise
            raise BadInputError(
                "mirror.url is set, and the package obstore is not installed: pip install 'patchswarm[mirror]'"
            ) from None
        bucket = Bucket(config.url)
        self._reader = Reader(bucket, desk.fleet, follows, report, poll_s=config.poll_s, memory_limit=desk.memory_limit)
        self._writer = None
        if key is not None and bucket.is_writable:
            self._writer = Writer(bucket, desk, key, owns, self._reader.look)
        elif key is not None:
            structlog.get_logger(__name__).info("a web server is only read: this node's streams are not mirrored")

    def problems(self) -> list[str]:
        """What the operator has to know, one line each."""
        written = [] if self._writer is None else self._writer.problems()
        return [*written, *self._reader.problems()]

    async def run(self) -> None:
        """Mirror until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reader.run())
            if self._writer is not None:
                tasks.create_task(self._writer.run())
