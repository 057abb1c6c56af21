"""Writing into an answer which weights made it: fields are added, every other value keeps its bytes. Pure.

An answer of SGLang's own routes has them in its `meta_info`, any other at the top level. Values are never read as
numbers: each is cut out of the answer as it stands (msgspec.Raw) and put back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from .errors import EngineGarbageError
from .loose import cut

MAX_EVENT_BYTES: Final = 256 * 1024 * 1024
"""A longer server-sent event is no event of an engine. Routing replay in a last chunk takes tens of megabytes."""

Members = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Mark:
    """The weights at an answer's first token and at its last."""

    start: int
    end: int


Judge = Callable[[str | None], Mark]
"""Gives the mark for an answer in which the engine itself says this label, or none. May raise."""


def members(data: bytes | msgspec.Raw) -> Members | None:
    """The members of a JSON object, each value as it stands; None for any other JSON. Raises msgspec.DecodeError."""
    if not _starts(data, b"{"):
        return None
    try:
        return msgspec.json.decode(data, type=Members)
    except msgspec.DecodeError:
        return dict(_cut(data))  # NaN and Infinity are all that it may be


def _elements(data: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """The elements of a JSON list, each as it stands. Raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(data, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return [value for _, value in _cut(data)]


def _cut(data: bytes | msgspec.Raw) -> list[tuple[str, msgspec.Raw]]:
    try:
        return [(name, msgspec.Raw(value)) for name, value in cut(bytes(data))]
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None


def assemble(object_: Members) -> bytes:
    """The JSON object with these members."""
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + bytes(value) for name, value in object_.items()) + b"}"


def encode(value: object) -> msgspec.Raw:
    """`value` as a member's value."""
    return msgspec.Raw(msgspec.json.encode(value))


def stamp(body: bytes | msgspec.Raw, judge: Judge) -> bytes:
    """`body`, one JSON answer or a list of them, with its marks. Raises EngineGarbageError for what is no JSON."""
    try:
        if _starts(body, b"["):
            return b"[" + b",".join(stamp(answer, judge) for answer in _elements(body)) + b"]"
        answer = members(body)
        if answer is None:
            msgspec.json.decode(body)
            return bytes(body)
        return assemble(_stamped(answer, judge))
    except msgspec.DecodeError as error:
        raise EngineGarbageError(f"the engine answered something that is not JSON ({error})") from None


def _stamped(answer: Members, judge: Judge) -> Members:
    meta = members(answer["meta_info"]) if "meta_info" in answer else None
    if meta is not None:
        mark = judge(_label(meta.get("weight_version")))
        return answer | {"meta_info": msgspec.Raw(assemble(meta | _fields(mark)))}
    metadata = members(answer["metadata"]) if "metadata" in answer else None
    mark = judge(_label((metadata or {}).get("weight_version")))
    return answer | _fields(mark)


def _fields(mark: Mark) -> Members:
    return {
        "weight_version": encode(str(mark.start)),
        "weight_version_start": encode(mark.start),
        "weight_version_end": encode(mark.end),
    }


def _label(value: msgspec.Raw | None) -> str | None:
    label = None if value is None else msgspec.json.decode(value)
    return label if isinstance(label, str) else None


def _starts(data: bytes | msgspec.Raw, bracket: bytes) -> bool:
    return bytes(memoryview(data)[:64]).lstrip().startswith(bracket)


_LAST: Final = re.compile(rb'"finish_reason":(?!\s*null)|"choices":\s*\[\s*\]')
"""What an event that ends an answer, or sums it up, has and others have not. Inside a string its quotes would be
escaped, so text that the model wrote never matches."""
_BOUNDARY: Final = re.compile(rb"(\r?\n\r?\n)")


class StreamStamper:
    """Passes server-sent events on as they come, and writes the marks into those that end an answer.

    All it holds back is an event that has not come in whole.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._partial = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """What can be sent on after `chunk` came in. Raises EngineGarbageError, and what the judge raises."""
        if not self._partial and chunk.endswith((b"\n\n", b"\r\n\r\n")):
            return chunk if _LAST.search(chunk) is None else self._pass(chunk)
        start = max(0, len(self._partial) - 3)  # a boundary may have come in part
        self._partial += chunk
        end = max((start + match.end() for match in _BOUNDARY.finditer(bytes(self._partial[start:]))), default=0)
        if not end:
            if len(self._partial) > MAX_EVENT_BYTES:
                raise EngineGarbageError(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes")
            return b""
        whole = bytes(self._partial[:end])
        del self._partial[:end]
        return self._pass(whole)

    def rest(self) -> bytes:
        """What is left when the engine has ended: an event without its blank line, or nothing."""
        rest, self._partial = bytes(self._partial), bytearray()
        return self._pass(rest)

    def _pass(self, events: bytes) -> bytes:
        if _LAST.search(events) is None:
            return events
        return b"".join(map(self._event, _BOUNDARY.split(events)))

    def _event(self, event: bytes) -> bytes:
        if _LAST.search(event) is None:
            return event
        lines = event.split(b"\n")
        for number, line in enumerate(lines):
            if line.startswith(b"data:") and _LAST.search(line):
                data = line[5:].rstrip(b"\r")
                space = b" " if data.startswith(b" ") else b""
                lines[number] = b"data:" + space + stamp(data.strip(), self._judge) + line[5 + len(data) :]
        return b"\n".join(lines)
