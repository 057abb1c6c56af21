"""Picking: who may ask whom across sites, and who steps in for whom, when."""

import math
import random

import pytest

from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.manifest import NodeRecord
from patchswarm.protocol.picker import (
    CLAIM_S,
    ENDGAME_S,
    FIRST_PATIENCE_S,
    HOME_SHARE,
    HOME_SPARED_S,
    HOPE_S,
    LAST_PART,
    LEAST_PATIENCE_S,
    LEFT_TO_OWNER,
    MAX_CLAIMS,
    OUTSIDER_RANK,
    REFUSED_S,
    RELIEF_S,
    Plan,
)
from patchswarm.protocol.ranges import bits_of, iterate
from patchswarm.protocol.roster import Dealing, build_roster

SEED = digest(b"seed")
OTHER = bytes(32)  # a lesser id than any
COUNT = 64
ALL = (1 << COUNT) - 1


def record(site):
    return NodeRecord(bytes(32), bytes(16), 1, site, ("host:1",), (), b"")


def node_of(site, number):
    return digest(b"%s %d" % (site.encode(), number))


NODES = {SEED: record("home")} | {node_of(site, number): record(site) for site in ("a", "b") for number in range(4)}
ROSTER = build_roster(NODES, SEED)
BORDERS = {entry.site: entry.borders for entry in ROSTER}


def link_to(node):
    return Link(0, bytes(32), node, True, 0.0, 0.0, NODES[node])


def plan_of(site, me, now_s=0.0, alive=None):
    """The plan of one node of a site, with every chunk named."""
    made = Plan(Dealing(ROSTER, site, me), frozenset({SEED}), frozenset({"home"}))
    made.deal(ALL, frozenset(BORDERS[site] if alive is None else alive), now_s)
    return made


@pytest.fixture
def plans():
    """The plans of all borders of site a."""
    return {me: plan_of("a", me) for me in BORDERS["a"]}


def test_every_chunk_is_brought_into_a_site_by_one_border(plans):
    assert sum(plan.mine for plan in plans.values()) == ALL
    assert all(plan.mine for plan in plans.values())


def test_every_chunk_is_taken_from_the_seed_by_one_site():
    one, other = plan_of("a", BORDERS["a"][0]), plan_of("b", BORDERS["b"][0])
    assert one.owned ^ other.owned == ALL


def test_within_its_site_a_node_may_ask_anyone_for_anything(plans):
    plan = plans[BORDERS["a"][0]]
    assert plan.allowed(link_to(BORDERS["a"][1]), "a") & ALL == ALL


def test_from_another_site_a_border_asks_only_what_it_was_dealt(plans):
    plan = plans[BORDERS["a"][0]]
    assert plan.allowed(link_to(BORDERS["b"][0]), "a") == plan.mine


def test_of_the_seed_a_border_asks_only_what_its_site_owns_too(plans):
    plan = plans[BORDERS["a"][0]]
    assert plan.allowed(link_to(SEED), "a") == plan.mine & plan.owned


def test_what_the_seed_gave_to_one_that_brings_nothing_may_be_asked_of_the_seeds_mates():
    me = BORDERS["a"][0]
    plan = plan_of("a", me, alive=[*BORDERS["a"], SEED])
    mate = Link(0, bytes(32), digest(b"mate"), True, 0.0, 0.0, record("home"))
    assert plan.allowed(mate, "a") == 0
    plan.detour |= ALL
    assert plan.allowed(mate, "a") == plan.mine & plan.owned


def test_without_a_dealing_everyone_may_ask_everyone():
    late = Plan(None, frozenset({SEED}))
    late.deal(ALL, frozenset(), 0.0)
    assert late.allowed(link_to(SEED), "a") & ALL == ALL
    assert list(late.step_in(ALL, 0, 1000.0)) == []
    assert late.steal(ALL, random.Random(1), 0.0) == (None, False)
    assert late.relieve(ALL, ALL, 0, random.Random(1), 100.0) == []


