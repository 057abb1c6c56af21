"""Members: who belongs to the cluster now, by the word of the CA or of a key that it lets issue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .errors import ProtocolError, SignatureError
from .ids import digest
from .manifest import SERIAL_BITS, IssuedMembership, Issuer, Membership, NodeRecord, Revocation
from .signed import peek, verify

MAX_REVOKED: Final = 20_000
"""Keys that may be revoked in the life of a cluster; 2 MiB of memory."""

LIVELY_S: Final = 600
"""A node that has said nothing of itself for so long is left out of rosters. A living one speaks every REFRESH_S."""

REFRESH_S: Final = 120
GONE_S: Final = 86_400
"""A node that has said nothing for so long is forgotten."""

FUTURE_S: Final = 3600
"""How far ahead of this node's clock a record may be dated: clocks are off, but nobody stays for years."""


@dataclass(frozen=True, slots=True)
class Member:
    """What a membership says, once verified."""

    node_key: bytes
    not_after: int
    issuer: bytes | None
    """Raw key that signed it; None for the CA itself."""


def verify_issuer(data: bytes, ca_key: bytes) -> Issuer:
    """The issuing key that the CA has certified. Raises SignatureError or MessageError."""
    return verify(data, Issuer, ca_key)


def verify_membership(data: bytes, ca_key: bytes) -> Member:
    """The membership in `data`, whoever of those entitled signed it. Raises SignatureError or MessageError."""
    try:
        own = verify(data, Membership, ca_key)
    except ProtocolError as error:  # not the CA's own; one by an issuing key names it
        try:
            lent = peek(data, IssuedMembership)
        except ProtocolError:
            raise error from None
        issuer = verify_issuer(lent.issuer, ca_key)
        lent = verify(data, IssuedMembership, issuer.key)
        if lent.not_after > issuer.not_after:
            raise SignatureError("a membership outlives the key that issued it") from None
        return Member(lent.node_key, lent.not_after, issuer.key)
    return Member(own.node_key, own.not_after, None)


def said_at_s(record: NodeRecord) -> int:
    """Unix second in which a node signed this record, by its own clock."""
    return record.serial >> SERIAL_BITS


class Members:
    """Judges memberships. `unix_s` is the time of day that the daemon last told; 0 before: nothing has ended then."""

    def __init__(self, ca_key: bytes) -> None:
        self.ca_key = ca_key
        self.unix_s = 0
        self._revoked: dict[bytes, bytes] = {}  # key id -> the object that says so

    @property
    def revoked(self) -> int:
        """How many keys are revoked."""
        return len(self._revoked)

    def is_revoked(self, key_id: bytes) -> bool:
        """Whether this node id, or id of an issuing key, is revoked."""
        return key_id in self._revoked

    def revoke(self, data: bytes, name: bytes) -> Revocation | None:
        """Take a signed revocation with digest `name`; None when the key is revoked already, or one too many.

        Raises SignatureError or MessageError.
        """
        said = peek(data, Revocation)
        if said.key_id in self._revoked or len(self._revoked) >= MAX_REVOKED:
            return None
        if said.issuer:
            issuer = verify_issuer(said.issuer, self.ca_key)
            verify(data, Revocation, issuer.key)
            if self.is_revoked(digest(issuer.key)):
                return None  # who brings it may not know yet
        else:
            verify(data, Revocation, self.ca_key)
        self._revoked[said.key_id] = name
        return said

    def ended(self, member: Member) -> bool:
        """Whether a membership counts for nothing any more."""
        if member.not_after <= self.unix_s or self.is_revoked(digest(member.node_key)):
            return True
        return member.issuer is not None and self.is_revoked(digest(member.issuer))

    def is_lively(self, record: NodeRecord) -> bool:
        """Whether the node spoke of late. Everybody did, as long as the time of day is not known."""
        return not self.unix_s or said_at_s(record) + LIVELY_S > self.unix_s

    def is_gone(self, record: NodeRecord) -> bool:
        """Whether a record is so old that its node is gone, or dated so far ahead that nobody could ever tell."""
        if not self.unix_s:
            return False
        return not self.unix_s - GONE_S < said_at_s(record) < self.unix_s + FUTURE_S
