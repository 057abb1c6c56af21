"""What a crash left in the chunk store and nothing names is deleted; what something names stays."""

import pytest
from daemon.single import Single, head_of, member_of, until
from support.streams import model, write_tree

from patchswarm.daemon import node, retention
from patchswarm.protocol.ids import digest
from patchswarm.storage.chunks import ChunkStore

STREAM = "qwen"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(node, "RETENTION_S", 0.05)


async def published(head, root, steps):
    return await head.publish(STREAM, write_tree(root / "trainer" / str(steps), model(1, steps)))


def left_behind(home, count=3):
    """Chunks as a publish that was killed leaves them: in the store, and named by nothing."""
    store = ChunkStore(home.chunks)
    orphans = [b"chunk %d of a publish that was killed" % number for number in range(count)]
    for chunk in orphans:
        store.put(digest(chunk), chunk)
    return {digest(chunk) for chunk in orphans}


async def test_a_restarted_head_deletes_what_a_killed_publish_left_and_nothing_else(root):
    async with head_of(root) as head:
        for steps in range(3):
            await published(head, root, steps)
        whole = set(head.store.names())
        home, config = head.home, head.config
    orphans = left_behind(home)
    async with Single(home, config).running() as again:
        await until(lambda: not orphans & set(again.store.names()))
        assert set(again.store.names()) == whole
        await published(again, root, 3)
        assert whole <= set(again.store.names())


async def test_a_member_deletes_them_at_the_head_and_keeps_every_whole_transition(root):
    async with head_of(root) as head:
        await published(head, root, 0)
        async with member_of(head, root) as member:
            await member.committed(STREAM, 1)
            home, config = member.home, member.config
        orphans = left_behind(home)
        await published(head, root, 1)
        async with Single(home, config).running() as again:
            await again.committed(STREAM, 2)
            await until(lambda: not orphans & set(again.store.names()))
            series = [each for each in again.fleet.swarm.fetch.stock.series.values() if each.complete()]
            assert len(series) == 2
            assert all(again.store.has(name) for each in series for name, _ in (*each.meta, *each.chunks.values()))


async def test_a_node_that_knows_of_no_stream_yet_keeps_what_it_has_for_a_while(root, monkeypatch):
    async with head_of(root) as head:
        home, config = head.home, head.config
    orphans = left_behind(home)
    async with Single(home, config).running() as again:
        await again.node._retention.sweep()
        assert orphans <= set(again.store.names())
        monkeypatch.setattr(retention, "SWEEP_S", 0.0)
        await until(lambda: not orphans & set(again.store.names()))


async def test_a_full_disk_waits_for_nothing(root):
    async with head_of(root) as head:
        home, config = head.home, head.config
    orphans = left_behind(home)
    async with Single(home, config).running() as again:
        await again.node._retention.sweep(at_once=True)
        assert not orphans & set(again.store.names())
