"""What a fleet does, told in sentences: whole nodes wired back to back, with a clock of their own."""

from collections import Counter

import pytest
from support.swarm_world import Host, Liar, World

from patchswarm.protocol.effects import Send, Serve, StreamKnown
from patchswarm.protocol.fetch import AGAIN_S
from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import REFUSING_S
from patchswarm.protocol.messages import (
    Claim,
    Have,
    Hello,
    Object,
    ObjectKind,
    Piece,
    Ping,
    Pong,
    Reason,
    Reject,
    Request,
)
from patchswarm.protocol.swarm import SILENT_S


def copies_out_of(world, version, site):
    """How often each chunk of a version left for another site than it came from, into `site`."""
    return sum(
        count
        for (name, chunk), count in world.received.items()
        if chunk in version.chunks and world.hosts[name].site == site
    )


# -- the way of a version ------------------------------------------------------------------------------------


def test_a_version_published_on_one_reaches_all():
    world = World()
    head, *_ = world.fleet(a=2, b=3, c=3)
    world.run(5)
    version = world.publish(head, chunks=24)
    world.until(lambda: world.all_have(version), 10)
    assert world.offences == []
    assert world.unanswered() == 0


def test_no_chunk_is_asked_twice_without_need():
    world = World()
    head, *others = world.fleet(a=2, b=3, c=3)
    world.run(5)
    version = world.publish(head, chunks=48)
    world.until(lambda: world.all_have(version), 10)
    world.run(5)
    assert {world.received[host.name, name] for host in others for name in version.chunks} == {1}
    assert sum(host.swarm.fetch.duplicate_bytes for host in others) == 0


def test_each_chunk_crosses_into_a_site_about_once():
    world = World()
    head, *_ = world.fleet(b=4, c=4)
    world.run(5)
    crossings = dict.fromkeys("bc", 0)
    serve = world.serve

    def counting(host, wire, request, name, *, secure):
        site = wire.other(host).site
        crossings[site] += name in version.chunks and host.site != site
        serve(host, wire, request, name, secure=secure)

    world.serve = counting
    version = world.draft(head, chunks=48, after=None)
    head.begin(version)
    head.seed_pages(version)
    head.finish(version)
    world.until(lambda: world.all_have(version), 10)
    assert all(48 <= count <= 52 for count in crossings.values()), crossings


def test_peers_fetch_while_the_head_still_encodes():
    world = World()
    head, *others = world.fleet(a=1, b=2)
    world.run(5)
    version = world.draft(head, chunks=16)
    head.begin(version)
    head.seed_pages(version, 2)
    world.run(2)
    listed = list(version.chunks)[: 2 * world.page]
    assert all(name in host.store for host in others for name in listed)
    assert not any(host.held for host in others), "only the manifest lets anyone commit"
    head.seed_pages(version)
    head.finish(version)
    world.until(lambda: world.all_have(version), 10)


def test_the_head_leaves_after_one_copy_is_out_and_the_others_finish():
    world = World()
    head, *others = world.fleet(a=1, b=3, c=3)
    world.run(5)
    version = world.publish(head, chunks=40)
    names = {*version.chunks, *version.lists}
    world.until(lambda: names <= set().union(*(host.store for host in others)), 10)
    assert not any(host.has(version) for host in others), "the head is to leave before anyone has it all"
    head.stop()
    world.until(lambda: world.all_have(version), 30)


def test_a_late_joiner_gets_everything():
    world = World()
    head, *_ = world.fleet(a=2, b=2)
    world.run(5)
    versions = [world.publish(head, chunks=6) for _ in range(5)]
    world.until(lambda: world.all_have(versions[-1]), 20)
    late = world.add("late", "b")
    world.until(lambda: late.has(versions[-1]), 20)
    assert late.held == {version.digest for version in versions}, "from nothing, over every step"


def test_a_node_that_was_away_catches_up_by_itself():
    world = World()
    head, away, *_ = world.fleet(a=2, b=2)
    world.run(5)
    first = world.publish(head)
    world.until(lambda: world.all_have(first), 10)
    away.stop()
    versions = [world.publish(head) for _ in range(3)]
    world.run(5)
    away.start()
    world.until(lambda: away.has(versions[-1]), 20)
    assert not any(world.received[away.name, name] > 1 for name in first.chunks), "what it had was not fetched again"


