"""Reloading config.toml while the daemon runs: which keys take effect at once, and which wait for a restart."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from .config import Config

RELOADABLE: Final = frozenset(
    {
        "limits.download",
        "limits.upload",
        "log.format",
        "log.level",
        "storage.retain_age_s",
        "storage.retain_bytes",
        "storage.retain_versions",
        "storage.upkeep_share",
        "storage.verify_every_s",
    }
)
"""Keys that SIGHUP puts into effect. README.md names them too."""


class Reload(NamedTuple):
    """What a new file changes: the configuration to go on with, and the keys that wait for a restart."""

    config: Config
    applied: list[str]
    waiting: list[str]


def reload(running: Config, file: Config) -> Reload:
    """The running configuration with the file's reloadable keys."""
    before, after = _flat(running), _flat(file)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    applied = [key for key in changed if key in RELOADABLE]
    config = running
    for key in applied:
        section, _, name = key.partition(".")
        value = msgspec.structs.replace(getattr(config, section), **{name: after[key]})
        config = msgspec.structs.replace(config, **{section: value})
    return Reload(config, applied, [key for key in changed if key not in RELOADABLE])


def _flat(config: Config) -> dict[str, Any]:
    """Values by "section.key"; of a stream by "stream.NAME.key"."""
    flat: dict[str, Any] = {}
    for section in msgspec.structs.fields(config):
        held = getattr(config, section.name)
        tables = {f"{section.name}.{name}": each for name, each in held.items()} if isinstance(held, dict) else {}
        for path, table in (tables or {section.name: held}).items():
            if isinstance(table, msgspec.Struct):
                flat |= {f"{path}.{field.name}": getattr(table, field.name) for field in msgspec.structs.fields(table)}
    return flat
