"""Sites of nodes that were given none."""

import pytest
from support.swarm_world import World

from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.manifest import NodeRecord
from patchswarm.protocol.sites import NEAR_S, PREFIX, label_of


def link(site, rtt_s):
    record = NodeRecord(bytes(32), bytes(16), 1, site, (), (), b"")
    return Link(0, bytes(32), bytes(32), True, 0.0, 0.0, record, min_rtt_s=rtt_s)


ME = digest(b"me")
OWN = PREFIX + ME[:5].hex()


def test_alone_it_is_its_own_site():
    assert label_of(ME, "", []) == OWN


def test_it_takes_the_least_label_of_those_near():
    near, far = link(PREFIX + "0", NEAR_S / 2), link(PREFIX + "00", NEAR_S * 2)
    assert label_of(ME, OWN, [near, far]) == min(OWN, PREFIX + "0")


def test_labels_that_people_gave_are_not_taken():
    assert label_of(ME, OWN, [link("a", 0.0001)]) == OWN


def test_a_label_stays_when_the_node_that_it_came_from_has_left():
    assert label_of(ME, PREFIX + "0", []) == PREFIX + "0"


def test_a_peer_whose_round_trip_is_not_known_yet_says_nothing():
    assert label_of(ME, OWN, [link(PREFIX + "0", None)]) == OWN


@pytest.mark.parametrize("count", [2, 5])
def test_a_cluster_without_labels_settles_on_one(count):
    world = World(lan_s=0.001, wan_s=0.001)
    world.add("head", "", seeds=()).say([world.publisher.record()])
    for number in range(count):
        world.add(f"n{number}", "")
    world.run(15)
    assert len({host.swarm.fetch.site for host in world.hosts.values()}) == 1
    assert len({record.site for host in world.hosts.values() for record in host.swarm.gossip.nodes.values()}) == 1
    version = world.publish(world.hosts["head"])
    world.until(lambda: world.all_have(version), 10)
