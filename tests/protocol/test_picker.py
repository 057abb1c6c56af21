"""Picking: who may ask whom across sites, and who steps in for whom, when."""

import pytest
from support.plans import ALL, BORDERS, COUNT, NODES, OTHER, SEED, link_to, plan_of, record

from patchswarm.protocol.ids import digest
from patchswarm.protocol.link import Link
from patchswarm.protocol.picker import CLAIM_S, FIRST_PATIENCE_S, HOPE_S, LEAST_PATIENCE_S, MAX_CLAIMS, OUTSIDER_RANK
from patchswarm.protocol.ranges import bits_of, iterate


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


def test_only_the_one_who_claimed_a_chunk_gives_it_back(plans):
    first, second, *_ = BORDERS["a"]
    plan = plans[first]
    mine, theirs = plan.mine, plans[second].mine
    plan.claim(mine, 10.0 + CLAIM_S, OTHER)
    plan.claim(mine, 0.0, second)
    assert plan.mine == 0
    plan.take_over(theirs)
    plan.claim(theirs, 0.0, second)
    assert plan.taken == theirs, "what this node claims is not another's to give back"


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