def test_a_node_behind_nat_receives_and_gives_over_the_connections_it_made():
    world = World()
    head = world.add("head", "a", seeds=())
    head.say([world.publisher.record()])
    world.add("nat", "b", dialable=False)
    open_host = world.add("open", "c")
    world.run(5)
    assert world.hosts["nat"].peers() == {"head", "open"}
    version = world.publish(head, chunks=20)
    world.until(lambda: world.all_have(version), 10)
    late = world.add("late", "b", seeds=("open:1",))
    head.stop()
    open_host.liar = Silence()
    world.until(lambda: late.has(version), 60)


def test_only_the_lists_and_steps_that_are_missing_are_fetched():
    world = World()
    head, follower = world.fleet(a=1)
    world.run(2)
    one = world.publish(head)
    two = world.draft(head)
    world.until(lambda: world.all_have(one), 10)
    world.received.clear()
    world.publish(head)
    world.run(5)
    assert {name for host, name in world.received if host == follower.name}.isdisjoint({*one.chunks, *two.chunks})


# -- attempts ------------------------------------------------------------------------------------------------


def test_a_retry_voids_the_earlier_attempt_and_nothing_is_left_of_it():
    world = World()
    head, *others = world.fleet(a=1, b=2)
    world.run(5)
    world.publish(head)
    failed = world.draft(head, chunks=16)
    head.begin(failed)
    head.seed_pages(failed, 2)
    world.run(3)
    assert all(name in host.store for host in others for name in list(failed.chunks)[:8])
    retried = world.publish(head)
    world.until(lambda: world.all_have(retried), 10)
    world.run(3)
    for host in world.hosts.values():
        assert not set(failed.chunks) & set(host.store), host
        assert failed.attempt not in host.swarm.fetch.stock.series
        assert host.swarm.fetch.plans.get(failed.attempt) is None


def test_a_chunk_that_arrives_after_its_attempt_was_dropped_is_not_kept():
    world = World()
    head, follower = world.fleet(b=1)
    head.uplink = 100_000.0
    world.run(5)
    failed = world.draft(head, chunks=30)
    head.begin(failed)
    head.seed_pages(failed, 3)
    world.until(lambda: world.unanswered() >= 4, 5)
    world.run(0.1)
    retried = world.publish(head)
    world.until(lambda: world.all_have(retried), 10)
    world.run(5)
    assert not set(failed.chunks) & set(follower.store)
    assert any(world.received[follower.name, name] for name in failed.chunks), "none arrived late"


def test_a_version_whose_record_is_late_survives_the_opening_of_the_next():
    """The publisher may open version 2 while the transition record of version 1 is still on the way to someone."""
    world = World()
    head, follower = world.fleet(a=1)
    world.run(2)
    one = world.draft(head, chunks=8)
    head.begin(one)
    head.seed_pages(one)
    world.run(2)
    assert set(one.chunks) <= set(follower.store)
    world.received.clear()
    (manifest_header, transition_header, manifest, transition) = one.end()
    head.say([manifest_header, transition_header, manifest])
    two = world.draft(head, after=one)
    head.begin(two)
    world.run(1)
    head.store |= one.chunks
    head.say([transition])
    world.until(lambda: one.digest in follower.held, 10)
    assert not any(world.received[follower.name, name] for name in one.chunks), "its chunks were fetched twice"


def test_objects_far_behind_the_head_are_forgotten_everywhere(monkeypatch):
    monkeypatch.setattr("patchswarm.protocol.gossip.WINDOW", 3)
    world = World()
    head, *_ = world.fleet(a=1, b=1)
    world.run(3)
    versions = [world.publish(head, chunks=2) for _ in range(6)]
    world.until(lambda: world.all_have(versions[-1], [head]), 20)
    world.run(5)
    old = versions[:3]
    for host in world.hosts.values():
        assert len(host.swarm.gossip.manifests) == 3
        assert not {each.digest for each in old} & set(host.catalog), "the catalog grows for ever"
        assert not {each.attempt for each in old} & set(host.swarm.fetch.stock.series)
        assert not {name for each in old for name in each.chunks} & set(host.store)
    lives = {host.name: len(host.catalog) for host in world.hosts.values()}
    world.run(30)
    assert {host.name: len(host.catalog) for host in world.hosts.values()} == lives


