"""Dialling: whom, when, and when again."""

import itertools
import random

import pytest

from patchswarm.protocol.dialer import (
    DIALS_PER_TURN,
    ENOUGH,
    FIRST_RETRY_S,
    HEAD_START_S,
    LAST_RETRY_S,
    Dialer,
)
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import NodeRecord

ME = b"m" * 32
LOW, HIGH = b"a" * 32, b"z" * 32


def record(*addresses):
    return NodeRecord(bytes(32), bytes(16), 1, "a", addresses, (), b"")


class Scene:
    """A dialer that wants to be linked to everyone it knows."""

    def __init__(self, *seeds, nodes=None, back=False):
        self.dialer = Dialer(seeds, random.Random(1))
        self.nodes = {}
        self.connected = set()
        self.now_s = 100.0
        if not back and not seeds:
            self.due()  # it has been here for a while
        self.nodes = nodes or {}

    def due(self, after_s=0.0):
        self.now_s += after_s
        wanted = set(self.nodes) - {ME}
        return self.dialer.due(self.nodes, ME, wanted, self.connected, self.now_s)


def test_seeds_are_dialled_at_once_and_only_once_at_a_time():
    scene = Scene("one:1", "two:1")
    assert scene.due() == ["one:1", "two:1"]
    assert scene.due(60) == []


def test_what_failed_is_tried_at_once_when_a_neighbour_was_reached():
    scene = Scene("one:1", "two:1")
    scene.due()
    for address in ("one:1", "two:1"):
        for _ in range(8):
            scene.dialer.failed(address, scene.now_s)
    scene.dialer.reachable(["two:1", "nobody:1"], scene.now_s)
    assert scene.due() == ["two:1"]
    scene.dialer.reachable(["two:1"], scene.now_s)
    assert scene.due() == [], "it is being dialled"


def test_who_is_left_the_first_dial_keeps_it_whoever_was_reached():
    scene = Scene(nodes={ME: record("me:1"), LOW: record("low:1")})
    assert scene.due() == []
    scene.dialer.reachable(["low:1"], scene.now_s)
    assert scene.due(HEAD_START_S / 2) == []


def test_a_failed_dial_is_tried_again_later_each_time():
    scene = Scene("seed:1")
    waits = []
    for _ in range(12):
        assert scene.due() == ["seed:1"]
        scene.dialer.failed("seed:1", scene.now_s)
        began = scene.now_s
        while not (due := scene.due()):
            scene.now_s += 0.05
        waits.append(scene.now_s - began)
        scene.dialer._tries["seed:1"].dialling = False
        assert due == ["seed:1"]
    assert waits[0] <= FIRST_RETRY_S + 0.1
    assert LAST_RETRY_S / 2 <= waits[-1] <= LAST_RETRY_S + 0.1
    assert all(later > earlier / 2.1 for earlier, later in itertools.pairwise(waits))


def test_a_dial_that_worked_starts_the_waits_anew():
    scene = Scene("seed:1")
    for _ in range(6):
        scene.due()
        scene.dialer.failed("seed:1", scene.now_s)
        scene.now_s += 100
    scene.due()
    scene.dialer.worked("seed:1", LOW)
    scene.dialer.failed("seed:1", scene.now_s)  # its connection ended
    assert scene.due(FIRST_RETRY_S) == ["seed:1"]


def test_seeds_are_left_alone_once_there_are_links_enough():
    scene = Scene("seed:1")
    scene.connected = {digest(b"%d" % number) for number in range(ENOUGH)}
    assert scene.due() == []


def test_a_seed_is_not_dialled_while_the_node_behind_it_is_connected():
    scene = Scene("seed:1")
    scene.due()
    scene.dialer.worked("seed:1", LOW)
    scene.dialer.failed("seed:1", scene.now_s)
    scene.connected = {LOW}
    assert scene.due(60) == []


def test_the_smaller_id_dials_at_once_and_the_other_waits_a_little():
    scene = Scene(nodes={ME: record("me:1"), LOW: record("low:1"), HIGH: record("high:1")})
    assert scene.due() == ["high:1"]
    assert scene.due(HEAD_START_S) == ["low:1"]


def test_a_node_that_has_come_back_dials_everyone_at_once():
    nodes = {ME: record("me:1"), LOW: record("low:1"), HIGH: record("high:1")}
    scene = Scene(nodes=nodes, back=True)
    assert set(scene.due()) == {"low:1", "high:1"}


def test_a_node_that_cannot_be_dialled_dials_everyone_at_once():
    scene = Scene(nodes={ME: record(), LOW: record("low:1"), HIGH: record("high:1")})
    assert sorted(scene.due()) == ["high:1", "low:1"]


def test_a_node_does_not_dial_itself():
    scene = Scene("me:1", nodes={ME: record("me:1")})
    assert scene.due() == []


def test_one_address_of_a_node_is_tried_at_a_time():
    scene = Scene(nodes={ME: record(), HIGH: record("wan:1", "lan:1")})
    assert scene.due() == ["wan:1"]
    assert scene.due(30) == []
    scene.dialer.failed("wan:1", scene.now_s)
    assert scene.due() == ["lan:1"]
    scene.dialer.worked("lan:1", HIGH)
    scene.connected = {HIGH}
    assert scene.due(60) == []


def test_a_seed_and_the_address_its_node_gives_are_not_dialled_together():
    scene = Scene("seed:1")
    scene.due()
    scene.dialer.worked("seed:1", HIGH)
    scene.dialer.failed("seed:1", scene.now_s)
    scene.nodes = {ME: record(), HIGH: record("own:1")}
    assert len(scene.due(60)) == 1


def test_dials_go_out_a_few_at_a_time():
    nodes = {digest(b"%d" % number): record(f"host{number}:1") for number in range(50)}
    scene = Scene(nodes=nodes)
    assert len(scene.due()) == DIALS_PER_TURN
    assert len(scene.due()) == DIALS_PER_TURN


def test_addresses_that_nobody_has_any_more_are_forgotten():
    scene = Scene("seed:1", nodes={ME: record()})
    for number in range(20):
        scene.nodes[HIGH] = record(f"moved{number}:1")
        for address in scene.due(60):
            scene.dialer.failed(address, scene.now_s)
    assert len(scene.dialer._tries) <= 3


@pytest.mark.parametrize("count", [1, 3])
def test_nobody_is_dialled_who_is_connected(count):
    nodes = {digest(b"%d" % number): record(f"host{number}:1") for number in range(5)}
    scene = Scene(nodes=nodes)
    scene.connected = set(list(nodes)[:count])
    assert len(scene.due()) == 5 - count


@pytest.mark.parametrize("order", [(LOW, HIGH), (HIGH, LOW)])
def test_a_node_whose_address_another_claims_is_dialled_all_the_same(order):
    """Who is connected and says that it is at somebody else's address keeps nobody from dialling that one."""
    nodes = {ME: record("me:1"), LOW: record("low:1"), HIGH: record("low:1")}
    dialer = Dialer([], random.Random(1))
    assert dialer.due(nodes, ME, dict.fromkeys(order).keys(), {HIGH}, 0.0) == ["low:1"]
