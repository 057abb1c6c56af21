"""Describing: what a node has and knows, in the words of the local API."""

from __future__ import annotations

from ..protocol.link import Link
from ..protocol.manifest import Manifest, NodeRecord
from ..storage.slots import Lease, Slot
from .fleet.fleet import Fleet
from .local.model import LeaseInfo, PeerHead, PeerStatus, PublishResult, SlotCheck, VersionInfo
from .making import Published
from .replica import Replica
from .upkeep import Checked


def version_info(replica: Replica, slot: Slot) -> VersionInfo:
    """A version that stands in a slot."""
    return VersionInfo(
        stream=slot.stream,
        epoch=slot.epoch,
        version=slot.version,
        label=slot.label,
        manifest=slot.manifest.hex(),
        size_bytes=slot.layout.size,
        proven=slot.proven,
        path=str(slot.path),
        committed_at=replica.committed_at(slot),
    )


def known_version(name: bytes, manifest: Manifest) -> VersionInfo:
    """A version of which the manifest is known, by its digest `name`, and that stands in no slot."""
    return VersionInfo(
        stream=manifest.stream,
        epoch=manifest.epoch,
        version=manifest.version,
        label=manifest.label,
        manifest=name.hex(),
        size_bytes=manifest.size,
        proven=False,
    )


def lease_info(replica: Replica, lease: Lease) -> LeaseInfo:
    """A hold on a version."""
    slot = replica.slots.find(lease.manifest)
    return LeaseInfo(
        lease=lease.id,
        stream=lease.stream,
        epoch=lease.epoch,
        version=lease.version,
        label=lease.label,
        manifest=lease.manifest.hex(),
        size_bytes=slot.layout.size if slot else 0,
        path=str(lease.path),
        proven=lease.proven,
        expires_at=lease.expires_at,
    )


def publish_result(made: Published) -> PublishResult:
    """A version that was published, and what it cost."""
    return PublishResult(
        stream=made.slot.stream,
        epoch=made.slot.epoch,
        version=made.slot.version,
        label=made.slot.label,
        manifest=made.slot.manifest.hex(),
        changed_fraction=made.changed / made.elements if made.elements else 0.0,
        changed_elements=made.changed,
        full_bytes=made.full_bytes,
        patch_bytes=made.patch_bytes,
        ratio=made.full_bytes / made.patch_bytes if made.patch_bytes else 0.0,
        chunks=made.chunks,
        seconds=made.seconds,
    )


def slot_check(found: Checked) -> SlotCheck:
    """What a verification found in a slot."""
    return SlotCheck(
        path=str(found.slot.path),
        epoch=found.slot.epoch,
        version=found.slot.version,
        twin=found.slot.twin,
        blocks=found.blocks,
        bad=found.bad,
        left=found.left,
        problem=found.problem,
    )


def peer_statuses(fleet: Fleet) -> list[PeerStatus]:
    """The other nodes, the connected ones first, by site."""
    swarm = fleet.swarm
    links = {link.node: link for link in swarm.connected()}
    others = [(node, record) for node, record in swarm.gossip.nodes.items() if node != swarm.node]
    return sorted(
        (_peer_status(fleet, node, record, links.get(node)) for node, record in others),
        key=lambda peer: (not peer.connected, peer.site, peer.node),
    )


def _peer_status(fleet: Fleet, node: bytes, record: NodeRecord, link: Link | None) -> PeerStatus:
    return PeerStatus(
        node=node.hex(),
        site=record.site,
        addresses=list(record.addresses),
        connected=link is not None,
        rtt_ms=link.srtt_s * 1e3 if link and link.srtt_s is not None else None,
        up_bytes_per_s=fleet.upload_rate(link.number) if link else 0.0,
        down_bytes_per_s=link.goodput if link else 0.0,
        lanes=fleet.lane_count(link.number) if link else 0,
        strikes=link.strikes if link else 0,
        heads=[PeerHead(stream=head.stream, epoch=head.epoch, version=head.version) for head in record.heads],
    )
