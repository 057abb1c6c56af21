"""A home that runs twice, or came back from a backup: noticed by its incarnation, said by both, harmless."""

import contextlib
import shutil
from types import SimpleNamespace

import msgspec
import pytest
from daemon.nodes import free_port
from daemon.single import Single, until

from patchswarm.daemon.errors import RefusedError
from patchswarm.daemon.fleet import record
from patchswarm.daemon.home import Home
from patchswarm.protocol.messages import ObjectKind
from patchswarm.storage.catalog import Catalog

pytestmark = pytest.mark.timeout(120)


def copy_of(node, root, *, seeds):
    """Another daemon on a copy of the node's home."""
    shutil.copytree(node.home.root, root, ignore=shutil.ignore_patterns("*.sock", "lock", "s"))
    config = node.config
    replace = msgspec.structs.replace
    listen = f"127.0.0.1:{free_port()}" if config.node.listen else ""
    config = replace(
        config,
        node=replace(config.node, listen=listen, seeds=seeds),
        local=replace(config.local, socket=root / "s"),
        storage=replace(config.storage, slot_dir=root / "slots"),
    )
    return Single(Home.at(root), config)


def said(node):
    return " ".join(node.fleet.standing.problems())


@pytest.mark.parametrize("meet", ["through a member", "face to face"])
async def test_two_daemons_on_copies_of_one_home_both_stop_publishing_and_say_so(head, fleet, root, checkpoints, meet):
    await head.publish("qwen", next(checkpoints))
    member = await fleet(listen=f"127.0.0.1:{free_port()}")
    await member.committed("qwen", 1)
    seeds = (member.config.node.listen,) if meet == "through a member" else (head.config.node.listen,)
    async with copy_of(head, root / "copy", seeds=seeds).running() as copy:
        await until(lambda: head.fleet.standing.is_copied and copy.fleet.standing.is_copied, 60)
        for node in (head, copy):
            assert "from a copy of its home: neither publishes" in said(node)
            with pytest.raises(RefusedError, match="stop one, delete its home"):
                await node.publish("qwen", next(checkpoints))
        assert member.node.replicas["qwen"].current().version == 1


async def test_a_home_from_a_backup_is_told_and_goes_on(head, fleet, root, monkeypatch):
    member = await fleet()
    await until(lambda: list(head.fleet.swarm.connected()))
    await member.stop()
    # Its serial and the clock went back: the fleet knows a later record of it.
    monkeypatch.setattr(record, "time", SimpleNamespace(time=lambda: 1_000_000_000.0))
    with contextlib.closing(Catalog(member.home.catalog)) as catalog:
        catalog.put("node serial", (1).to_bytes(8, "big"))
        catalog.forget([name for kind, name, _ in catalog.objects() if kind is ObjectKind.NODE])
    async with Single(member.home, member.config).running() as again:
        await until(lambda: "restored from a backup" in said(again))
        await until(lambda: list(again.fleet.swarm.connected()))
        assert not again.fleet.standing.is_copied


async def test_a_restart_is_no_copy(head, fleet):
    member = await fleet()
    await until(lambda: list(head.fleet.swarm.connected()))
    await member.stop()
    async with Single(member.home, member.config).running() as again:
        await until(lambda: list(again.fleet.swarm.connected()))
        assert said(again) == ""
