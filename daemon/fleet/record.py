"""The node's own record: what it says of itself to everyone, signed afresh whenever that changes."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import Final

from ...protocol.errors import ProtocolError
from ...protocol.manifest import SERIAL_BITS, Head, NodeRecord
from ...protocol.messages import ObjectKind
from ...protocol.signed import peek, sign
from ...storage.catalog import Catalog
from .identity import Identity

_SERIAL: Final = "node serial"
_SERIALS_PER_START: Final = 1 << SERIAL_BITS
OUTDO_S: Final = 10
"""By how many seconds another life is outdone: more than it can have said late."""

_REMEMBERED: Final = 32
_MAX_HEADS: Final = 64


def remembered(catalog: Catalog) -> tuple[str, ...]:
    """Addresses of the nodes that were heard last in an earlier life: all may have been silent for long since."""
    records = []
    for kind, _, data in catalog.objects():
        if kind is ObjectKind.NODE:
            with contextlib.suppress(ProtocolError):
                records.append(peek(data, NodeRecord))
    latest = sorted(records, key=lambda record: record.serial, reverse=True)
    return tuple(dict.fromkeys(address for record in latest for address in record.addresses))[:_REMEMBERED]


class OwnRecord:
    """Signs this node's record. Serials rise over all lives of the node, whatever the clock says, or the catalog."""

    def __init__(self, identity: Identity, catalog: Catalog, site: str, addresses: tuple[str, ...]) -> None:
        self._identity = identity
        self._incarnation = secrets.token_bytes(16)
        self._addresses = addresses
        self._heads: dict[str, Head] = {}
        self.site = site
        self.membership = identity.membership
        """Replaced when the certificate is renewed."""
        last = int.from_bytes(catalog.get(_SERIAL) or b"", "big")
        # The clock counts where the catalog was lost: peers keep the record with the highest serial.
        self._serial = max(last + 1, int(time.time()) * _SERIALS_PER_START)
        catalog.put(_SERIAL, (self._serial + _SERIALS_PER_START).to_bytes(8, "big"))

    def set_head(self, head: Head) -> None:
        """Note the newest version committed here in one stream."""
        self._heads[head.stream] = head

    def outdo(self, serial: int) -> None:
        """Let what is signed from now on be later than a record that another life of this node has signed."""
        self._serial = max(self._serial, serial + OUTDO_S * _SERIALS_PER_START)

    def sign(self) -> bytes:
        """The signed NodeRecord, newer than every one before."""
        self._serial = max(self._serial + 1, int(time.time()) << SERIAL_BITS)
        heads = tuple(self._heads[stream] for stream in sorted(self._heads))[:_MAX_HEADS]
        own = self._identity
        record = NodeRecord(
            own.node_public_key,
            self._incarnation,
            self._serial,
            self.site,
            self._addresses,
            heads,
            self.membership,
        )
        return sign(record, own.node_key)
