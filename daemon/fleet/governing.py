"""Governing: what is signed with the CA's key, or with an issuing key, and put into a home's catalog."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ...protocol.errors import ProtocolError
from ...protocol.gossip import Gossip
from ...protocol.manifest import Revocation, StreamRecord
from ...protocol.messages import ObjectKind
from ...protocol.signed import Signable, object_digest, sign
from ...storage.catalog import Catalog
from ...storage.errors import StorageError
from ..errors import HomeError, RefusedError
from ..home import Home
from .identity import PUBLISHER_KEY, Identity
from .keyfiles import read_key, write_key

_NEXT_KEY: Final = f"{PUBLISHER_KEY}.next"
_KINDS: Final[dict[str, tuple[ObjectKind, type[Signable]]]] = {
    "stream": (ObjectKind.STREAM, StreamRecord),
    "revocation": (ObjectKind.REVOCATION, Revocation),
}


def revocation(own: Identity, key_id: bytes, ca_dir: Path | None) -> bytes:
    """The signed revocation of a node or of an issuing key. Raises RefusedError where no key may sign one."""
    if ca_dir is not None or own.issuing is None:
        return sign(Revocation(key_id, int(time.time()), b""), own.authority_key(ca_dir))
    return sign(Revocation(key_id, int(time.time()), own.issuing.record), own.issuing.key)


def known_nodes(home: Home) -> list[bytes]:
    """Ids of the nodes that the catalog knows."""
    own = Identity.load(home)
    with _catalog(home) as catalog:
        return list(_gossip(own, catalog).nodes)


def keep(home: Home, kind: str, data: bytes) -> None:
    """Put a signed object into the catalog of a home whose daemon does not run."""
    number, struct = _KINDS[kind]
    with _catalog(home) as catalog:
        catalog.put_objects([(number, object_digest(data, struct), data)])


def adopt(home: Home, own: Identity, ca_key: Ed25519PrivateKey, stream: str) -> int:
    """Bind a stream to this home's publisher key, made now if there is none; the epoch from which it holds."""
    key = own.publisher_key
    if key is None:
        key = Ed25519PrivateKey.generate()
        write_key(home.keys / PUBLISHER_KEY, key)
    with _catalog(home) as catalog:
        record = _gossip(own, catalog).streams.get(stream)
        epoch = record.epoch + 1 if record else 1
        _bind(catalog, ca_key, {stream: epoch}, key)
    return epoch


def rotate(home: Home, own: Identity, ca_key: Ed25519PrivateKey) -> dict[str, int]:
    """Replace the publisher key; the streams that were bound to the old one, with their new epochs.

    The new key is on the disk before anything names it: after a crash the command goes on where it was.
    """
    if own.publisher_key is None:
        raise RefusedError("this node has no publisher key to rotate; 'patchswarm publisher adopt' gives it one")
    old = own.publisher_key.public_key().public_bytes_raw()
    new_file = home.keys / _NEXT_KEY
    if not new_file.exists():
        write_key(new_file, Ed25519PrivateKey.generate())
    key = read_key(new_file)
    new = key.public_key().public_bytes_raw()
    with _catalog(home) as catalog:
        streams = _gossip(own, catalog).streams.values()
        epochs = {each.stream: each.epoch + 1 for each in streams if each.publisher == old}
        begun = {each.stream: each.epoch for each in streams if each.publisher == new}
        _bind(catalog, ca_key, epochs, key)
    new_file.replace(home.keys / PUBLISHER_KEY)
    return epochs | begun


def _bind(catalog: Catalog, ca_key: Ed25519PrivateKey, epochs: dict[str, int], key: Ed25519PrivateKey) -> None:
    public = key.public_key().public_bytes_raw()
    signed = [sign(StreamRecord(stream, epoch, public), ca_key) for stream, epoch in epochs.items()]
    catalog.put_objects([(ObjectKind.STREAM, object_digest(data, StreamRecord), data) for data in signed])


def _gossip(own: Identity, catalog: Catalog) -> Gossip:
    """What the catalog holds, verified."""
    gossip = Gossip(own.ca_public_key)
    for kind, _, data in sorted(catalog.objects(), key=lambda item: item[0]):
        if kind in (ObjectKind.STREAM, ObjectKind.NODE):
            with contextlib.suppress(ProtocolError):  # the daemon tells of damaged ones
                gossip.learn(kind, data)
    return gossip


@contextlib.contextmanager
def _catalog(home: Home) -> Iterator[Catalog]:
    try:
        with contextlib.closing(Catalog(home.catalog)) as catalog:
            yield catalog
    except StorageError as error:
        raise HomeError(str(error)) from None