def test_when_a_border_dies_the_others_have_its_chunks_at_once():
    _, *living = BORDERS["a"]
    plans = [plan_of("a", me, alive=living) for me in living]
    assert sum(plan.mine for plan in plans) == ALL


def test_nobody_steps_in_while_the_others_are_at_work(plans):
    for me, plan in plans.items():
        for other in BORDERS["a"]:
            plan.heard(other, "a", 1, FIRST_PATIENCE_S * 2)
        assert list(plan.step_in(ALL & ~plan.mine, ALL, FIRST_PATIENCE_S * 2 + 1)) == [], me


def test_for_a_stuck_border_the_next_rank_steps_in_and_only_that_one(plans):
    stuck, *others = BORDERS["a"]
    now_s = LEAST_PATIENCE_S * 1.5
    for plan in plans.values():
        for at in range(30):
            for other in others:
                plan.heard(other, "a", 1, now_s * at / 30)
    taken = [set(plan.step_in(ALL & ~plan.mine, ALL, now_s)) for me, plan in plans.items() if me != stuck]
    assert set().union(*taken) <= set(iterate(plans[stuck].mine))
    assert sum(map(len, taken)) == len(set().union(*taken)), "two stepped in for the same chunk"


def test_where_nothing_has_come_to_anybody_nobody_is_to_blame_yet(plans):
    now_s = FIRST_PATIENCE_S * 1.9
    for plan in plans.values():
        assert list(plan.step_in(ALL & ~plan.mine, ALL, now_s)) == []
        plan.progress_s[BORDERS["a"][0]] = now_s
    assert any(list(plan.step_in(ALL & ~plan.mine, ALL, now_s)) for plan in plans.values())


def test_a_member_that_is_no_border_waits_longer_than_any_border():
    outsider = (
        next(node for node in NODES if NODES[node].site == "a" and node not in BORDERS["a"])
        if len(BORDERS["a"]) < 4
        else digest(b"a fifth")
    )
    plan = plan_of("a", outsider)
    assert plan.mine == 0
    wait_s = 2 * FIRST_PATIENCE_S
    assert list(plan.step_in(ALL, ALL, wait_s * (OUTSIDER_RANK - 0.5))) == []
    assert set(plan.step_in(ALL, ALL, wait_s * (OUTSIDER_RANK + 5))) == set(range(COUNT))


def test_for_a_benched_border_the_next_rank_steps_in_at_once_and_only_that_one(plans):
    benched, *others = BORDERS["a"]
    taken = [set(plans[me].step_in(ALL & ~plans[me].mine, ALL, 0.1, frozenset({benched}))) for me in others]
    assert set().union(*taken) == set(iterate(plans[benched].mine))
    assert sum(map(len, taken)) == len(set().union(*taken))
    assert not any(plans[me].take_failed() for me in others), "it is benched already"


def test_who_has_nothing_to_do_sounds_out_a_border_that_has_brought_nothing_a_few_chunks_at_a_time(plans):
    stuck, *others = BORDERS["a"]
    due_s = LEAST_PATIENCE_S
    for me in others:
        assert plans[me].sound_out(plans[stuck].mine, due_s) == [], "nothing has come here either"
        plans[me].came(1.0, 1.0)
        for other in others:
            plans[me].heard(other, "a", 1, 1.0)
        assert plans[me].sound_out(ALL, due_s) == [], "it has work of its own"
        assert plans[me].sound_out(plans[stuck].mine, due_s - 0.1) == [], "it may come yet"
    owned = plans[stuck].mine & plans[stuck].owned
    taken = {me: plans[me].sound_out(plans[stuck].mine, due_s) for me in others}
    (next_rank,) = [me for me in others if taken[me]]
    assert set(taken[next_rank]) < set(iterate(owned))
    assert plans[next_rank].take_failed() == {stuck}
    plans[next_rank].heard(stuck, "a", 1, due_s)
    assert plans[next_rank].sound_out(plans[stuck].mine & ~plans[next_rank].mine, due_s + 60) == [], "it was only slow"


