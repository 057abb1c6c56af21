"""Secrets stay in their files: not in logs, errors, process titles or anything that is told to other nodes."""

import base64
import stat
from pathlib import Path

import pytest
from daemon.nodes import make_head
from daemon.single import until
from local_fleet import LocalFleet
from support.checkpoints import model, write

from patchswarm.daemon.fleet import authority, identity, tls
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.fleet.keyfiles import read_key
from patchswarm.daemon.home import Home

pytestmark = pytest.mark.timeout(180)


def forms(secret):
    """A secret as it could be written into text."""
    return {
        secret,
        secret.hex().encode(),
        base64.b64encode(secret).rstrip(b"="),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
        repr(secret)[2:-1].encode(),
    }


def secrets_of(home):
    """Every secret of a home: keys, tokens, invites."""
    found = [path.read_text().strip().encode() for path in home.glob("token*")]
    found += [read_key(path).private_bytes_raw() for path in (home / "keys").glob("*.key")]
    return [form for secret in found for form in forms(secret)]


def test_every_secret_of_a_home_is_its_owners_alone(root):
    made = make_head(root / "h")
    identity.write_issuer(
        made.home, authority.make_issuer(made.identity.ca_key, made.identity.ca_certificate, made.identity.not_after)
    )
    for path in [*made.home.keys.iterdir(), *made.home.root.glob("token*")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (made.home.root, made.home.keys, made.home.invites):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_what_holds_keys_does_not_print_them(root):
    own = Identity.load(make_head(root / "h").home)
    said = repr(own) + repr(own.issuing) + str(tls.Member(own.node_public_key))
    for key in (own.node_key, own.ca_key, own.publisher_key):
        assert not any(form in said.encode() for form in forms(key.private_bytes_raw()))


def test_running_daemons_write_no_secret_into_logs_or_process_titles(root, tmp_path):
    with LocalFleet(root) as fleet:
        head = fleet.add_head()
        token = head.invite()
        config = head.home / "config.toml"
        config.write_text(config.read_text().replace('# level = "info"', 'level = "debug"'))
        assert '\nlevel = "debug"' in config.read_text(), "it is asked to say everything"
        head.stop()
        head.start()
        member = fleet.add("member", "eu-west/b")
        head.publish(write(tmp_path / "c", model(layers=1, width=64)), "qwen")
        assert member.client.wait("qwen", 1, 60) is not None
        said = b"".join(node.log.read_bytes() for node in (head, member))
        titles = b"".join(
            Path(f"/proc/{node.pid}/{name}").read_bytes() for node in (head, member) for name in ("cmdline", "comm")
        )
        for secret in [*secrets_of(head.home), *secrets_of(member.home), token.encode()]:
            assert secret not in said
            assert secret not in titles


async def test_no_path_and_no_secret_of_a_host_is_told_to_other_nodes(head, fleet, checkpoints):
    """Everything the head signs and everything a member stores of it, sealed or not."""
    await head.publish("qwen", next(checkpoints))
    member = await fleet()
    await member.committed("qwen", 1)
    await until(lambda: len(member.catalog.objects()) >= len(head.catalog.objects()))
    said = b"".join(data for _, _, data in member.catalog.objects())
    chunks = b"".join(path.read_bytes() for path in member.home.chunks.rglob("*") if path.is_file())
    manifest = member.fleet.swarm.gossip.head_digest("qwen")
    layout = (await member.node.replicas["qwen"].layout_of(manifest)).encode()
    home = Home.at(head.home.root).root
    for path in (home, home.parent, next(checkpoints).parent):
        for text in (said, chunks, layout):
            assert str(path).encode() not in text
    for secret in secrets_of(head.home.root):
        assert secret not in said + chunks + layout


async def test_what_lies_in_a_cache_or_crosses_a_lane_cannot_be_read(head, fleet, checkpoints):
    """Sealed chunks hold no byte run of the weights, and open under no key but the transition's."""
    directory = next(checkpoints)
    await head.publish("qwen", directory)
    member = await fleet()
    await member.committed("qwen", 1)
    plain = (directory / "model.safetensors").read_bytes()
    sealed = b"".join(path.read_bytes() for path in member.home.chunks.rglob("*") if path.is_file())
    assert sealed
    for at in range(0, len(plain) - 16, 4096):
        assert plain[at : at + 16] not in sealed
    assert b"layers.0" not in sealed
