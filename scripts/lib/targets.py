"""Targets: figures held against what they should be, printed the same way by every script that measures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MISSED = 3
"""Exit code of a script that ran well and whose figures miss a target."""


@dataclass(frozen=True, slots=True)
class Target:
    """One figure and its limit."""

    name: str
    value: float
    limit: float
    at_most: bool = True
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure keeps to its limit."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{self.name} {self.value:.3g}{self.unit} (target {sign} {self.limit:g}{self.unit})"


def summary(targets: Sequence[Target]) -> str:
    """The line that every such script prints last."""
    missed = [str(target) for target in targets if not target.met]
    line = f"targets: {len(targets) - len(missed)} of {len(targets)} met"
    return f"{line}; missed: {'; '.join(missed)}" if missed else line


def close(document: Mapping[str, Any], targets: Sequence[Target], json_path: Path | None) -> int:
    """End such a script: `document` and its targets go to `json_path`, if there is one; returns the exit code."""
    if json_path is not None:
        held = [asdict(target) | {"met": target.met} for target in targets]
        json_path.write_text(json.dumps({**document, "targets": held}, indent=2) + "\n")
    print(summary(targets))
    return exit_code(targets)


def exit_code(targets: Sequence[Target]) -> int:
    """0 when all are met, else MISSED."""
    return 0 if all(target.met for target in targets) else MISSED
