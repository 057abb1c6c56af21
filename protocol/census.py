"""Census: the nodes of the cluster as gossip tells of them: one record each, as long as they are members and alive."""

from __future__ import annotations

from typing import Final

from .compared import Compared
from .errors import SignatureError
from .ids import digest, short
from .manifest import NodeRecord, Revocation
from .members import Member, Members, verify_membership
from .messages import ObjectKind
from .signed import object_digest, peek, verify

MAX_NODES: Final = 20_000
MAX_RECORDS: Final = 64
"""Records of one node that are taken in one second."""


class Census(Compared):
    """Node records and revocations. `ca_key` is the cluster's raw Ed25519 public key."""

    def __init__(self, ca_key: bytes) -> None:
        super().__init__()
        self._ca_key = ca_key
        self._node_digests: dict[bytes, bytes] = {}
        self._memberships: dict[bytes, Member] = {}
        self._spoke: dict[bytes, int] = {}  # node -> how many records of it were taken in this second
        self.members = Members(ca_key)
        self.nodes: dict[bytes, NodeRecord] = {}
        self.moves = 0
        """Counts nodes that are new, or say another site or other addresses than before."""

    def tell_time(self, unix_s: int) -> None:
        """Take the time of day; nodes whose membership has ended, or that have long been silent, are dropped."""
        if unix_s != self.members.unix_s:
            self._spoke.clear()
        self.members.unix_s = unix_s
        self._drop_nodes()

    def node_digest(self, node: bytes) -> bytes:
        """Digest of a node's record, which is here."""
        return self._node_digests[node]

    def is_member(self, node: bytes) -> bool:
        """Whether a node's record is here and its membership goes on."""
        return node in self._memberships

    def lively(self) -> dict[bytes, NodeRecord]:
        """Nodes that have spoken of late: those that a roster may count on."""
        return {node: record for node, record in self.nodes.items() if self.members.is_lively(record)}

    def _learn_node(self, data: bytes) -> NodeRecord | None:
        name = object_digest(data, NodeRecord)
        if name in self._set:
            return None
        record = peek(data, NodeRecord)
        node = digest(record.node_key)
        current = self.nodes.get(node)
        if current is not None and record.serial <= current.serial:
            return None
        if current is None and len(self.nodes) >= MAX_NODES:
            return None
        if self.members.unix_s and self._spoke.get(node, 0) >= MAX_RECORDS:
            return None  # one who says too much is heard again in the next second
        if self.members.is_revoked(node) or self.members.is_gone(record):
            return None  # who brings it may not know yet, or have another clock
        verify(data, NodeRecord, record.node_key)
        member = verify_membership(record.membership, self._ca_key)
        if member.node_key != record.node_key:
            raise SignatureError(f"node {short(node)} shows another node's membership")
        if self.members.ended(member):
            return None
        if current is not None:
            self._remove(self._node_digests[node])
        self._node_digests[node] = name
        self._memberships[node] = member
        self._spoke[node] = self._spoke.get(node, 0) + 1
        self.nodes[node] = record
        if current is None or (current.site, current.addresses) != (record.site, record.addresses):
            self.moves += 1
        self._add(name, ObjectKind.NODE, data)
        return record

    def _learn_revocation(self, data: bytes) -> Revocation | None:
        name = object_digest(data, Revocation)
        if name in self._set:
            return None
        said = self.members.revoke(data, name)
        if said is not None:
            self._add(name, ObjectKind.REVOCATION, data)
            self._drop_nodes()
        return said

    def _drop_nodes(self) -> None:
        ended = [
            node
            for node, record in self.nodes.items()
            if self.members.ended(self._memberships[node]) or self.members.is_gone(record)
        ]
        for node in ended:
            self._remove(self._node_digests.pop(node))
            del self.nodes[node], self._memberships[node]
            self.moves += 1
