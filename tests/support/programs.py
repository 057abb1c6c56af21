"""Another version of the program beside the one under test: a copy of its source, changed as a later one might be."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

LATER_KEY = """
    colour: Annotated[bool, _doc("Colours, also where no terminal is.")] = False
"""
"""A key that this version does not know, in [log]."""


def later_program(folder: Path) -> Path:
    """A `patchswarm` command of a later version, whose [log] section has a key `colour` more.

    The folder may be moved, or copied with its times.
    """
    package = folder / "lib" / "patchswarm"
    for floor in ("daemon", "storage", "protocol"):
        shutil.copytree(ROOT / floor, package / floor)  # compiled kernels too: they go by the source's time and size
    config = package / "daemon" / "config.py"
    text = config.read_text()
    assert text.count("class Log(Section") == 1
    head, section, tail = text.partition("class Log(Section")
    docstring_end = tail.index('"""\n') + len('"""\n')
    config.write_text(head + section + tail[:docstring_end] + LATER_KEY + tail[docstring_end:])
    command = folder / "patchswarm"
    command.write_text(
        f'#!/bin/sh\nPYTHONPATH="$(dirname "$0")/lib" exec {sys.executable} -P -m patchswarm.daemon "$@"\n'
    )
    command.chmod(0o755)
    return command
