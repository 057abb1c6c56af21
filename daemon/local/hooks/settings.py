"""Where a hook publishes: frameworks call hooks by import path, so arguments or the environment tell them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from ..client import Client
from ..trainer.publisher import Publisher
from ..trainer.staging import root_of

STREAM: Final = "PATCHSWARM_STREAM"
REGISTER_BASE: Final = "PATCHSWARM_REGISTER_BASE"
WAIT_S: Final = "PATCHSWARM_WAIT_S"
_DEFAULT_WAIT_S: Final = 600.0


@dataclass(frozen=True)
class Settings:
    """A stream, the daemon on this host, and where files are staged."""

    stream: str
    socket: str | None = None
    staging: Path | None = None
    register_base: bool = False
    """The hosts have the base checkpoint already, so it is registered and not sent."""

    def client(self) -> Client:
        """A client of the daemon. Without a socket: the one of the environment, or of the home in ~/.patchswarm."""
        return Client(self.socket)

    def publisher(self) -> Publisher:
        """A publisher of the stream."""
        return Publisher(self.stream, client=self.client(), staging=self.staging)

    def root(self) -> Path:
        """The staging folder."""
        return root_of(self.client(), self.staging)


def settings_of(args: Any = None) -> Settings:
    """What `args` (a trainer's own namespace) or the environment say, `args` first.

    `args.patchswarm_stream` or PATCHSWARM_STREAM, and likewise socket, staging and register_base. Raises BadInputError
    without a stream.
    """
    stream = getattr(args, "patchswarm_stream", None) or os.environ.get(STREAM)
    if not stream:
        raise BadInputError(
            f"no stream to publish in: set {STREAM} for the trainer, or patchswarm_stream in its arguments"
        )
    staging = getattr(args, "patchswarm_staging", None)
    base = getattr(args, "patchswarm_register_base", None)
    return Settings(
        stream=stream,
        socket=getattr(args, "patchswarm_socket", None),
        staging=Path(staging) if staging else None,
        register_base=os.environ.get(REGISTER_BASE, "") not in ("", "0") if base is None else bool(base),
    )


def publisher_for(stream: str | Publisher | None) -> Publisher:
    """The publisher itself, one for a stream's name, or one for what the environment says."""
    if isinstance(stream, Publisher):
        return stream
    return Publisher(stream) if stream else settings_of().publisher()


def global_rank() -> int:
    """The rank of this process among all of the trainer: torch.distributed's where it runs, else $RANK, else 0."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def wait_s() -> float:
    """How long a hook waits for weights: $PATCHSWARM_WAIT_S, or ten minutes."""
    return float(os.environ.get(WAIT_S) or _DEFAULT_WAIT_S)