# -- damage, loss and lies -----------------------------------------------------------------------------------


class Silence(Liar):
    """Offers everything and answers no request."""

    def chunk(self, sealed, *, secure):
        return None


class DamagedLanes(Liar):
    """Whatever goes over a lane is damaged on the way."""

    def chunk(self, sealed, *, secure):
        return sealed if secure else sealed[:-1] + bytes([sealed[-1] ^ 1])


class WrongBytes(Liar):
    """Sends other bytes than were asked for, on every way."""

    def chunk(self, sealed, *, secure):
        return bytes(len(sealed))


class FalseHave(Liar):
    """Says again and again that it has everything."""

    def __init__(self, attempt, count):
        self.have = Have(attempt, ((0, count - 1),))

    def message(self, message):
        return [message, self.have] if not isinstance(message, Piece) else [message]


class AlwaysBusy(FalseHave):
    """Says that it has everything, and has no time for anyone."""

    def __init__(self, version, host):
        super().__init__(version.attempt, len(version.chunks))
        self.names, self.serving = set(version.chunks), host.swarm.fetch.serving
        self.asked, self.serving.asked = self.serving.asked, self.refuse

    def refuse(self, link, request, site, now_s):
        if request.name in self.names:
            self.serving._emit(Send(link.number, Reject(request.request, Reason.BUSY)))
        else:
            self.asked(link, request, site, now_s)


class GarbageOnLanes(AlwaysBusy):
    """Says that it has everything, and sends garbage over lanes, also when it was asked for a chunk over TLS."""

    def refuse(self, link, request, site, now_s):
        if request.name in self.names:
            self.serving._emit(Serve(link.number, request.request, request.name, False))
        else:
            self.asked(link, request, site, now_s)

    def chunk(self, sealed, *, secure):
        return bytes(len(sealed)) if digest(sealed) in self.names else sealed


class FalseClaim(Liar):
    """Claims every chunk again and again, and brings none."""

    def __init__(self, attempt, count):
        self.claim = Claim(attempt, 0, ((0, count - 1),))

    def message(self, message):
        return [message, self.claim] if isinstance(message, Ping | Have) else [message]


class Mute(Liar):
    """Says hello, and then keeps the link alive with what needs no daemon: it runs none."""

    def message(self, message):
        return [message] if isinstance(message, Hello | Ping) else []


class Lazy(Liar):
    """A border that takes part in all but the work: it asks nobody for anything."""

    def message(self, message):
        return [] if isinstance(message, Request | Have) else [message]


class SlowClock(Silence):
    """Answers pings as if a round trip took a week, to be waited for."""

    def message(self, message):
        return [Pong(0)] if isinstance(message, Pong) else [message]


@pytest.mark.parametrize("seed", range(6))
def test_every_request_is_answered_once_while_links_break_and_everyone_finishes(seed):
    world = World(seed)
    head, *_ = world.fleet(a=2, b=3, c=2)
    world.run(5)
    versions = []

    def cut_one():
        wires = sorted({id(w): w for h in world.hosts.values() for w in h.wires.values()}.values(), key=id)
        if wires and world.now_s < 1025:
            world.cut(world.random.choice(wires))
            world.later(world.random.uniform(0.01, 0.15), cut_one)

    cut_one()
    for _ in range(3):
        versions.append(world.publish(head, chunks=30))
        world.run(3)
    world.until(lambda: world.all_have(versions[-1]), 60)
    world.run(3)
    assert world.unanswered() == 0  # an answer twice, or to nobody, fails at once
    for host in world.hosts.values():
        for link in host.swarm.links.values():
            assert not link.flights, host
            assert not link.awaited, host
            assert link.inflight_bytes == 0
            assert not link.by_name
        assert host.swarm.fetch.serving.idle, host


def test_damage_on_lanes_is_asked_again_over_tls_and_blames_nobody():
    world = World()
    head, follower = world.fleet(b=1)
    head.liar = DamagedLanes()
    world.run(5)
    version = world.publish(head, chunks=12)
    world.until(lambda: world.all_have(version), 20)
    (link,) = follower.swarm.links.values()
    assert link.strikes == 0
    assert not link.damaged
    assert {world.received[follower.name, name] for name in version.chunks} == {2}


