"""`revoke`, `issuer` and `publisher`: what they print, refuse and leave behind on a home whose daemon does not run."""

import json

import pytest
from click.testing import CliRunner
from daemon.nodes import make_head, make_member

from patchswarm.daemon import cli
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.home import Home
from patchswarm.protocol.gossip import Gossip
from patchswarm.protocol.messages import ObjectKind
from patchswarm.storage.catalog import Catalog

SOME_NODE = "ab" * 32


@pytest.fixture
def head(tmp_path):
    return make_head(tmp_path / "head")


def run(home, *arguments, expect=0):
    done = CliRunner().invoke(cli.main, [*map(str, arguments), "--home", str(home.root)])
    assert done.exit_code == expect, done.output
    return done.output


def gossip_of(home):
    """What a daemon on this home knows when it starts."""
    gossip, catalog = Gossip(Identity.load(home).ca_public_key), Catalog(home.catalog)
    for kind, _, data in sorted(catalog.objects(), key=lambda item: item[0]):
        assert gossip.learn(ObjectKind(kind), data) is not None
    catalog.close()
    return gossip


def test_revoke_without_a_daemon_is_kept_for_it(head):
    said = json.loads(run(head.home, "revoke", SOME_NODE.upper(), "--json"))
    assert said == {"node": SOME_NODE, "daemon_told": False}
    assert gossip_of(head.home).members.is_revoked(bytes.fromhex(SOME_NODE))


@pytest.mark.parametrize("text", ["abc", "x" * 64, "ab" * 33, SOME_NODE[:10]])
def test_revoke_wants_one_node(head, text):
    run(head.home, "revoke", text, expect=Exit.BAD_INPUT)
    assert not head.home.catalog.exists() or not gossip_of(head.home).members.is_revoked(bytes.fromhex(SOME_NODE))


def test_a_node_does_not_revoke_itself(head):
    run(head.home, "revoke", head.identity.node_id.hex(), expect=Exit.BAD_INPUT)


def test_a_member_revokes_nobody_and_names_no_publisher(head, tmp_path):
    home = make_member(head, tmp_path / "member")
    for command in (("revoke", SOME_NODE), ("publisher", "adopt", "qwen"), ("publisher", "rotate"), ("issuer",)):
        run(home, *command, expect=Exit.REFUSED)


def test_adopt_begins_a_stream_and_then_raises_its_epoch(head):
    assert "in epoch 1" in run(head.home, "publisher", "adopt", "qwen")
    assert "in epoch 2" in run(head.home, "publisher", "adopt", "qwen")
    assert gossip_of(head.home).streams["qwen"].epoch == 2
    run(head.home, "publisher", "adopt", "../qwen", expect=Exit.BAD_INPUT)


def test_rotate_raises_every_epoch_of_the_old_key(head):
    for stream in ("qwen", "llama"):
        run(head.home, "publisher", "adopt", stream)
    said = run(head.home, "publisher", "rotate")
    assert "stream qwen goes on in epoch 2" in said
    assert "stream llama goes on in epoch 2" in said
    key = Identity.load(head.home).publisher_key.public_key().public_bytes_raw()
    assert {record.publisher for record in gossip_of(head.home).streams.values()} == {key}


def test_the_home_must_be_free(head):
    with head.home.lock():
        run(head.home, "publisher", "rotate", expect=Exit.IN_USE)
        run(head.home, "publisher", "adopt", "qwen", expect=Exit.IN_USE)
        run(head.home, "issuer", expect=Exit.IN_USE)
        run(head.home, "revoke", SOME_NODE, expect=Exit.REFUSED)


def test_init_with_the_ca_elsewhere_and_an_issuer_for_it(tmp_path):
    home, stick = Home.at(tmp_path / "head"), tmp_path / "stick"
    run(home, "init", "--site", "a", "--listen", "127.0.0.1:1", "--ca-dir", stick)
    first = Identity.load(home).issuing.key.public_key()
    assert not (home.keys / "ca.key").exists()
    assert "issuing key" in run(home, "issuer", "--ca-dir", stick)
    assert Identity.load(home).issuing.key.public_key() != first
    run(home, "publisher", "adopt", "qwen", expect=Exit.REFUSED)
    run(home, "publisher", "adopt", "qwen", "--ca-dir", stick)
