"""Anchoring: whatever is forgotten as versions go by, a complete way in from nothing and from each base is kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.versions import Publisher

from patchswarm.protocol import anchoring
from patchswarm.protocol.anchoring import Anchor, due_anchors, due_renewals, registered_bases
from patchswarm.protocol.chain import plan_route
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import Route

NODE = digest(b"head")
WINDOW = 32


@pytest.fixture(autouse=True)
def short_window(monkeypatch):
    monkeypatch.setattr(anchoring, "_FAR", WINDOW * 3 // 4)


class Stream:
    """What a publisher and everyone else know of a stream, when they forget what is `WINDOW` versions old."""

    def __init__(self, *, anchor_every, full_every):
        self.options = {"anchor_every": anchor_every, "full_every": full_every}
        self.publisher = Publisher()
        self.head = b""
        self.version = 0
        self.known = []
        self.made = []

    def publish(self, kind=None, size=100):
        self.version += 1
        source = b"" if kind in (Route.FULL, Route.BASE) else self.head
        made = self.publisher.version(self.version, node=NODE, source=source, chunks=1, size=size, kind=kind)
        self.head = made.transition.target
        self.known.append(replace(made.transition, source=self.head) if kind is Route.BASE else made.transition)
        self.known = [each for each in self.known if each.version > self.version - WINDOW]
        return self.head

    def look(self):
        """What the publisher does after a commit."""
        order = (1, self.version)
        renewed = due_renewals(order, self.known)
        self.known += [replace(each, version=self.version, attempt=self._attempt()) for each in renewed]
        due = due_anchors(self.head, self.version, self.known, frozen=None, **self.options)
        for anchor in due:
            made = self.publisher.version(self.version, node=NODE, chunks=1, size=1000)
            self.known.append(replace(made.transition, kind=anchor.kind, source=anchor.source, target=self.head))
        self.made += [(self.version, anchor) for anchor in due]

    def _attempt(self):
        return self.publisher.version(self.version, node=NODE, chunks=1, size=1).attempt

    def way_from(self, *held):
        without = [each for each in self.known if not held or each.kind is not Route.FULL]
        return plan_route(frozenset(held), self.head, without, lambda each: 1)


intervals = st.sampled_from([0, 1, 7, 31])


@settings(max_examples=15)
@given(intervals, intervals, st.integers(1, 5))
def test_a_base_is_known_and_leads_in_for_ever(anchor_every, full_every, looks_every):
    stream = Stream(anchor_every=anchor_every, full_every=full_every)
    base = stream.publish(Route.BASE)
    stream.look()
    for number in range(3 * WINDOW):
        stream.publish()
        if number % looks_every == 0:
            stream.look()
        assert base in registered_bases(stream.known)
        assert stream.way_from(base)


@settings(max_examples=15)
@given(intervals, intervals, st.integers(1, 5))
def test_nothing_leads_in_for_ever_where_a_stream_began_whole(anchor_every, full_every, looks_every):
    stream = Stream(anchor_every=anchor_every, full_every=full_every)
    stream.publish(Route.FULL, size=10_000)
    for number in range(3 * WINDOW):
        stream.publish()
        if number % looks_every == 0:
            stream.look()
        assert stream.way_from()


def test_a_skip_from_a_base_is_made_as_often_as_asked_and_not_more():
    stream = Stream(anchor_every=8, full_every=0)
    base = stream.publish(Route.BASE)
    for _ in range(40):
        stream.publish()
        stream.look()
    assert stream.made == [(version, Anchor(Route.SKIP, base)) for version in (9, 17, 25, 33, 41)]


def test_a_base_that_is_the_newest_version_needs_no_way():
    stream = Stream(anchor_every=1, full_every=0)
    stream.publish(Route.BASE)
    stream.look()
    assert stream.made == []


def test_a_base_that_is_registered_twice_is_one_base():
    stream = Stream(anchor_every=4, full_every=0)
    base = stream.publish(Route.BASE)
    stream.known.append(replace(stream.known[0], version=3, attempt=bytes(16)))
    for _ in range(4):
        stream.publish()
    assert registered_bases(stream.known)[base].version == 3
    stream.look()
    assert [anchor.source for _, anchor in stream.made] == [base]


def test_a_base_of_an_earlier_epoch_is_signed_again_in_the_new_one():
    stream = Stream(anchor_every=4, full_every=0)
    stream.publish(Route.BASE)
    assert due_renewals((1, 2), stream.known) == []
    assert due_renewals((2, 1), stream.known) == stream.known


def test_who_began_whole_and_lost_every_way_in_gets_a_full_one():
    stream = Stream(anchor_every=0, full_every=0)
    stream.publish(Route.FULL)
    for _ in range(WINDOW + 1):  # the publisher had no time to look
        stream.publish()
    assert stream.way_from() is None
    stream.look()
    assert stream.made == [(stream.version, Anchor(Route.FULL, b""))]
