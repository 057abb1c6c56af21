"""Blocks: asked of who holds them, a few at a time, elsewhere when one fails, and given up when nobody is left."""

from types import SimpleNamespace

import pytest

from patchswarm.protocol.blocks import BLOCKS_PER_LINK, SERVED_PER_LINK, SILENCE_S, Blocks
from patchswarm.protocol.effects import Send, ServeBlock
from patchswarm.protocol.link import Link
from patchswarm.protocol.manifest import Head, NodeRecord
from patchswarm.protocol.messages import BlockReject, BlockRequest, Reason

MANIFEST = b"m" * 32
HOLDS, HOLDS_TOO, EMPTY = 0, 1, 2


def record(number, *manifests):
    heads = tuple(Head("s", 1, 1, manifest) for manifest in manifests)
    return NodeRecord(bytes((number,)) * 32, bytes(16), 1, "a" if number else "b", (), heads, b"")


class World:
    """One node with three peers, two of which hold the version."""

    def __init__(self):
        self.sent = []
        held = {HOLDS: (MANIFEST,), HOLDS_TOO: (MANIFEST,), EMPTY: ()}
        self.links = {
            number: Link(number, bytes((number,)) * 32, bytes((number,)), True, 0.0, 0.0, record(number, *manifests))
            for number, manifests in held.items()
        }
        gossip = SimpleNamespace(nodes={link.node: link.record for link in self.links.values()})
        self.blocks = Blocks(gossip, self.links, self.sent.append, "a")

    def requests(self):
        """(link, request, block) of the requests sent since the last call."""
        sent, self.sent[:] = self.sent[:], []
        return [(each.link, each.message.request, each.message.block) for each in sent]


@pytest.fixture
def world():
    return World()


def test_the_nearest_holder_is_asked_first_and_each_for_a_few_at_a_time(world):
    world.blocks.want(MANIFEST, range(100), 0.0)
    asked = world.requests()
    assert [link for link, _, _ in asked[:BLOCKS_PER_LINK]] == [HOLDS_TOO] * BLOCKS_PER_LINK
    assert len(asked) == 3 * BLOCKS_PER_LINK
    assert [block for _, _, block in asked] == list(range(3 * BLOCKS_PER_LINK))


def test_a_block_that_comes_makes_room_for_the_next(world):
    world.blocks.want(MANIFEST, range(100), 0.0)
    link, request, _ = world.requests()[0]
    world.blocks.arrived(link, request, 1.0, good=True)
    assert [(to, block) for to, _, block in world.requests()] == [(link, 3 * BLOCKS_PER_LINK)]


@pytest.mark.parametrize("how", ["rejected", "wrong", "silent", "gone"])
def test_what_one_peer_fails_to_bring_is_asked_of_another(world, how):
    world.blocks.want(MANIFEST, [7], 0.0)
    [(link, request, _)] = world.requests()
    if how == "rejected":
        world.blocks.receive(world.links[link], BlockReject(request, Reason.MISSING), 1.0)
    elif how == "wrong":
        world.blocks.arrived(link, request, 1.0, good=False)
    elif how == "silent":
        world.blocks.tick(SILENCE_S + 1.0)
    else:
        world.blocks.lost(world.links.pop(link), 1.0)
    [(other, _, block)] = world.requests()
    assert (other != link, block) == (True, 7)


def test_when_everybody_refused_the_block_is_given_up(world):
    world.blocks.want(MANIFEST, [7], 0.0)
    for _ in range(3):
        assert world.blocks.given_up(MANIFEST) == set()
        [(link, request, _)] = world.requests()
        world.blocks.receive(world.links[link], BlockReject(request, Reason.MISSING), 1.0)
    assert world.requests() == []
    assert world.blocks.given_up(MANIFEST) == {7}
    world.blocks.unwant(MANIFEST)
    world.blocks.want(MANIFEST, [7], 2.0)
    assert len(world.requests()) == 1, "a later try asks them all again"


def test_a_reject_that_answers_nothing_changes_nothing(world):
    world.blocks.want(MANIFEST, [7], 0.0)
    world.requests()
    world.blocks.receive(world.links[EMPTY], BlockReject(12345, Reason.MISSING), 1.0)
    assert world.requests() == []


def test_a_peer_that_asks_for_too_much_at_a_time_is_rejected(world):
    link = world.links[EMPTY]
    for number in range(SERVED_PER_LINK + 1):
        world.blocks.receive(link, BlockRequest(number, MANIFEST, number), 0.0)
    sent, world.sent[:] = world.sent[:], []
    assert sent[:-1] == [ServeBlock(EMPTY, number, MANIFEST, number) for number in range(SERVED_PER_LINK)]
    assert sent[-1] == Send(EMPTY, BlockReject(SERVED_PER_LINK, Reason.BUSY))
    world.blocks.served(EMPTY)
    world.blocks.receive(link, BlockRequest(99, MANIFEST, 1), 0.0)
    assert world.sent == [ServeBlock(EMPTY, 99, MANIFEST, 1)]
