"""Tables: TOML tables to structs and back; what is wrong with a value names its file and its key."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from .errors import ConfigError
from .units import Rate, Size


def keys_of(kind: type[msgspec.Struct]) -> list[tuple[str, object, str]]:
    """(key, default, description) of every field of a section."""
    keys = []
    for field in msgspec.structs.fields(kind):
        metas = [*get_type_hints(kind, include_extras=True)[field.name].__metadata__]
        description = next(meta.description for meta in metas if meta.description)
        keys.append((field.name, field.default, description))
    return keys


def to_toml(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, Size | Rate | Path):
        value = str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_toml(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def refuse_unknown(table: object, known: list[str], where: str, path: str) -> None:
    """Raise ConfigError for a key that is not `known`, with those that look like it. `where` is the file."""
    for key in table if isinstance(table, dict) else []:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(known)}, or remove it"
            raise ConfigError(f"{where}: unknown key {path}{key}", remedy=hint)


def convert(table: object, kind: Any, where: str, path: str) -> Any:
    """What stands under `path` in the file `where`, as `kind`. Raises ConfigError naming file and key."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        refuse_unknown(table, [field.name for field in msgspec.structs.fields(kind)], where, f"{path}.")
    try:
        return msgspec.convert(table, kind, dec_hook=_decode)
    except msgspec.ValidationError as error:
        message, _, inner = str(error).partition(" - at `$")
        message = message.replace("`object`", "a table")
        key = inner.removesuffix("`")
        if message.startswith("Invalid enum value"):
            message += f"; choose {' or '.join(map(repr, _choices(kind, key.removeprefix('.'))))}"
        # What the values' own types say, they say with an example.
        remedy = "write what its comment says it takes" if message.startswith("Expected") else ""
        raise ConfigError(f"{where}: {path}{key}: {message}", remedy=remedy) from None


def _choices(kind: Any, key: str) -> tuple[object, ...]:
    """The values that a field typed `Literal[…]` may have."""
    return get_args(get_type_hints(kind)[key])


def _decode(kind: type[Any], value: object) -> Any:
    if kind in {Size, Rate}:
        return kind.parse(value)
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{value!r} is not a path")
    return Path(value)
