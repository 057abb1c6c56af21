"""A head that lost its catalog, with nobody there to ask, goes on where it was: no version is used twice."""

import shutil

import pytest
from daemon.single import Single, head_of, member_of
from support.streams import model, read_tree, write_tree

from patchswarm.daemon.errors import RefusedError
from patchswarm.storage.catalog import log_path
from patchswarm.storage.recovery import open_catalog

STREAM = "qwen"


async def published(head, root, steps, **options):
    return await head.publish(STREAM, write_tree(root / "trainer" / str(steps), model(1, steps)), **options)


def restarted(home, config):
    """The head as a new process finds its home."""
    open_catalog(home.catalog, config.storage.slot_dir)[0].close()
    return Single(home, config).running()


def lose(home):
    for path in home.root.glob("catalog.sqlite*"):
        path.unlink()


def damage(home):
    home.catalog.write_bytes(b"\xa5" * home.catalog.stat().st_size)


def signed_by(head):
    """(version, attempt) of everything that the head has signed."""
    gossip = head.fleet.swarm.gossip
    return {(each.version, each.attempt) for each in (*gossip.manifests.values(), *gossip.transitions.values())}


@pytest.mark.parametrize("harm", [lose, damage])
async def test_a_head_without_its_catalog_publishes_the_next_version_and_all_get_it(root, harm):
    async with head_of(root) as head:
        for steps in range(3):
            await published(head, root, steps)
        before, home, config = signed_by(head), head.home, head.config
    harm(home)
    async with restarted(home, config) as again:
        assert signed_by(again) == before
        assert again.node.replicas[STREAM].current().version == 3
        made = await published(again, root, 3)
        assert made.slot.version == 4
        assert made.patch_bytes < made.full_bytes / 4, "a step from the version before, not a new beginning"
        assert not {attempt for version, attempt in signed_by(again) if version == 4} & {each for _, each in before}
        async with member_of(again, root) as member:
            assert read_tree((await member.committed(STREAM, 4)).path) == model(1, 3)


async def test_its_slots_may_be_gone_too(root):
    async with head_of(root) as head:
        for steps in range(2):
            await published(head, root, steps)
        home, config = head.home, head.config
    lose(home)
    shutil.rmtree(config.storage.slot_dir)
    async with restarted(home, config) as again:
        made = await published(again, root, 2)
        assert made.slot.version == 3
        async with member_of(again, root) as member:
            assert read_tree((await member.committed(STREAM, 3)).path) == model(1, 2)


async def test_it_still_knows_where_its_bases_are(root):
    async with head_of(root) as head:
        made = await published(head, root, 0, register_only=True)
        home, config = head.home, head.config
    lose(home)
    async with restarted(home, config) as again:
        kept = again.catalog.get(f"base/{made.slot.manifest.hex()}")
        assert kept == str(root / "trainer" / "0").encode()


async def test_a_publish_that_failed_is_not_remembered_by_the_log_either(root, monkeypatch):
    async with head_of(root) as head:
        await published(head, root, 0)
        with monkeypatch.context() as patch:
            patch.setattr("patchswarm.storage.slots.StreamSlots.commit_building", _full)
            with pytest.raises(OSError, match="full"):
                await published(head, root, 1)
        home, config = head.home, head.config
    lose(home)
    async with restarted(home, config) as again:
        assert {version for version, _ in signed_by(again)} == {1}
        assert (await published(again, root, 2)).slot.version == 2


def _full(*_arguments, **_options):
    raise OSError("the disk is full")


async def test_without_the_log_as_well_it_publishes_nothing_under_a_number_that_may_be_used(root):
    async with head_of(root) as head:
        await published(head, root, 0)
        home, config = head.home, head.config
    lose(home)
    log_path(home.catalog).unlink()
    shutil.rmtree(config.storage.slot_dir / STREAM / ".twin-1", ignore_errors=True)
    (config.storage.slot_dir / ".patchswarm-home").unlink()
    async with restarted(home, config) as again:
        again.node.replica(STREAM)
        with pytest.raises(RefusedError, match="not known any more"):
            await published(again, root, 1)
