"""Which weights a request accepts: `weight_version` in its body, or headers that say the same.

    {"weight_version": {"min_version": 7, "max_version": 9, "wait_s": 20}}
    X-Weight-Version-Min: 7

Pure: everything that is decided about a constraint follows from `first_from`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from .errors import ContradictoryConstraintError, InvalidConstraintError

MAX_CHOICES: Final = 64
MAX_WAIT_S: Final = 3600.0

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Choices = Annotated[tuple[Number, ...], msgspec.Meta(min_length=1, max_length=MAX_CHOICES)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)]

HEADERS: Final = {
    "X-Weight-Version-Min": "min_version",
    "X-Weight-Version-Exact": "exact_version",
    "X-Weight-Version-Max": "max_version",
    "X-Weight-Version-Any-Of": "any_of",
    "X-Weight-Version-Wait": "wait_s",
}
"""Header to field. `Any-Of` is a list with commas."""


class Constraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every field that is given must hold. `wait_s`: how long the caller waits for it, seconds."""

    min_version: Number | None = None
    exact_version: Number | None = None
    max_version: Number | None = None
    any_of: Choices | None = None
    wait_s: Seconds | None = None

    @property
    def is_empty(self) -> bool:
        """Whether any version will do."""
        return all(each is None for each in (self.min_version, self.exact_version, self.max_version, self.any_of))

    def first_from(self, version: int) -> int | None:
        """The least acceptable version that is at least `version`, or None when there is none."""
        low = max(version, self.min_version or 0, self.exact_version or 0)
        high = min((limit for limit in (self.max_version, self.exact_version) if limit is not None), default=None)
        if self.any_of is not None:
            fitting = (each for each in self.any_of if each >= low and (high is None or each <= high))
            return min(fitting, default=None)
        return low if high is None or low <= high else None

    def satisfied_by(self, version: int) -> bool:
        """Whether `version` is acceptable."""
        return self.first_from(version) == version

    def __str__(self) -> str:
        given = {name: getattr(self, name) for name in ("min_version", "exact_version", "max_version", "any_of")}
        return ", ".join(
            f"{name} {list(value) if isinstance(value, tuple) else value}"
            for name, value in given.items()
            if value is not None
        )


ANY: Final = Constraint()


def parse(body: msgspec.Raw | None, headers: Mapping[str, str]) -> Constraint:
    """The constraint of a request from its body's `weight_version` (JSON, or None without one) and its headers.

    Raises InvalidConstraintError naming the field, ContradictoryConstraintError when no version can satisfy it.
    """
    constraint = _merge(_of_body(body), _of_headers(headers))
    if constraint.first_from(0) is None:
        raise ContradictoryConstraintError(f"no version can satisfy {constraint}")
    return constraint


def _of_body(body: msgspec.Raw | None) -> Constraint:
    if body is None:
        return ANY
    try:
        return msgspec.json.decode(body, type=Constraint | None) or ANY
    except msgspec.DecodeError as error:
        raise InvalidConstraintError(
            f'weight_version: {_said(error)}; give an object such as {{"min_version": 7}}'
        ) from None


def _of_headers(headers: Mapping[str, str]) -> Constraint:
    given: dict[str, object] = {}
    for header, field in HEADERS.items():
        text = headers.get(header)
        if text is None:
            continue
        value: object = [part.strip() for part in text.split(",")] if field == "any_of" else text.strip()
        try:
            given[field] = msgspec.convert({field: value}, Constraint, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidConstraintError(f"{header}: {text[:80]!r}: {_said(error)}") from None
    return Constraint(**{field: getattr(one, field) for field, one in given.items()})


def _merge(body: Constraint, headers: Constraint) -> Constraint:
    """Both hold; what both give must be the same."""
    values = {}
    for field in HEADERS.values():
        ours, theirs = getattr(body, field), getattr(headers, field)
        if ours is not None and theirs is not None and ours != theirs:
            raise ContradictoryConstraintError(f"{field} is {ours} in the body and {theirs} in the headers")
        values[field] = theirs if ours is None else ours
    return Constraint(**values)


def _said(error: msgspec.DecodeError) -> str:
    """What `error` says, without msgspec's path notation."""
    return (
        str(error).replace(" - at `$.", " in `").replace(" - at `$`", "").replace("Object contains unknown", "unknown")
    )
