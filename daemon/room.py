"""Room: before anything is asked for, what is still to come and what building it takes are set aside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from ..storage.errors import StorageError
from ..storage.slots import StreamSlots
from ..storage.space import SetAside, Space

_log: Final = structlog.get_logger(__name__)


class Room:
    """Space for the downloads of all streams in the file system of `folder`, the chunk store's.

    `space` is shared with the slots where they lie on the same one; `slots` gives those of a stream, None for none.
    """

    def __init__(self, space: Space, folder: Path, slots: Callable[[str], StreamSlots | None]) -> None:
        self._space = space
        self._folder = folder
        self._slots = slots
        self._aside: dict[str, SetAside] = {}
        self.short: dict[str, str] = {}
        """What is missing, one line for each stream that there is no room for."""

    def ask(self, stream: str, size_bytes: int, version_bytes: int) -> bool:
        """Set aside `size_bytes` of chunks, and what a version of `version_bytes` takes beside the slots that are here.

        It takes the place of what was set aside for the stream before. False, and nothing is, when it does not fit.
        """
        aside, slots = self._aside.get(stream), self._slots(stream)
        if aside is None:
            aside = self._aside[stream] = SetAside(self._space, self._folder, f"what is to come of {stream}")
        try:
            aside.keep(size_bytes)
            if slots is not None:
                slots.set_aside(version_bytes)
        except (StorageError, OSError) as error:
            aside.give_back()
            if stream not in self.short:  # said once, however often it is asked again
                _log.warning("nothing is fetched: there is no room", stream=stream, reason=str(error))
            self.short[stream] = str(error)
            return False
        self.short.pop(stream, None)
        return True
