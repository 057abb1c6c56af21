"""Routes: the cheapest way, held against looking at every way."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from support.versions import Publisher

from patchswarm.protocol.chain import plan_route
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import BlobRef, Route, Transition, TransitionPart

NODE = digest(b"node")
BLOB = BlobRef(bytes(32), 0, bytes(32), ())


def place(number):
    """Digest of a made-up manifest; place 0 is nothing."""
    return digest(b"place %d" % number) if number else b""


def edge(number, source, target, size, kind=None):
    kind = kind if kind is not None else (Route.STEP if source else Route.FULL)
    part = TransitionPart(NODE, bytes(32), 0, 1, size, BLOB, BLOB, BLOB)
    return Transition("qwen", 1, target, kind, place(source), place(target), number.to_bytes(16, "big"), (part,))


edges = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 20), st.integers(0, 20)), max_size=9
).map(
    lambda drawn: [
        (edge(number, source, target, size), missing)
        for number, (source, target, size, missing) in enumerate(drawn)
        if source != target
    ]
)


def every_way(held, target, transitions):
    """All ways that visit no place twice, as tuples of transitions."""
    starts = {b"", *held}
    for count in range(1, len(transitions) + 1):
        for way in itertools.permutations(transitions, count):
            at = way[0].source
            linked = at in starts and all(a.target == b.source for a, b in itertools.pairwise(way))
            if linked and way[-1].target == target and len({each.target for each in way}) == count:
                yield way


@given(edges, st.sets(st.integers(1, 5), max_size=2), st.sets(st.integers(0, 8), max_size=2))
def test_the_route_is_the_cheapest_there_is(drawn, held, bad):
    missing = {each.attempt: bytes_missing for each, bytes_missing in drawn}
    transitions = [each for each, _ in drawn]
    bad = {number.to_bytes(16, "big") for number in bad}
    held = {place(number) for number in held}

    def cost(way):
        return (
            sum(missing[each.attempt] for each in way),
            sum(part.size for each in way for part in each.parts),
            len(way),
        )

    good = [each for each in transitions if each.attempt not in bad]
    best = min((cost(way) for way in every_way(held, place(5), good[:6])), default=None)
    found = plan_route(held, place(5), good[:6], lambda each: missing[each.attempt], bad)
    if place(5) in held:
        assert found == ()
    elif best is None:
        assert found is None
    else:
        assert cost(found) == best
        assert found[0].source in {b"", *held}
        assert found[-1].target == place(5)


def test_the_same_question_has_the_same_answer_in_whatever_order_it_is_asked():
    twins = [edge(1, 0, 1, 10), edge(2, 0, 1, 10), edge(3, 1, 2, 5), edge(4, 1, 2, 5)]
    answers = {
        tuple(each.attempt[-1] for each in plan_route(set(), place(2), order, lambda _: 1))
        for order in itertools.permutations(twins)
    }
    assert answers == {(1, 3)}


def test_a_registered_base_leads_nowhere_by_itself():
    registered = edge(1, 1, 1, 0, Route.BASE)
    assert plan_route(set(), place(1), [registered], lambda _: 0) is None
    assert plan_route({place(1)}, place(1), [registered], lambda _: 0) == ()


def test_what_is_here_already_costs_nothing_so_a_started_route_is_kept():
    long = [edge(1, 1, 2, 100), edge(2, 2, 3, 100)]
    short = edge(3, 1, 3, 150)
    started = {long[0].attempt: 0, long[1].attempt: 100, short.attempt: 150}
    assert plan_route({place(1)}, place(3), [*long, short], lambda each: started[each.attempt]) == tuple(long)
    fresh = {long[0].attempt: 100, long[1].attempt: 100, short.attempt: 150}
    assert plan_route({place(1)}, place(3), [*long, short], lambda each: fresh[each.attempt]) == (short,)


def test_a_thousand_steps_are_planned_at_once():
    steps = [edge(number, number, number + 1, 10) for number in range(1000)]
    assert plan_route(set(), place(1000), steps, lambda _: 10) == tuple(steps)


def test_a_real_version_leads_from_nothing():
    made = Publisher().version(1, node=NODE)
    assert plan_route(set(), made.digest, [made.transition], lambda _: 1) == (made.transition,)