def test_who_sends_wrong_bytes_is_struck_and_the_others_are_asked():
    world = World()
    head, liar, *_ = world.fleet(b=3)
    world.run(5)
    liar.liar = WrongBytes()
    version = world.publish(head, chunks=24)
    world.until(lambda: world.all_have(version), 30)
    strikes = dict.fromkeys(world.hosts, 0)
    for host in world.hosts.values():
        for link in host.swarm.connected():
            strikes[world.by_node[link.node].name] += link.strikes
    assert strikes.pop(liar.name) > 0
    assert set(strikes.values()) == {0}


def test_a_peer_that_offers_what_it_has_not_is_soon_asked_no_more():
    world = World()
    head, liar, *_ = world.fleet(b=3)
    world.run(5)
    version = world.draft(head, chunks=40)
    liar.liar = FalseHave(version.attempt, 40)
    liar.store.clear()
    asked_before = world.asked_of[liar.name]
    head.begin(version)
    head.seed_pages(version)
    head.finish(version)
    honest = [host for host in world.hosts.values() if host is not liar]
    world.until(lambda: world.all_have(version, honest), 30)
    assert world.asked_of[liar.name] - asked_before < 400


def test_a_silent_peer_delays_its_chunks_and_nothing_else():
    world = World()
    head, silent, *_ = world.fleet(b=3)
    world.run(5)
    silent.liar = Silence()
    version = world.publish(head, chunks=40)
    took = world.until(lambda: world.all_have(version), 60)
    assert took < 20


def test_a_member_that_runs_no_daemon_is_dealt_nothing():
    world = World()
    head, mute, *honest = world.fleet(b=4)
    mute.liar = Mute()
    world.run(5)
    assert all("b0" in host.peers() for host in honest), "it is linked"
    version = world.publish(head, chunks=40)
    assert world.until(lambda: world.all_have(version, honest), 30) < 1.5


def test_for_a_border_that_does_nothing_its_site_waits_once_and_three_times_at_most():
    world = World()
    head, lazy, *honest = world.fleet(b=4)
    world.run(5)
    lazy.liar = Lazy()
    took = []
    for _ in range(4):
        version = world.publish(head, chunks=12)
        took.append(world.until(lambda version=version: world.all_have(version, honest), 30))
        world.run(1)
    assert max(took) < 10
    assert took[-1] < 2, took


def test_nobody_waits_for_the_deadline_of_a_peer_that_lies_about_its_round_trip():
    world = World()
    head, *_ = world.fleet(b=1)
    slow = world.add("slow", "c")
    slow.liar = SlowClock()
    world.run(20)
    version = world.publish(head, chunks=20)
    world.until(lambda: slow.has(version), 30)
    late = world.add("late", "c", seeds=("slow:1", "head:1"))
    world.until(lambda: late.has(version), 90)


@pytest.mark.parametrize("sites", [{"b": 3}, {"b": 2, "c": 2}])
def test_who_claims_everything_and_brings_nothing_only_delays(sites):
    world = World()
    head, liar, *_ = world.fleet(**sites)
    world.run(5)
    version = world.draft(head, chunks=40)
    liar.liar = FalseClaim(version.attempt, 40)
    head.begin(version)
    head.seed_pages(version)
    head.finish(version)
    world.until(lambda: world.all_have(version), 60)


def test_what_is_asked_for_at_one_time_fits_the_memory():
    world = World(inflight_limit=100_000)
    head, *others = world.fleet(a=3, b=1)
    world.run(5)
    most = 0

    def look():
        nonlocal most
        most = max(most, *(sum(link.inflight_bytes for link in host.swarm.links.values()) for host in others))
        return world.all_have(version)

    version = world.publish(head, chunks=60)
    world.until(look, 30)
    assert 100_000 <= most < 100_000 + 40_000  # one chunk more


def test_a_peer_that_answers_nothing_for_long_is_hung_up_on():
    world = World()
    head, follower = world.fleet(a=1)
    world.run(5)
    head.liar = Silence()
    world.publish(head)
    world.run(2)
    assert follower.peers() == {"head"}
    world.until(lambda: world.hangups[follower.name] > 0, 120)


# -- links ---------------------------------------------------------------------------------------------------


