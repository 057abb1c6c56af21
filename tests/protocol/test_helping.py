"""Helping: what a border with nothing left of its own takes over, of whom, and when."""

import math
import random

import pytest
from support.plans import ALL, BORDERS, COUNT, OTHER, SEED, link_to, node_of, plan_of

from patchswarm.protocol.helping import (
    ENDGAME_S,
    HOME_SHARE,
    HOME_SPARED_S,
    LAST_PART,
    LEFT_TO_OWNER,
    RELIEF_S,
    help_out,
    relieve,
    sound_out,
    steal,
)
from patchswarm.protocol.ids import digest
from patchswarm.protocol.picker import CLAIM_S, LEAST_PATIENCE_S, REFUSED_S, Plan
from patchswarm.protocol.ranges import bits_of, iterate


@pytest.fixture
def plans():
    """The plans of all borders of site a."""
    return {me: plan_of("a", me) for me in BORDERS["a"]}


def test_without_a_dealing_everyone_may_ask_everyone():
    late = Plan(None, frozenset({SEED}))
    late.deal(ALL, frozenset(), 0.0)
    assert late.allowed(link_to(SEED), "a") & ALL == ALL
    assert list(late.step_in(ALL, 0, 1000.0)) == []
    assert steal(late, ALL, random.Random(1), 0.0) == (None, False)
    assert relieve(late, ALL, ALL, 0, random.Random(1), 100.0) == []


def test_who_has_nothing_to_do_sounds_out_a_border_that_has_brought_nothing_a_few_chunks_at_a_time(plans):
    stuck, *others = BORDERS["a"]
    due_s = LEAST_PATIENCE_S
    for me in others:
        assert sound_out(plans[me], plans[stuck].mine, due_s) == [], "nothing has come here either"
        plans[me].came(1.0, 1.0)
        for other in others:
            plans[me].heard(other, "a", 1, 1.0)
        assert sound_out(plans[me], ALL, due_s) == [], "it has work of its own"
        assert sound_out(plans[me], plans[stuck].mine, due_s - 0.1) == [], "it may come yet"
    owned = plans[stuck].mine & plans[stuck].owned
    taken = {me: sound_out(plans[me], plans[stuck].mine, due_s) for me in others}
    (next_rank,) = [me for me in others if taken[me]]
    assert set(taken[next_rank]) < set(iterate(owned))
    assert plans[next_rank].take_failed() == {stuck}
    plans[next_rank].heard(stuck, "a", 1, due_s)
    assert sound_out(plans[next_rank], plans[stuck].mine & ~plans[next_rank].mine, due_s + 60) == [], "it was only slow"


