"""A slot as the new version of a transition that is made later: what `Diff` reads of a checkpoint directory."""

from __future__ import annotations

import numpy as np

from ..protocol.layout import Layout
from .mapped import Bytes, MappedFiles


class HeldSlot:
    """The files of a slot that is held: nobody writes to them meanwhile."""

    def __init__(self, files: MappedFiles) -> None:
        self._files = files

    @property
    def layout(self) -> Layout:
        """Its layout."""
        return self._files.layout

    def read_into(self, file: int, offset: int, out: Bytes) -> None:
        """Fill `out` with bytes of a file."""
        np.copyto(out, self._files.view(file, offset, len(out)))

    def check_unchanged(self) -> None:
        """Nothing can have changed."""
