"""Trust: signatures checked once per run, not once per node. A thousand nodes would check the same bytes each.

The only place where the simulator reaches into the core: for the time of a run, `signed` looks up what it has
verified and decoded before. What was never signed still fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from patchswarm.protocol import signed
from patchswarm.protocol.packing import unpack_as


class _Key:
    """A public key that remembers which messages verified under it."""

    def __init__(self, raw: bytes) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(raw)
        self._verified: set[tuple[bytes, bytes]] = set()

    def verify(self, signature: bytes, message: bytes) -> None:
        """As Ed25519PublicKey: raises InvalidSignature."""
        if (signature, message) not in self._verified:
            self._key.verify(signature, message)
            self._verified.add((signature, message))


class _Keys:
    """Stands for the class Ed25519PublicKey."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Key] = {}

    def from_public_bytes(self, raw: bytes) -> _Key:
        """The key with these 32 bytes. Raises ValueError."""
        key = self._known.get(raw)
        if key is None:
            key = self._known[raw] = _Key(raw)
        return key


@contextmanager
def remembered_signatures() -> Iterator[None]:
    """Within the context each signed object is verified and decoded once, however many nodes ask."""
    decoded: dict[tuple[type, bytes], Any] = {}

    def unpack_once(data: bytes, kind: type[Any]) -> Any:
        value = decoded.get((kind, data))
        if value is None:
            value = decoded[kind, data] = unpack_as(data, kind)
        return value

    with patch.object(signed, "Ed25519PublicKey", _Keys()), patch.object(signed, "unpack_as", unpack_once):
        yield