def test_a_thief_takes_from_the_seed_what_another_site_has_many_of_in_its_own_column(plans):
    plan = plans[BORDERS["a"][0]]
    theirs = plan.mine & ~plan.owned
    stolen, claimed = steal(plan, theirs, random.Random(1), 0.0)
    assert not claimed
    assert stolen in list(iterate(theirs))[len(list(iterate(theirs))) // 2 :], "its owner comes from the other end"
    assert plan.owned >> stolen & 1


def test_when_its_own_column_is_done_a_thief_takes_of_other_columns_and_claims_it(plans):
    first, second, *_ = BORDERS["a"]
    plan, other = plans[first], plans[second]
    for theirs in (other.mine & other.owned, other.mine & ~other.owned):
        stolen, claimed = steal(plan, theirs, random.Random(1), 0.0)
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
    few = theirs & -theirs
    plan.came_s = 10.0
    assert steal(plan, few, random.Random(1), 10.0 + ENDGAME_S / 2) == (None, False)
    assert steal(plan, few, random.Random(1), 10.0 + ENDGAME_S) != (None, False)
    plan.claim(theirs, CLAIM_S, OTHER)
    assert steal(plan, theirs & ~plan.mine, random.Random(1), 0.0) == (None, False)
    assert steal(plan, theirs, random.Random(1), CLAIM_S) != (None, False)


def test_while_much_is_left_at_the_seed_a_thief_leaves_other_columns_alone(plans):
    plan = plans[BORDERS["a"][0]]
    plan.came_s = 0.0
    others = list(iterate(ALL & ~plan.mine))
    assert steal(plan, bits_of(others), random.Random(1), 100.0) == (None, False)
    assert steal(plan, bits_of(others[: COUNT // LAST_PART]), random.Random(1), 100.0) != (None, False)


def test_a_member_that_is_no_border_takes_nothing_of_any_column():
    plan = plan_of("a", digest(b"a fifth"))
    assert steal(plan, ALL, random.Random(1), 0.0) == (None, False)


def test_nobody_steals_while_the_seed_has_chunks_of_its_own_for_it(plans):
    plan = plans[BORDERS["a"][0]]
    assert steal(plan, plan.mine, random.Random(1), 0.0) == (None, False)


def test_what_an_owner_is_about_to_have_is_left_to_it_unless_nothing_comes(plans):
    plan = plans[BORDERS["a"][0]]
    last = plan.mine & ~plan.owned
    last &= -last
    plan.came_s = 10.0
    assert steal(plan, last, random.Random(1), 10.0 + ENDGAME_S / 2) == (None, False)
    assert steal(plan, last, random.Random(1), 10.0 + ENDGAME_S)[0] is not None


def test_a_thief_takes_of_the_border_that_takes_longest_at_its_rate_not_of_the_one_with_most_left(plans):
    plan = plans[BORDERS["a"][0]]
    plan.came_s = 10.0
    fast, slow = list(iterate(plan.mine & ~plan.owned)), list(range(COUNT, COUNT + 3))
    plan.brought = {b"fast": ALL, b"slow": bits_of([*slow, *range(COUNT + 3, COUNT + 8)])}
    plan.mine |= bits_of(slow)
    assert steal(plan, bits_of(fast + slow), random.Random(1), 10.0)[0] in slow


def test_an_idle_border_relieves_the_one_of_its_site_with_most_left_and_can_hand_back(plans):
    plan = plans[BORDERS["a"][0]]
    slow = plans[BORDERS["a"][1]].mine
    assert relieve(plan, slow, slow, 0, random.Random(1), 0.0) == [], "it may be on its way"
    taken = relieve(plan, slow, slow, 0, random.Random(1), RELIEF_S)
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
    relieve(plan, few, few, 0, random.Random(1), 0.0)
    for tenth in range(1, 40):
        now_s = tenth / 10
        plan.heard(other, "a", few & -few, now_s)
        assert relieve(plan, few, few, 0, random.Random(1), now_s) == []
    assert relieve(plan, few, few, 0, random.Random(1), now_s + 2 * RELIEF_S)


def test_the_last_few_of_a_border_that_never_began_are_taken_by_one_to_whom_chunks_have_come(plans):
    plan = plans[BORDERS["a"][0]]
    few = bits_of(list(iterate(plans[BORDERS["a"][1]].mine))[:LEFT_TO_OWNER])
    assert not any(relieve(plan, few, few, 0, random.Random(1), now_s) for now_s in range(20)), "all of it may be slow"
    plan.came(0.2, 20.0)
    assert relieve(plan, few, few, 0, random.Random(1), 20.0)


def test_beside_the_seed_an_idle_border_takes_over_what_a_slow_one_would_take_long_for(plans):
    plan = plans[BORDERS["a"][0]]
    slow, quick = (plans[border].mine for border in BORDERS["a"][1:3])
    left = bits_of(list(iterate(slow))[1:]) | bits_of(list(iterate(quick))[-1:])
    assert relieve(plan, left, 0, left, random.Random(1), 0.001) == [], "at this rate it will all be here in a moment"
    taken = relieve(plan, left, 0, left, random.Random(1), 1.0)
    assert len(taken) == math.ceil((slow.bit_count() - 1) / HOME_SHARE)
    assert bits_of(taken) & slow == bits_of(taken), "the quick one is about to have its last"
    assert relieve(plan, left & ~bits_of(taken), left, 0, random.Random(1), 1.0) == [], "it is busy with them"


def test_what_others_have_taken_over_is_no_sign_of_how_fast_a_border_is(plans):
    plan = plans[BORDERS["a"][0]]
    slow = plans[BORDERS["a"][1]].mine
    *theirs, last = iterate(slow)
    plan.claim(bits_of(theirs), 10.0, OTHER)
    assert relieve(plan, 1 << last, 0, 1 << last, random.Random(1), 2 * HOME_SPARED_S) == [last]


def test_nobody_relieves_another_with_work_of_its_own_or_of_what_is_claimed(plans):
    plan = plans[BORDERS["a"][0]]
    others = ALL & ~plan.mine
    plan.claim(others, 10.0, OTHER)
    for now_s in (0.0, 5.0):
        assert relieve(plan, others, others, 0, random.Random(1), now_s) == []
    assert relieve(plan, others | plan.mine, ALL, 0, random.Random(1), 20.0) == []
    for now_s in (20.0, 20.0 + RELIEF_S):
        taken = relieve(plan, others, others, 0, random.Random(1), now_s)
    assert taken


def test_what_the_seed_has_refused_is_not_stolen_again_for_a_while(plans):
    plan = plans[BORDERS["a"][0]]
    theirs = plan.mine & ~plan.owned
    stolen, _ = steal(plan, theirs, random.Random(1), 0.0)
    assert stolen is not None
    plan.owned &= ~(1 << stolen)
    plan.refused = dict.fromkeys(iterate(theirs), REFUSED_S)
    assert steal(plan, theirs, random.Random(1), REFUSED_S / 2) == (None, False)
    assert steal(plan, theirs, random.Random(1), REFUSED_S)[0] is not None


def test_who_has_nothing_to_do_takes_one_of_what_waits_long_at_a_mate(plans):
    plan = plans[BORDERS["a"][0]]
    spare = ALL & ~plan.mine
    assert help_out(plan, plan.mine | spare, spare, random.Random(1)) is None, "its own come first"
    assert help_out(plan, 0, spare, random.Random(1)) is None, "they are here, or asked for"
    taken = help_out(plan, spare, spare, random.Random(1))
    assert plan.mine >> taken & 1
    assert help_out(plan, spare & ~(1 << taken), 1 << taken, random.Random(1)) is None


def test_a_member_that_is_no_border_does_not_help_out():
    plan = plan_of("a", node_of("a", 9))
    assert help_out(plan, ALL, ALL, random.Random(1)) is None


def test_of_two_who_claim_the_same_chunk_one_has_it(plans):
    first, second = sorted(BORDERS["a"])[:2]
    one, two = plans[first], plans[second]
    slow = ALL & ~one.mine & ~two.mine
    for now_s in (0.0, RELIEF_S):
        by_one, by_two = (bits_of(relieve(plan, slow, slow, 0, random.Random(1), now_s)) for plan in (one, two))
    assert by_one & by_two
    one.claim(by_two, 10.0, second)
    two.claim(by_one, 10.0, first)
    assert not one.mine & two.mine
    assert (one.mine | two.mine) & (by_one | by_two) == by_one | by_two


def test_only_what_was_taken_over_is_handed_back_and_once(plans):
    plan = plans[BORDERS["a"][0]]
    slow = plans[BORDERS["a"][1]].mine
    assert not plan.release(next(iterate(plan.mine)))
    assert not plan.release(next(iterate(slow))), "asked of a mate who has it, as anyone does"
    relieve(plan, slow, slow, 0, random.Random(1), 0.0)
    taken = relieve(plan, slow, slow, 0, random.Random(1), RELIEF_S)
    assert plan.release(taken[0])
    assert not plan.release(taken[0])