def test_simultaneous_dials_end_in_one_link():
    world = World()
    head = world.add("head", seeds=())
    other = world.add("other", seeds=())
    world.connect(head, other, "other:1")
    world.connect(other, head, "head:1")
    world.run(5)
    assert [wire.open for wire in head.wires.values()] == [True]
    assert [wire.open for wire in other.wires.values()] == [True]
    assert head.peers() == {"other"}
    assert world.hangups["head"] + world.hangups["other"] <= 4


def test_two_nodes_that_are_each_others_seed_settle_on_one_link_and_stay_so():
    world = World()
    world.add("head", seeds=("other:1",))
    world.add("other", seeds=("head:1",))
    world.run(5)
    hangups = sum(world.hangups.values())
    world.run(120)
    assert sum(world.hangups.values()) == hangups, "they go on dialling each other"
    assert world.hosts["head"].peers() == {"other"}


def test_a_silent_link_is_found_dead_within_seconds():
    world = World()
    head, _ = world.fleet(a=1)
    world.run(3)
    (wire,) = head.wires.values()
    world._arrive = lambda host, wire, act: None  # everything is swallowed from now on
    world.run(SILENT_S + 2)
    assert not wire.open


def test_a_link_that_is_only_slow_to_answer_lives():
    world = World()
    head, other = world.fleet(a=1)
    world.run(3)
    world.delay_s = lambda wire: 2.0  # a stall, of the path or of the host
    world.run(60)
    assert world.hangups[head.name] == world.hangups[other.name] == 0


def test_an_idle_fleet_says_little():
    world = World()
    hosts = world.fleet(a=7, b=7, c=7)
    world.run(60)
    words = Counter()
    send = world.send

    def count(host, wire, message):
        words[host.name] += 1
        send(host, wire, message)

    world.send = count
    world.run(60)
    peers = len(hosts) - 1
    assert max(words.values()) < 60 * peers, "words a second of one node: less than one to each peer"
    assert all(len(host.peers()) == peers for host in hosts), "and yet every link is known to live"


def test_a_fleet_is_fully_connected_within_seconds():
    world = World()
    hosts = world.fleet(a=3, b=3, c=3)
    world.run(5)
    names = {host.name for host in hosts}
    assert all(host.peers() == names - {host.name} for host in hosts)


def test_nodes_find_each_other_again_after_the_only_seed_was_away():
    world = World()
    head, *others = world.fleet(a=1, b=2)
    world.run(5)
    for host in others:
        host.stop()
    head.stop()
    world.run(5)
    for host in others:
        host.start()
    world.run(3)
    head.start()
    world.until(lambda: all(len(host.peers()) == 3 for host in world.hosts.values()), 40)


def test_a_restarted_node_takes_its_old_place_at_once():
    world = World()
    head, other = world.fleet(a=1)
    world.run(3)
    other.alive = False  # killed: its links do not notice
    other.wires.clear()
    other.start()
    world.run(3)
    assert other.peers() == {"head"}
    assert sum(link.node == other.node for link in head.swarm.connected()) == 1


def test_an_earlier_life_of_a_node_is_not_let_in_and_told_what_is_known_of_it():
    world = World()
    _, other = world.fleet(a=1)
    world.run(3)
    other.serial = -1
    other.alive = False
    other.wires.clear()
    other.catalog.clear()
    other.start()
    world.run(3)
    assert not other.peers()
    assert other.rivals == {(1).to_bytes(16, "big")}
    other.serial = 10
    other._announce()
    world.run(20)
    assert other.peers() == {"head"}
    assert world.offences == []


# -- rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Request(0, bytes(32)),
        Object(ObjectKind.NODE, bytes(100)),
        Have(bytes(16), ((2**20, 2**20),)),
        Have(bytes(16), ((0, 2**31),)),
        Have(bytes(16), ((2**31, 2**31 + 5000),)),
    ],
)
def test_what_breaks_a_rule_costs_its_sender_the_link(message):
    world = World()
    _, other = world.fleet(a=1)
    world.run(3)
    (wire,) = other.wires.values()
    if isinstance(message, Request):  # no rule is broken: a chunk that is not here is rejected
        world.send(other, wire, message)
        world.run(1)
        assert world.offences == []
        assert world.unanswered() == 0
    else:
        world.send(other, wire, message)
        world.run(0.5)
        assert [(who, whom) for who, whom, _ in world.offences] == [("head", other.name)]


