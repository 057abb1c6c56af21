"""Witnesses: makes every node of a swarm a watched member, and tells which of them lie from now on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from local_fleet import Node

from . import member


class Witnesses:
    """A folder for each node below `root`; `liars` maps nodes to what they do to others, words of `member.LIES`."""

    def __init__(self, root: Path, liars: Mapping[str, str]) -> None:
        self._root = root
        self._liars = liars

    def prepare(self, node: Node) -> None:
        """Make a node a watched member; for `Swarm`."""
        witness = self._of(node.name)
        witness.mkdir()
        self.set_lies(node.name, self._liars.get(node.name, ""))
        # -P: this folder's names are not to stand before other modules'
        node.daemon = (sys.executable, "-P", str(Path(member.__file__)), str(witness))

    def set_lies(self, name: str, lies: str) -> None:
        """Let a node do this to others, or with "" nothing."""
        unknown = set(lies.split()) - member.LIES.keys()
        if unknown:
            raise ValueError(f"no such lie: {', '.join(sorted(unknown))}; there are {', '.join(member.LIES)}")
        path = self._of(name) / "lies"
        path.with_suffix(".new").write_text(lies)
        path.with_suffix(".new").rename(path)

    def set_clock(self, name: str, seconds: float) -> None:
        """Let the wall clock of a node be off."""
        (self._of(name) / "clock").write_text(str(seconds))

    def wrong_senders(self, name: str) -> set[str]:
        """Ids of the nodes that sent this one bytes that were not what they were said to be."""
        file = self._of(name) / "wrong"
        return set(file.read_text().split()) if file.exists() else set()

    def _of(self, name: str) -> Path:
        return self._root / f"{name}.witness"
