"""Room: what the downloads under way still need is set aside, and where there is too little nothing is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..storage.errors import NoSpaceError
from ..storage.space import Reservation, Space
from .fleet.fleet import Fleet

HOLD_OFF_S: Final = 3.0
"""How long nothing is asked for once the disk is found to be too full; looked at again before it ends."""


class Room:
    """Space in the chunk store's file system. `space` is shared with the slots, which may lie on the same one."""

    def __init__(self, space: Space, folder: Path, fleet: Fleet) -> None:
        self._space = space
        self._folder = folder
        self._fleet = fleet
        self._aside = contextlib.ExitStack()
        self._short: str | None = None

    def look(self, streams: Iterable[str]) -> str | None:
        """Set aside what is still to come of every stream; what is missing when it does not fit, one line."""
        self._aside.close()
        need = 0
        for stream in streams:
            fetching = self._fleet.view.fetching(stream)
            if fetching is not None:
                _, done, total = fetching
                need += total - done
        try:
            reserved: Reservation = self._space.reserve(self._folder, need, "what is being fetched")
        except NoSpaceError as error:
            if need:
                self._fleet.hold_off(HOLD_OFF_S)
                return str(error)
            return None
        self._aside.enter_context(reserved)
        return None