def test_a_requester_is_told_busy_when_four_copies_are_under_way_and_gets_it_later():
    world = World()
    head = world.add("head", seeds=(), uplink=100_000.0)
    head.say([world.publisher.record()])
    for number in range(8):
        world.add(f"host{number}", "a")
    world.run(5)
    version = world.publish(head, chunks=1)
    world.until(lambda: world.all_have(version), 30)
    assert digest(next(iter(version.chunks.values()))) in version.chunks


def test_what_a_mate_has_no_time_for_is_asked_for_a_moment_later_with_all_else(monkeypatch):
    """Until then somebody else may say that it is there, too: who looks at each refusal looks in vain most times."""
    world = World()
    head = world.add("head", seeds=(), uplink=100_000.0)
    head.say([world.publisher.record()])
    for number in range(8):
        world.add(f"host{number}", "a", uplink=1_000_000.0)
    world.run(5)
    hear, refused = Host.hear, 0

    def hear_and_look(self, wire, message):
        nonlocal refused
        requests = sum(world.requests.values())
        hear(self, wire, message)
        if isinstance(message, Reject) and message.reason is Reason.BUSY and wire.other(self).name != "head":
            assert sum(world.requests.values()) == requests
            assert self.swarm.wake_s() <= world.now_s + AGAIN_S
            refused += 1

    monkeypatch.setattr(Host, "hear", hear_and_look)
    version = world.publish(head, chunks=16)
    world.until(lambda: world.all_have(version), 30)
    assert refused > 16


def test_a_mate_that_says_it_has_all_and_is_always_busy_is_waited_for_no_longer_than_that():
    world = World()
    head, liar, *honest = world.fleet(b=3)
    world.run(5)
    first = world.publish(head, chunks=24)
    world.until(lambda: world.all_have(first), 30)
    version = world.draft(head, chunks=40)
    liar.liar = AlwaysBusy(version, liar)
    head.begin(version)
    world.run(1.2)
    head.seed_pages(version)
    head.finish(version)
    assert world.until(lambda: world.all_have(version, honest), 30) < REFUSING_S + 5


def test_who_answers_over_a_lane_what_was_asked_for_over_tls_is_to_blame_for_what_comes():
    world = World()
    head, liar, *honest = world.fleet(b=3)
    world.run(5)
    version = world.draft(head, chunks=40)
    liar.liar = GarbageOnLanes(version, liar)
    liar.store.update(version.chunks)
    head.begin(version)
    world.run(1.2)
    head.seed_pages(version)
    head.finish(version)
    world.until(lambda: world.all_have(version, honest), 10)
    assert world.asked_of[liar.name] < 3 * len(version.chunks), "it is benched before it has wasted much"
    assert any(link.strikes for host in honest for link in host.swarm.connected() if link.node == liar.node)


def test_a_head_gets_back_what_it_has_lost():
    world = World()
    head, *_ = world.fleet(a=2, b=2)
    world.run(5)
    version = world.publish(head, chunks=12)
    world.until(lambda: world.all_have(version), 30)
    world.run(1)
    gone = list(version.chunks)[5]
    del head.store[gone]
    fetch = head.swarm.fetch
    fetch.routing.restore("qwen", fetch.stock.whole_with("qwen", frozenset([gone])))
    fetch.rescan("qwen", world.now_s)
    head.act()
    world.until(lambda: gone in head.store, 10)


def test_who_wants_only_the_lists_asks_again_where_they_were_refused(monkeypatch):
    do = Host._do

    def lists_only(self, effect):
        if isinstance(effect, StreamKnown) and self.name != "head":
            self.swarm.fetch.hold(effect.stream, self.held, lists_first=True, now_s=self.world.now_s)
            self.act()
        else:
            do(self, effect)

    monkeypatch.setattr(Host, "_do", lists_only)
    world = World()
    head = world.add("head", "a", seeds=(), uplink=300.0)
    head.say([world.publisher.record()])
    version = world.publish(head, chunks=12)
    world.run(1)
    hosts = [world.add(f"host{number}", "a", dialable=False) for number in range(6)]  # linked to the head alone
    world.until(lambda: all(version.lists.keys() <= host.store.keys() for host in hosts), 60)
