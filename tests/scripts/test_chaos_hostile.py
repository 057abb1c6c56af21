"""scripts/chaos_hostile without its lab: what it is held against, and that its attacks are attacks."""

import asyncio
import time

import pytest
from daemon.nodes import Head, make_member
from daemon.single import head_of, short_path
from targets import MISSED, exit_code
from wanlab.attacker import ATTACKS, Attacker
from wanlab.hostile import ALL, QUIET, WAYS, Round, Way, targets
from wanlab.member import LIES, Lies
from wanlab.witness import Witnesses

MIB = 2**20
HONEST = 6


def round_of(way, last_s, **other):
    figures = {"last": "b1", "complete": HONEST, "memory_bytes": 100 * MIB, "wrong_senders": 0, "hung_up": 0}
    return Round(way, last_s, **(figures | other))


CALM = [round_of(QUIET.name, 2.0), round_of(QUIET.name, 4.0), round_of(QUIET.name, 9.0)]


def test_a_fleet_that_minds_nothing_meets_the_targets():
    assert exit_code(targets([*CALM, round_of("x", 6.0)], HONEST)) == 0


@pytest.mark.parametrize(
    "bad",
    [
        round_of("x", 6.1),
        round_of("x", 4.0, complete=HONEST - 1),
        round_of("x", 4.0, wrong_senders=1),
        round_of("x", 4.0, memory_bytes=800 * MIB),
    ],
    ids=["slower than 1.5 times the median without", "one left out", "wrong bytes passed on", "memory"],
)
def test_each_figure_can_miss(bad):
    found = targets([*CALM, bad], HONEST)
    assert exit_code(found) == MISSED
    assert sum(not target.met for target in found) == 1


def test_every_lie_and_every_attack_has_a_round_and_all_have_one_together():
    assert {lie for way in WAYS for lie in way.lies.split()} == LIES.keys()
    assert {attack for way in WAYS for attack in way.attacks} == ATTACKS.keys()
    assert set(ALL.attacks) == ATTACKS.keys()
    assert isinstance(ALL, Way)
    assert ALL.daemon


def test_a_member_lies_for_as_long_as_it_is_told_to(tmp_path):
    (tmp_path / "x.witness").mkdir()
    witnesses, lies = Witnesses(tmp_path, {}), Lies(tmp_path / "x.witness" / "lies")
    assert "wrong" not in lies
    for told in ("wrong have", "", "stall"):
        witnesses.set_lies("x", told)
        lies._looked_s = -1.0
        assert {lie for lie in LIES if lie in lies} == set(told.split())
    with pytest.raises(ValueError, match="no such lie: wrogn"):
        witnesses.set_lies("x", "wrogn")


@pytest.fixture
async def head():
    with short_path() as root:
        async with head_of(root) as running:
            yield running


async def attacked(head, root, attack, until, within_s=20.0):
    """Carry out an attack on a head until something holds; the attacker."""
    home = make_member(Head(head.home, head.config, head.identity), root)
    attacker = Attacker(home)
    attacking = asyncio.create_task(attacker.keep_on(attack, head.config.node.listen))
    try:
        deadline_s = time.monotonic() + within_s
        while not until(attacker):
            assert not attacking.done(), attacking.exception()
            assert time.monotonic() < deadline_s, f"{attack} came to nothing"
            await asyncio.sleep(0.02)
    finally:
        attacking.cancel()
        await asyncio.gather(attacking, return_exceptions=True)
    return attacker


@pytest.mark.parametrize("attack", ["forge", "frames"])
async def test_what_breaks_a_rule_gets_the_attacker_hung_up_on_and_shut_out(head, tmp_path, attack):
    attacker = await attacked(head, tmp_path / "x", attack, lambda attacker: attacker.hung_up >= 3)
    assert head.fleet.doors.shunned.is_shunned(attacker._own.node_public_key, time.monotonic())


@pytest.mark.parametrize("attack", ["flood", "dribble", "gossip"])
async def test_what_only_wastes_is_let_in(head, tmp_path, attack):
    await attacked(head, tmp_path / "x", attack, lambda _: head.fleet.peers)


async def test_who_reads_nothing_is_dropped(head, tmp_path, monkeypatch):
    from patchswarm.daemon.fleet import peer as peers
    from patchswarm.protocol import allowance

    monkeypatch.setattr(peers, "MAX_QUEUED_BYTES", 64 * 1024)
    monkeypatch.setattr(allowance, "BURST", 1e12)  # else its pings are read so slowly that no answers pile up
    await attacked(head, tmp_path / "x", "deaf", lambda attacker: attacker.hung_up)