def test_who_claims_and_does_not_bring_is_remembered_once(plans):
    plan = plans[BORDERS["a"][0]]
    mine = plan.mine
    plan.claim(mine, CLAIM_S, OTHER)
    list(plan.step_in(mine, ALL, CLAIM_S + 0.1))
    assert plan.take_failed() == {OTHER}
    assert plan.take_failed() == set()


def test_when_an_owner_site_is_silent_the_next_site_goes_to_the_seed_itself():
    plan = plan_of("a", BORDERS["a"][0])
    waiting = plan.mine & ~plan.owned
    assert waiting
    list(plan.step_in(waiting, 0, FIRST_PATIENCE_S - 1))
    assert plan.mine & ~plan.owned == waiting
    list(plan.step_in(waiting, 0, FIRST_PATIENCE_S * 3))
    assert waiting & ~plan.owned == 0


def test_what_another_site_offers_is_not_taken_from_the_seed():
    plan = plan_of("a", BORDERS["a"][0])
    waiting = plan.mine & ~plan.owned
    list(plan.step_in(waiting, waiting, FIRST_PATIENCE_S * 3))
    assert waiting & plan.owned == 0


def test_a_claim_keeps_a_chunk_for_the_one_who_claimed_it(plans):
    plan = plans[BORDERS["a"][0]]
    mine = plan.mine
    plan.claim(mine, 10.0 + CLAIM_S, OTHER)
    assert plan.mine == 0
    assert list(plan.step_in(mine, 0, 10.0 + CLAIM_S - 0.1)) == []
    assert set(plan.step_in(mine, 0, 10.0 + CLAIM_S + 0.1)) == set(iterate(mine)), "it comes back when nothing came"


def test_a_claim_that_is_given_back_is_back_at_once(plans):
    plan = plans[BORDERS["a"][0]]
    mine = plan.mine
    plan.claim(mine, 10.0 + CLAIM_S, OTHER)
    plan.claim(mine, 0.0, OTHER)
    assert plan.mine == mine


def test_who_claims_and_claims_delays_a_chunk_and_cannot_keep_it_out(plans):
    plan = plans[BORDERS["a"][0]]
    mine, now_s = plan.mine, 0.0
    for _ in range(10):
        plan.claim(ALL, now_s + CLAIM_S, OTHER)
        now_s += CLAIM_S - 1
    list(plan.step_in(mine, 0, (MAX_CLAIMS + 1) * CLAIM_S))
    assert plan.mine & mine == mine


def test_a_claim_on_what_is_not_known_is_ignored(plans):
    plan = plans[BORDERS["a"][0]]
    plan.claim(1 << 500, 100.0, OTHER)
    assert plan.claimed == {}


