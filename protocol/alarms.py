"""Alarms: what in a stream's announcements only a stolen key, or two heads with one key, can have said."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from .manifest import Header, Subject

JUMP: Final = 2**32
"""Versions left out in one go: no trainer's counter does that."""


def alarms(headers: Iterable[Header], epoch: int) -> list[str]:
    """What is wrong with the versions announced in this epoch of a stream, one line each."""
    said: dict[int, set[bytes]] = {}
    for header in headers:
        if header.subject is Subject.MANIFEST and header.epoch == epoch:
            said.setdefault(header.version, set()).add(header.digest)
    found = [
        f"version {version} was signed {len(digests)} times with different contents: two heads have the publisher key"
        for version, digests in sorted(said.items())
        if len(digests) > 1
    ]
    versions = sorted(said)
    jumps = [(low, high) for low, high in pairwise(versions) if high - low > JUMP]
    if not jumps and versions and versions[0] >= 2**62:
        jumps = [(0, versions[0])]  # what was before is forgotten already
    found += [f"the versions jump to {high}: was the publisher key stolen?" for _, high in jumps]
    return found
