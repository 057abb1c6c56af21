"""Stock: which chunks exist, as pages and openings tell, in whatever order they come."""

import pytest
from support.versions import Publisher, raw

from patchswarm.protocol.early import EARLY_BYTES
from patchswarm.protocol.gossip import Gossip
from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.manifest import IndexPage
from patchswarm.protocol.messages import Have
from patchswarm.protocol.signed import sign
from patchswarm.protocol.stock import Stock

NODE = digest(b"node")
PEER = Link(7, bytes(32), digest(b"peer"), True, 0.0, 0.0)


@pytest.fixture
def publisher():
    return Publisher()


@pytest.fixture
def version(publisher):
    return publisher.version(1, node=NODE, chunks=6, page=2)


@pytest.fixture
def stock(publisher):
    """The stock of a node that knows the stream and nothing else."""
    gossip = Gossip(raw(publisher.ca))
    gossip.learn(*publisher.record())
    return Stock(gossip, {}, lambda _: None, lambda _: False)


def test_pages_that_come_before_their_opening_are_kept_for_it(stock, version):
    for page in version.pages:
        assert stock.add_page(page, PEER.number, 0.0) is None
    stock.describe(version.opening, 0.0)
    assert stock.series[version.attempt].named == 0b111111


def test_a_page_that_somebody_else_has_signed_is_dropped_and_blames_nobody_who_sent_the_opening(stock, version):
    page = IndexPage("qwen", version.attempt, 0, 0, bytes(36))
    stock.add_page(sign(page, Publisher(epoch=2).key), PEER.number, 0.0)
    stock.add_page(version.pages[1], PEER.number, 0.0)
    stock.describe(version.opening, 0.0)
    assert stock.series[version.attempt].named == 0b1100


def test_what_one_peer_says_too_early_is_bounded_and_goes_with_its_link(stock, publisher, version):
    others = [
        publisher.version(1, node=NODE, chunks=2, page=2) for _ in range(2 + EARLY_BYTES // len(version.pages[0]))
    ]
    stock.add_page(version.pages[0], PEER.number, 0.0)
    stock.add_page(version.pages[1], PEER.number + 1, 0.0)
    for other in others:
        stock.add_page(other.pages[0], PEER.number, 0.0)
    stock.describe(version.opening, 0.0)
    assert stock.series[version.attempt].named == 0b1100, "the oldest went, of that peer's own"
    stock.describe(others[-1].opening, 0.0)
    assert stock.series[others[-1].attempt].named == 0b11
    stock.lost(PEER)
    stock.describe(others[-2].opening, 0.0)
    assert stock.series[others[-2].attempt].named == 0


def test_what_a_benched_peer_says_it_has_is_told_to_it_all_the_same(publisher, version):
    said = []
    gossip = Gossip(raw(publisher.ca))
    gossip.learn(*publisher.record())
    link = Link(7, bytes(32), digest(b"peer"), True, 0.0, 0.0)
    link.record = object()
    stock = Stock(gossip, {7: link}, said.append, lambda _: False)
    stock.describe(version.opening, 0.0)
    for page in version.pages:
        stock.add_page(page, -1, 0.0)
    first, second, *_ = version.chunks
    link.offers.remember(version.attempt, ((0, 5),))

    def told():
        stock.say()
        found = [each.message.ranges for each in said if isinstance(each.message, Have)]
        said.clear()
        return found

    stock.stored(first, 1.0)
    assert told() == []
    link.strike(2.0)
    stock.stored(second, 2.0)
    assert told() == [((0, 1),)], "what was kept from it before, too"
    stock.stored(second, 2.0)
    assert told() == []