def test_a_thief_takes_from_the_seed_what_another_site_has_many_of_in_its_own_column(plans):
    plan = plans[BORDERS["a"][0]]
    theirs = plan.mine & ~plan.owned
    stolen, claimed = plan.steal(theirs, random.Random(1), 0.0)
    assert not claimed
    assert stolen in list(iterate(theirs))[len(list(iterate(theirs))) // 2 :], "its owner comes from the other end"
    assert plan.owned >> stolen & 1


def test_when_its_own_column_is_done_a_thief_takes_of_other_columns_and_claims_it(plans):
    first, second, *_ = BORDERS["a"]
    plan, other = plans[first], plans[second]
    for theirs in (other.mine & other.owned, other.mine & ~other.owned):
        stolen, claimed = plan.steal(theirs, random.Random(1), 0.0)
        assert claimed
        assert stolen in list(iterate(theirs))[len(list(iterate(theirs))) // 2 :]
        assert plan.mine & plan.owned & 1 << stolen
        other.claim(1 << stolen, CLAIM_S, first)
        assert other.is_to_come(stolen, CLAIM_S - 0.1)
        assert not other.is_to_come(stolen, CLAIM_S)
        assert not other.mine >> stolen & 1


def test_a_thief_takes_nothing_of_other_columns_that_is_claimed_or_among_the_last_few(plans):
    plan, other = plans[BORDERS["a"][0]], plans[BORDERS["a"][1]]
    theirs = other.mine & other.owned
    few = bits_of(list(iterate(theirs))[:LEFT_TO_OWNER])
    plan.came_s = 10.0
    assert plan.steal(few, random.Random(1), 10.0 + ENDGAME_S / 2) == (None, False)
    assert plan.steal(few, random.Random(1), 10.0 + ENDGAME_S) != (None, False)
    plan.claim(theirs, CLAIM_S, OTHER)
    assert plan.steal(theirs & ~plan.mine, random.Random(1), 0.0) == (None, False)
    assert plan.steal(theirs, random.Random(1), CLAIM_S) != (None, False)


def test_while_much_is_left_at_the_seed_a_thief_leaves_other_columns_alone(plans):
    plan = plans[BORDERS["a"][0]]
    plan.came_s = 0.0
    others = list(iterate(ALL & ~plan.mine))
    assert plan.steal(bits_of(others), random.Random(1), 100.0) == (None, False)
    assert plan.steal(bits_of(others[: COUNT // LAST_PART]), random.Random(1), 100.0) != (None, False)


def test_a_member_that_is_no_border_takes_nothing_of_any_column():
    plan = plan_of("a", digest(b"a fifth"))
    assert plan.steal(ALL, random.Random(1), 0.0) == (None, False)


def test_nobody_steals_while_the_seed_has_chunks_of_its_own_for_it(plans):
    plan = plans[BORDERS["a"][0]]
    assert plan.steal(plan.mine, random.Random(1), 0.0) == (None, False)


def test_the_last_few_are_left_to_their_owner_unless_nothing_comes(plans):
    plan = plans[BORDERS["a"][0]]
    few = bits_of(list(iterate(plan.mine & ~plan.owned))[:LEFT_TO_OWNER])
    plan.came_s = 10.0
    assert plan.steal(few, random.Random(1), 10.0 + ENDGAME_S / 2) == (None, False)
    assert plan.steal(few, random.Random(1), 10.0 + ENDGAME_S)[0] is not None


def test_an_idle_border_relieves_the_one_of_its_site_with_most_left_and_can_hand_back(plans):
    plan = plans[BORDERS["a"][0]]
    slow = plans[BORDERS["a"][1]].mine
    assert plan.relieve(slow, slow, 0, random.Random(1), 0.0) == [], "it may be on its way"
    taken = plan.relieve(slow, slow, 0, random.Random(1), RELIEF_S)
    assert taken
    assert set(taken) <= set(iterate(slow))
    assert plan.mine & bits_of(taken) == bits_of(taken)
    assert plan.release(taken[0])
    assert not plan.mine >> taken[0] & 1


def test_the_last_few_of_a_border_are_on_their_way_unless_it_has_stopped(plans):
    plan = plans[BORDERS["a"][0]]
    other = BORDERS["a"][1]
    few = bits_of(list(iterate(plans[other].mine))[:LEFT_TO_OWNER])
    plan.heard(other, "a", few & -few, 0.0)
    plan.relieve(few, few, 0, random.Random(1), 0.0)
    for tenth in range(1, 40):
        now_s = tenth / 10
        plan.heard(other, "a", few & -few, now_s)
        assert plan.relieve(few, few, 0, random.Random(1), now_s) == []
    assert plan.relieve(few, few, 0, random.Random(1), now_s + 2 * RELIEF_S)


def test_the_last_few_of_a_border_that_never_began_are_taken_by_one_to_whom_chunks_have_come(plans):
    plan = plans[BORDERS["a"][0]]
    few = bits_of(list(iterate(plans[BORDERS["a"][1]].mine))[:LEFT_TO_OWNER])
    assert not any(plan.relieve(few, few, 0, random.Random(1), now_s) for now_s in range(20)), "all of it may be slow"
    plan.came(0.2, 20.0)
    assert plan.relieve(few, few, 0, random.Random(1), 20.0)


def test_beside_the_seed_an_idle_border_takes_over_what_a_slow_one_would_take_long_for(plans):
    plan = plans[BORDERS["a"][0]]
    slow, quick = (plans[border].mine for border in BORDERS["a"][1:3])
    left = bits_of(list(iterate(slow))[1:]) | bits_of(list(iterate(quick))[-1:])
    assert plan.relieve(left, 0, left, random.Random(1), 0.001) == [], "at this rate it will all be here in a moment"
    taken = plan.relieve(left, 0, left, random.Random(1), 1.0)
    assert len(taken) == math.ceil((slow.bit_count() - 1) / HOME_SHARE)
    assert bits_of(taken) & slow == bits_of(taken), "the quick one is about to have its last"
    assert plan.relieve(left & ~bits_of(taken), left, 0, random.Random(1), 1.0) == [], "it is busy with them"


def test_what_others_have_taken_over_is_no_sign_of_how_fast_a_border_is(plans):
    plan = plans[BORDERS["a"][0]]
    slow = plans[BORDERS["a"][1]].mine
    *theirs, last = iterate(slow)
    plan.claim(bits_of(theirs), 10.0, OTHER)
    assert plan.relieve(1 << last, 0, 1 << last, random.Random(1), 2 * HOME_SPARED_S) == [last]


def test_nobody_relieves_another_with_work_of_its_own_or_of_what_is_claimed(plans):
    plan = plans[BORDERS["a"][0]]
    others = ALL & ~plan.mine
    plan.claim(others, 10.0, OTHER)
    for now_s in (0.0, 5.0):
        assert plan.relieve(others, others, 0, random.Random(1), now_s) == []
    assert plan.relieve(others | plan.mine, ALL, 0, random.Random(1), 20.0) == []
    for now_s in (20.0, 20.0 + RELIEF_S):
        taken = plan.relieve(others, others, 0, random.Random(1), now_s)
    assert taken


def test_what_the_seed_has_refused_is_not_stolen_again_for_a_while(plans):
    plan = plans[BORDERS["a"][0]]
    theirs = plan.mine & ~plan.owned
    stolen, _ = plan.steal(theirs, random.Random(1), 0.0)
    assert stolen is not None
    plan.owned &= ~(1 << stolen)
    plan.refused = dict.fromkeys(iterate(theirs), REFUSED_S)
    assert plan.steal(theirs, random.Random(1), REFUSED_S / 2) == (None, False)
    assert plan.steal(theirs, random.Random(1), REFUSED_S)[0] is not None


def test_what_a_thief_elsewhere_takes_comes_from_its_site_but_only_what_was_ones_own_to_take(plans):
    me, thief = BORDERS["a"][0], BORDERS["b"][0]
    plan = plans[me]
    own = plan.mine & plan.owned
    stolen = list(plan.stolen(ALL, thief))
    assert bits_of(stolen) == own
    partner = plan.dealing.partner(stolen[0], thief)
    assert plan.to_come(partner) & own == own
    assert plan.owned & own == own, "the seed may be asked still, when the thief brings nothing"
    assert list(plan.stolen(ALL, thief)) == [], "once is enough"


def test_who_has_nothing_to_do_takes_one_of_what_waits_long_at_a_mate(plans):
    plan = plans[BORDERS["a"][0]]
    spare = ALL & ~plan.mine
    assert plan.help_out(plan.mine | spare, spare, random.Random(1)) == [], "its own come first"
    assert plan.help_out(0, spare, random.Random(1)) == [], "they are here, or asked for"
    (taken,) = plan.help_out(spare, spare, random.Random(1))
    assert plan.mine >> taken & 1
    assert plan.help_out(spare & ~(1 << taken), 1 << taken, random.Random(1)) == []


def test_a_member_that_is_no_border_does_not_help_out():
    plan = plan_of("a", node_of("a", 9))
    assert plan.help_out(ALL, ALL, random.Random(1)) == []


def test_of_two_who_claim_the_same_chunk_one_has_it(plans):
    first, second = sorted(BORDERS["a"])[:2]
    one, two = plans[first], plans[second]
    slow = ALL & ~one.mine & ~two.mine
    for now_s in (0.0, RELIEF_S):
        by_one, by_two = (bits_of(plan.relieve(slow, slow, 0, random.Random(1), now_s)) for plan in (one, two))
    assert by_one & by_two
    one.claim(by_two, 10.0, second)
    two.claim(by_one, 10.0, first)
    assert not one.mine & two.mine
    assert (one.mine | two.mine) & (by_one | by_two) == by_one | by_two


def test_what_other_borders_of_a_column_take_from_the_seed_is_to_come_from_them(plans):
    for plan in plans.values():
        to_come = [plan.to_come(node) for node in BORDERS["b"]]
        assert sum(to_come) == plan.mine & ~plan.owned
        assert sum(map(bool, to_come)) == 1, "a column has one border at each site"


def test_a_chunk_that_another_takes_instead_is_to_come_from_that_one(plans):
    plan = plans[BORDERS["a"][0]]
    owner = next(node for node in BORDERS["b"] if plan.to_come(node))
    ordinal = next(iterate(plan.to_come(owner)))
    plan.brings_instead(owner, ordinal, OTHER)
    assert not plan.to_come(owner) >> ordinal & 1
    assert plan.to_come(OTHER) == 1 << ordinal
    plan.brings_instead(OTHER, ordinal, None)
    assert not plan.to_come(OTHER)


def test_what_a_mate_of_the_border_takes_instead_is_to_come_from_that_border_still(plans):
    plan = plans[BORDERS["a"][0]]
    owner = next(node for node in BORDERS["b"] if plan.to_come(node))
    ordinal = next(iterate(plan.to_come(owner)))
    mate = next(node for node in BORDERS["b"] if node != owner)
    plan.brings_instead(owner, ordinal, mate)
    assert plan.to_come(owner) >> ordinal & 1, "to it the way is warm"
    assert not plan.to_come(mate)


def test_what_a_mate_of_its_border_has_that_border_will_have_in_a_moment_and_if_not_it_is_hoped_for_no_more(plans):
    plan = plans[BORDERS["a"][0]]
    partner = next(node for node in BORDERS["b"] if plan.to_come(node))
    mate = next(node for node in BORDERS["b"] if node != partner)
    few = bits_of(list(iterate(plan.to_come(partner)))[:3])
    assert plan.passed_on(mate, few, 5.0) == {partner: few}
    assert plan.passed_on(partner, few, 5.0) == {}
    assert plan.passed_on(mate, few, 5.0 + HOPE_S) == {}


def test_what_a_thief_of_another_column_took_is_to_come_from_the_border_of_its_column_there(plans):
    me = BORDERS["a"][0]
    plan = plans[me]
    ordinal = next(iterate(plan.mine & plan.owned))
    partner = next(node for node in BORDERS["b"] if plan.to_come(node))
    thief = next(node for node in BORDERS["b"] if node != partner)
    plan.brings_instead(me, ordinal, thief)
    assert plan.to_come(partner) >> ordinal & 1
    assert plan.allowed(link_to(SEED), "a") >> ordinal & 1, "who has it may be out of reach"
    assert not plan.to_come(thief) >> ordinal & 1


def test_only_what_was_taken_over_is_handed_back_and_once(plans):
    plan = plans[BORDERS["a"][0]]
    slow = plans[BORDERS["a"][1]].mine
    assert not plan.release(next(iterate(plan.mine)))
    assert not plan.release(next(iterate(slow))), "asked of a mate who has it, as anyone does"
    plan.relieve(slow, slow, 0, random.Random(1), 0.0)
    taken = plan.relieve(slow, slow, 0, random.Random(1), RELIEF_S)
    assert plan.release(taken[0])
    assert not plan.release(taken[0])
