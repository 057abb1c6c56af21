"""Who may publish: the key that the CA has bound to the stream, and after a loss or theft the next one."""

import asyncio

import msgspec
import pytest
from daemon.nodes import Head, free_port, make_head, make_member
from daemon.single import Single, until
from support.checkpoints import files_of

from patchswarm.daemon.config import Stream
from patchswarm.daemon.errors import NotRisingError, RefusedError
from patchswarm.daemon.fleet import governing
from patchswarm.daemon.fleet.identity import PUBLISHER_KEY, Identity
from patchswarm.daemon.fleet.keyfiles import read_key, write_key
from patchswarm.protocol.errors import SignatureError
from patchswarm.protocol.manifest import Header, Manifest, ManifestPart, StreamRecord, Subject
from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.signed import object_digest, sign

pytestmark = pytest.mark.timeout(120)
LAST = 2**63 - 1


def forged_version(key, number, epoch=1, stream="qwen"):
    """Header and manifest of a version that has no bytes, as a stolen key signs them."""
    manifest = Manifest(stream, epoch, number, b"", bytes(16), "", 1, (ManifestPart(bytes(32), bytes(32)),))
    body = sign(manifest, key)
    name = object_digest(body, Manifest)
    return (
        (ObjectKind.HEADER, sign(Header(Subject.MANIFEST, stream, epoch, number, name), key)),
        (ObjectKind.MANIFEST, body),
    )


def same_files(slot, directory):
    return files_of(slot.path) == files_of(directory)


async def test_nobody_publishes_under_anothers_stream(head, fleet, checkpoints):
    await head.publish("qwen", next(checkpoints))
    member = await fleet()
    await member.committed("qwen", 1)
    with pytest.raises(RefusedError, match="no publisher key"):
        await member.publish("qwen", next(checkpoints))
    header, _ = forged_version(member.identity.node_key, 2)
    with pytest.raises(SignatureError):
        head.fleet.publish(*header)
    own = sign(StreamRecord("qwen", 2, member.identity.node_public_key), member.identity.node_key)
    with pytest.raises(SignatureError):
        head.fleet.publish(ObjectKind.STREAM, own)


async def test_a_lost_head_is_replaced_by_a_member_that_adopts_the_stream(head, fleet, root, checkpoints):
    first, second = next(checkpoints), next(checkpoints)
    await head.publish("qwen", first)
    heir = await fleet("heir", listen=f"127.0.0.1:{free_port()}")
    other = await fleet("other")
    await asyncio.gather(heir.committed("qwen", 1), other.committed("qwen", 1))
    ca_key = head.identity.ca_key

    await head.stop()

    await heir.stop()  # the command wants the home for itself
    assert governing.adopt(heir.home, heir.identity, ca_key, "qwen") == 2
    async with Single(heir.home, heir.config).running() as again:
        published = await again.publish("qwen", second)
        assert (published.slot.epoch, published.slot.version) == (2, 2), "it goes on from the swarm's head"
        assert published.patch_bytes < published.full_bytes / 2, "as a step from it"
        slot = await other.committed("qwen", 2)
        assert slot.epoch == 2
        assert same_files(slot, second)


async def test_a_stolen_publisher_key_is_useless_after_a_rotation_even_if_it_published_the_last_number(
    head, fleet, checkpoints
):
    first, second = next(checkpoints), next(checkpoints)
    await head.publish("qwen", first)
    member = await fleet()
    await member.committed("qwen", 1)
    stolen = head.identity.publisher_key
    for said in forged_version(stolen, LAST):
        head.fleet.publish(*said)
    await until(lambda: (member.fleet.swarm.gossip.head("qwen") or 0) and _newest(member) == (1, LAST))
    with pytest.raises(RefusedError, match="the last there is: if it was not you"):
        await head.publish("qwen", second)

    await head.stop()
    assert governing.rotate(head.home, head.identity, head.identity.ca_key) == {"qwen": 2}
    async with Single(head.home, head.config).running() as again:
        published = await again.publish("qwen", second)
        assert (published.slot.epoch, published.slot.version) == (2, 2)
        slot = await member.committed("qwen", 2)
        assert slot.epoch == 2
        assert same_files(slot, second)
        header, _ = forged_version(stolen, LAST, epoch=2)
        with pytest.raises(SignatureError):
            again.fleet.publish(*header)
        with pytest.raises(NotRisingError):
            await again.publish("qwen", first, version=2)


async def test_a_rotation_that_was_cut_short_is_finished_by_the_next(root, checkpoints):
    made = make_head(root / "h")
    async with Single(made.home, made.config).running() as head:
        await head.publish("qwen", next(checkpoints))
    old = made.identity.publisher_key.public_key()
    epochs = governing.rotate(made.home, made.identity, made.identity.ca_key)
    new = read_key(made.home.keys / PUBLISHER_KEY)
    assert epochs == {"qwen": 2}
    assert new.public_key() != old
    # As if the machine had died before the key file was replaced:
    (made.home.keys / PUBLISHER_KEY).rename(made.home.keys / f"{PUBLISHER_KEY}.next")
    write_key(made.home.keys / PUBLISHER_KEY, made.identity.publisher_key)
    assert governing.rotate(made.home, Identity.load(made.home), made.identity.ca_key) == {"qwen": 2}
    assert read_key(made.home.keys / PUBLISHER_KEY).public_key() == new.public_key()


def _newest(node, stream="qwen"):
    header = node.fleet.swarm.gossip.head_header(stream)
    return header.epoch, header.version


async def test_a_lost_ca_is_replaced_by_a_new_cluster_and_nothing_is_transferred(head, fleet, root, checkpoints):
    """As docs/security.md says: a new `init`, `publish --base`, and new homes that name their old slots."""
    directory = next(checkpoints)
    await head.publish("qwen", directory)
    member = await fleet()
    old = await member.committed("qwen", 1)
    await head.stop()
    await member.stop()

    made = make_head(root / "new-head")
    async with Single(made.home, made.config).running() as new_head:
        await new_head.publish("qwen", directory, register_only=True)
        home = make_member(Head(made.home, made.config, made.identity), root / "new-member")
        replace = msgspec.structs.replace
        config = replace(
            made.config,
            node=replace(made.config.node, listen="", advertise=(), seeds=(made.config.node.listen,)),
            local=replace(made.config.local, socket=home.root / "s"),
            storage=replace(made.config.storage, slot_dir=home.root / "slots"),
            stream={"qwen": Stream(base=old.path)},
        )
        async with Single(home, config).running() as again:
            slot = await again.committed("qwen", 1)
            assert same_files(slot, directory)
            sent = new_head.fleet.tally.sent_bytes
            assert sum(sent.values()) < old.layout.size / 10, "lists only"
