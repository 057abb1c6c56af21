"""The ways in that a publisher keeps, in whole daemons: however old a base is, who has it gets in by a skip."""

import shutil
from functools import partial

import msgspec
import pytest
from daemon.nodes import Head, make_head, make_member
from daemon.single import Single, head_of, until
from structlog.testing import CapturingLogger
from support.streams import model, read_tree, write_tree

from patchswarm.daemon import anchors
from patchswarm.daemon.config import Stream
from patchswarm.protocol import anchoring, gossip
from patchswarm.protocol.anchoring import due_renewals
from patchswarm.protocol.manifest import Route
from patchswarm.storage.errors import NoSpaceError
from patchswarm.storage.space import Space

STREAM = "qwen"
WINDOW = 12


@pytest.fixture(autouse=True)
def short_window(monkeypatch):
    """What is so many versions old is forgotten by everyone."""
    monkeypatch.setattr(gossip, "WINDOW", WINDOW)
    monkeypatch.setattr(anchoring, "_FAR", WINDOW // 2)


async def published(head, root, steps):
    """Publish a step; the publisher has signed every base again that is about to be forgotten."""
    made = await head.publish(STREAM, write_tree(root / "trainer" / str(steps), model(1, steps)))
    await until(lambda: not due_renewals(made.slot.order, head.fleet.swarm.gossip.routes(STREAM)))
    return made


def way_from(head, base, made):
    known = [each for each in head.fleet.swarm.gossip.routes(STREAM) if each.kind is not Route.FULL]
    return anchoring.plan_route(frozenset((base,)), made.slot.manifest, known, lambda _: 1)


async def test_a_host_with_a_base_that_is_older_than_anyone_remembers_gets_in(root):
    async with head_of(root) as head:
        directory = write_tree(root / "trainer" / "0", model(1, 0))
        registered = await head.publish(STREAM, directory, register_only=True)
        for steps in range(1, 3 * WINDOW):
            made = await published(head, root, steps)
            await until(partial(way_from, head, registered.slot.manifest, made))
        assert registered.slot.manifest not in head.fleet.swarm.gossip.manifests, "the base's own manifest is forgotten"
        home = make_member(Head(head.home, head.config, head.identity), root / "member")
        config = msgspec.structs.replace(
            head.config,
            node=msgspec.structs.replace(
                head.config.node, site="b", listen="", advertise=(), seeds=(head.config.node.listen,)
            ),
            local=msgspec.structs.replace(head.config.local, socket=home.root / "s"),
            storage=msgspec.structs.replace(head.config.storage, slot_dir=home.root / "slots"),
            stream={STREAM: Stream(base=directory)},
        )
        async with Single(home, config).running() as late:
            slot = await late.committed(STREAM, made.slot.version)
            assert read_tree(slot.path) == model(1, 3 * WINDOW - 1)
            kinds = {each.transition.kind for each in late.fleet.swarm.fetch.stock.series.values() if each.have.data}
            assert Route.SKIP in kinds
            assert Route.FULL not in kinds


async def test_a_base_whose_files_are_gone_is_said_once_and_a_full_transition_is_made_all_the_same(root, monkeypatch):
    monkeypatch.setattr(anchors, "_log", log := CapturingLogger())
    made = make_head(root / "head")
    config = msgspec.structs.replace(made.config, stream={STREAM: Stream(anchor_every=1, full_every=8)})
    async with Single(made.home, config).running() as head:
        base = write_tree(root / "trainer" / "0", model(1, 0))
        await head.publish(STREAM, base, register_only=True)
        shutil.rmtree(base)
        for steps in range(1, WINDOW):
            await published(head, root, steps)
        await until(lambda: any(each.kind is Route.FULL for each in head.fleet.swarm.gossip.routes(STREAM)))
        assert [each.args for each in log.calls if each.method_name == "error"] == [("no skip from a base",)]


async def test_an_anchor_that_there_is_no_room_for_is_not_begun_and_made_when_there_is(root, monkeypatch):
    monkeypatch.setattr(anchors, "RETRY_S", 0.05)
    made = make_head(root / "head")
    config = msgspec.structs.replace(made.config, stream={STREAM: Stream(anchor_every=0, full_every=3)})
    async with Single(made.home, config).running() as head:
        asked, reserve, room = [], Space.reserve, 0

        def watched(self, folder, size_bytes, what):
            if what.startswith("an anchor"):
                asked.append(size_bytes)
                if size_bytes > room:
                    raise NoSpaceError("the disk is full")
            return reserve(self, folder, size_bytes, what)

        monkeypatch.setattr(Space, "reserve", watched)
        for steps in range(WINDOW // 2):
            last = await published(head, root, steps)
        await until(lambda: last.full_bytes in asked)
        assert fulls(head) == [1]
        room = last.full_bytes
        await until(lambda: fulls(head) == [1, last.slot.version])


def fulls(head):
    """Versions that a full transition leads to."""
    return sorted(each.version for each in head.fleet.swarm.gossip.routes(STREAM) if each.kind is Route.FULL)
