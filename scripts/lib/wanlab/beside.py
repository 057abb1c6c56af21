"""Beside: something that is looked at again and again in a thread while a context lasts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Beside(ABC):
    """Runs `_run` in a thread from entering to leaving; `_over` is set when it has to end."""

    def __init__(self, name: str) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Look until `_over` is set."""
