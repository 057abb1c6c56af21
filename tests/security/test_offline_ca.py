"""The CA's key may be away: an issuing key enrols, renews and revokes; a stream's publisher only the CA decides."""

import datetime as dt
import shutil

import pytest
from daemon.nodes import Head, free_port
from daemon.single import Single, until

from patchswarm.daemon.config import Config
from patchswarm.daemon.errors import BadInputError, HomeError, RefusedError
from patchswarm.daemon.fleet import authority, enrol, governing, identity, offline
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.home import Home
from patchswarm.protocol.errors import SignatureError
from patchswarm.protocol.manifest import Issuer, StreamRecord
from patchswarm.protocol.members import verify_membership
from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.signed import peek, sign

pytestmark = pytest.mark.timeout(120)
NOW = dt.datetime.now(dt.UTC)


@pytest.fixture
def made(root):
    """A head whose CA's key is on a stick."""
    home = Home.at(root / "head")
    config = identity.init(home, site="a", listen=f"127.0.0.1:{free_port()}", ca_dir=root / "stick")
    return Head(home, config, Identity.load(home))


def files_below(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def joined(head, root, name):
    token = enrol.invite(head.home, head.identity, head.config, ttl_s=60)
    await enrol.join(token, Home.at(root / name), site="b", listen="")
    home = Home.at(root / name)
    return Single(home, Config.load(home))


def test_the_cas_key_is_on_the_stick_and_nowhere_in_the_home(made, root):
    key = offline.load(root / "stick", made.identity.ca_certificate)
    secret = key.private_bytes_raw()
    assert made.identity.ca_key is None
    assert "ca.key" not in files_below(made.home.root)
    assert all(secret not in data for data in files_below(made.home.root).values())
    assert (root / "stick" / "ca.key").stat().st_mode & 0o777 == 0o600


async def test_with_the_ca_away_nodes_are_enrolled_renewed_and_revoked(made, root, checkpoints):
    shutil.move(root / "stick", root / "safe")
    async with Single(made.home, made.config).running() as head:
        member = await joined(head, root, "member")
        assert len(member.identity.certificates) == 2, "its own, and the issuing key's"
        async with member.running():
            await until(lambda: list(member.fleet.swarm.connected()))
            with pytest.raises(RefusedError, match="publisher adopt qwen --ca-dir DIR"):
                await head.publish("qwen", next(checkpoints))
            # Renewed: as by an issuer that is asked over the link.
            before = (member.home.keys / "node.crt").read_bytes()
            member.fleet.standing._asked_s = 0.0
            head.fleet.standing.asked(next(iter(head.fleet.swarm.links)))
            certificates, membership = head.identity.issuing.issue(
                member.identity.node_public_key, NOW + dt.timedelta(days=2)
            )
            await member.fleet.standing._take(certificates, membership)
            assert (member.home.keys / "node.crt").read_bytes() != before
            assert len(Identity.load(member.home).certificates) == 2
            # Revoked.
            head.fleet.publish(
                ObjectKind.REVOCATION, governing.revocation(head.identity, member.fleet.node, ca_dir=None)
            )
            await until(lambda: not list(member.fleet.swarm.connected()))


async def test_the_ca_begins_a_stream_and_may_leave_again(made, root, checkpoints):
    epoch = governing.adopt(made.home, made.identity, made.identity.authority_key(root / "stick"), "qwen")
    assert epoch == 1
    shutil.rmtree(root / "stick")
    async with Single(made.home, made.config).running() as head:
        first = await head.publish("qwen", next(checkpoints))
        member = await joined(head, root, "member")
        async with member.running():
            assert (await member.committed("qwen", 1)).manifest == first.slot.manifest


async def test_an_issuing_key_cannot_name_a_publisher(made):
    async with Single(made.home, made.config).running() as head:
        record = StreamRecord("qwen", 1, head.identity.publisher_key.public_key().public_bytes_raw())
        with pytest.raises(SignatureError):
            head.fleet.publish(ObjectKind.STREAM, sign(record, head.identity.issuing.key))


async def test_a_stolen_issuing_key_is_revoked_by_the_ca_and_all_whom_it_let_in(made, root):
    async with Single(made.home, made.config).running() as head:
        member = await joined(head, root, "member")
        async with member.running():
            await until(lambda: list(member.fleet.swarm.connected()))
            issuing = authority.node_id(head.identity.issuing.key.public_key().public_bytes_raw())
            by_ca = governing.revocation(head.identity, issuing, root / "stick")
            member.fleet.publish(ObjectKind.REVOCATION, by_ca)
            await until(lambda: not list(member.fleet.swarm.connected()))
            assert not member.fleet.swarm.gossip.nodes


def test_a_new_issuing_key_takes_the_place_of_one_that_ends(made, root):
    old = made.identity.issuing
    issuing = authority.make_issuer(made.identity.authority_key(root / "stick"), made.identity.ca_certificate, NOW)
    identity.write_issuer(made.home, issuing)
    now = Identity.load(made.home).issuing
    assert now.key.public_key() != old.key.public_key()
    assert peek(now.record, Issuer).key == now.key.public_key().public_bytes_raw()


def test_nothing_outlives_the_key_that_issued_it(made):
    issuing = made.identity.issuing
    certificates, membership = issuing.issue(made.identity.node_public_key, NOW, dt.timedelta(days=3000))
    assert certificates[0].not_valid_after_utc == issuing.not_after
    assert verify_membership(membership, made.identity.ca_public_key).not_after == issuing.not_after.timestamp()


def test_another_clusters_ca_is_not_taken_for_this_ones(made, root):
    identity.init(Home.at(root / "other"), site="a", listen="127.0.0.1:1", ca_dir=root / "foreign")
    with pytest.raises(RefusedError, match="key of another cluster's CA"):
        made.identity.authority_key(root / "foreign")
    with pytest.raises(HomeError, match=r"ca\.key: missing"):
        made.identity.authority_key(root / "nowhere")
    with pytest.raises(RefusedError, match="give its folder with --ca-dir"):
        made.identity.authority_key(None)


def test_init_overwrites_no_ca(made, root):
    before = files_below(root / "stick")
    with pytest.raises(BadInputError, match="holds the key of a CA already"):
        identity.init(Home.at(root / "other"), site="a", listen="127.0.0.1:1", ca_dir=root / "stick")
    assert files_below(root / "stick") == before
    assert not (root / "other").exists()


def test_an_issuer_that_the_ca_did_not_certify_is_noticed(made, root):
    other = identity.init(Home.at(root / "other"), site="a", listen="127.0.0.1:1", ca_dir=root / "foreign")
    assert other is not None
    for name in ("issuer.key", "issuer.crt", "issuer"):
        (made.home.keys / name).write_bytes((root / "other" / "keys" / name).read_bytes())
    with pytest.raises(HomeError, match="is not certified by"):
        Identity.load(made.home)
