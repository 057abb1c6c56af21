"""Range and conditional requests (RFC 9110, sections 13 and 14), decided from header values alone."""

from __future__ import annotations

import re
from typing import Final

from ...protocol.ids import digest
from .errors import PreconditionFailedError, UnsatisfiableRangeError

_RANGE: Final = re.compile(r"\s*bytes\s*=\s*(\d{0,19})-(\d{0,19})\s*", re.ASCII | re.IGNORECASE)


def strong_etag(manifest: str, *names: str) -> str:
    """The entity tag of part of a version's content: equal tags mean equal bytes, on every node."""
    return f'"{digest(chr(0).join((manifest, *names)).encode("utf-8", "surrogatepass")).hex()[:32]}"'


def choose_range(header: str | None, size: int) -> tuple[int, int] | None:
    """(first byte, byte after the last) that a Range header asks for of `size` bytes, or None for all of it.

    What a server may ignore is ignored: other units, several ranges at once, malformed ones (section 14.2).
    Raises UnsatisfiableRangeError for a range that starts at or after the end.
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:  # the last N bytes
        length = int(match[2])
        if length == 0:
            raise UnsatisfiableRangeError("the range asks for the last 0 bytes")
        return (max(0, size - length), size) if size else None
    first = int(match[1])
    last = int(match[2]) if match[2] else size - 1
    if match[2] and last < first:
        return None
    if first >= size:
        raise UnsatisfiableRangeError(f"the range starts at byte {first}, but there are {size}")
    return first, min(last + 1, size)


def range_applies(if_range: str | None, etag: str) -> bool:
    """Whether a Range holds: If-Range, when there is one, must name this very content. A date never does."""
    return if_range is None or if_range.strip() == etag


def is_unchanged(if_none_match: str | None, etag: str) -> bool:
    """Whether the reader has these bytes already (304). Comparison is weak, as section 13.1.2 has it."""
    return if_none_match is not None and _names(if_none_match, etag, weak=True)


def check_match(if_match: str | None, etag: str) -> None:
    """Raise PreconditionFailedError when If-Match is given and names other content."""
    if if_match is not None and not _names(if_match, etag, weak=False):
        raise PreconditionFailedError(f"If-Match is {if_match[:80]}, the content here is {etag}")


def _names(header: str, etag: str, *, weak: bool) -> bool:
    tags = [tag.strip() for tag in header.split(",")]
    return "*" in tags or etag in tags or (weak and f"W/{etag}" in tags)
