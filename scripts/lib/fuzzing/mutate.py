"""Mutations: valid bytes bent, either as bytes or along their structure, so that what comes out gets past the door."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import msgpack

HEADS: Final = (
    b"\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\x91" * 64,
)
"""Lengths that promise what never comes, and nesting."""

NUMBERS: Final = (
    0,
    1,
    -1,
    15,
    16,
    31,
    32,
    33,
    255,
    256,
    2**16,
    2**20,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)
TEXTS: Final = ("", "..", "../x", "/etc/passwd", "a/../../b", "CON", "x" * 300, "\0", "\ud7ff", "é" * 40)


class Mutator:
    """Bends valid input; the same seed bends alike."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def bent(self, data: bytes) -> bytes:
        """A copy with a few bytes changed, cut, repeated, inserted or overwritten."""
        chance, bad = self.chance, bytearray(data)
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(bad) + 1)
            way = chance.randrange(6)
            if way == 0 and at < len(bad):
                bad[at] ^= 1 << chance.randrange(8)
            elif way == 1 and at < len(bad):
                bad[at] = chance.choice((0, 1, 0x7F, 0x80, 0xC1, 0xFF))
            elif way == 2:
                del bad[at:]
            elif way == 3:
                bad[at:at] = bad[at : at + chance.randrange(1, 64)]
            elif way == 4:
                bad[at:at] = chance.choice(HEADS)
            else:
                bad[at : at + 8] = chance.randbytes(chance.randrange(1, 9))
        return bytes(bad)

    def packed(self, data: bytes) -> bytes:
        """A copy of MessagePack with one value in it replaced, or its bytes bent one time in four."""
        if self.chance.random() < 0.25:
            return self.bent(data)
        try:
            value = msgpack.unpackb(data, raw=False, strict_map_key=False)
        except (ValueError, msgpack.exceptions.UnpackException):
            return self.bent(data)
        for _ in range(self.chance.randrange(1, 4)):
            value = self._inside(value)
        try:
            packed: bytes = msgpack.packb(value)
        except (OverflowError, ValueError, TypeError, RecursionError):
            return self.bent(data)
        return packed

    def _inside(self, value: Any) -> Any:
        """`value` with something in it replaced."""
        if isinstance(value, list) and value and self.chance.random() < 0.85:
            at = self.chance.randrange(len(value))
            return [*value[:at], self._inside(value[at]), *value[at + 1 :]]
        return self._instead(value)

    def _instead(self, value: Any) -> Any:
        chance = self.chance
        other: list[Callable[[], Any]] = [
            lambda: chance.choice(NUMBERS),
            lambda: chance.choice(TEXTS),
            lambda: chance.randbytes(chance.choice((0, 1, 16, 31, 32, 33, 64, 256))),
            lambda: None,
            lambda: chance.random() < 0.5,
            list,
            lambda: [value],
            lambda: 1.5,
            lambda: {1: value},
        ]
        if isinstance(value, bytes) and value:
            other += [lambda: self.bent(value)] * 6
        elif isinstance(value, int):
            other += [lambda: max(-(2**63), min(value + chance.choice((-1, 1, 2, -2)), 2**64 - 1))] * 6
            other += [lambda: chance.choice(NUMBERS)] * 6
        elif isinstance(value, list):
            other += [lambda: value * chance.choice((2, 3, 50)), lambda: value[:-1], lambda: [*value, *value[-1:]]] * 3
        elif isinstance(value, str):
            other += [lambda: chance.choice(TEXTS), lambda: value + value] * 3
        return chance.choice(other)()
