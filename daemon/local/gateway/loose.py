"""Cutting JSON that is none: objects and lists with NaN and Infinity in them, as Python's own writer puts them.

Engines answer with such logarithms of probabilities. The strict way is in C and takes what is JSON (see `stamp`); this
one is for the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_BETWEEN: Final = re.compile(r"[ \t\n\r]*[,:]?[ \t\n\r]*")


def cut(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and value, as it stands, of each member of an object; of a list's elements with no name.

    Raises ValueError for what Python's reader does not read, and for any other value than an object or a list.
    """
    text = data.decode()
    whole = json.loads(text)  # from here on it is known to be well-formed
    if not isinstance(whole, dict | list):
        raise ValueError("neither an object nor a list")  # noqa: TRY004 -- of a value, not of an argument
    scan = json.JSONDecoder().raw_decode
    position = _after(_SPACE, text, _after(_SPACE, text, 0) + 1)
    while text[position] not in "}]":
        name = ""
        if isinstance(whole, dict):
            name, position = scan(text, position)
            position = _after(_BETWEEN, text, position)
        start = position
        _, position = scan(text, position)
        yield name, text[start:position].encode()
        position = _after(_BETWEEN, text, position)


def _after(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    assert match is not None, "both patterns match nothing too"
    return match.end()
