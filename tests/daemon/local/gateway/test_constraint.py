"""Which weights a request accepts."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from multidict import CIMultiDict

from patchswarm.daemon.local.gateway.constraint import ANY, Constraint, parse
from patchswarm.daemon.local.gateway.errors import ContradictoryConstraintError, InvalidConstraintError

versions = st.integers(0, 12)
maybe = st.none() | versions
constraints = st.builds(
    Constraint,
    min_version=maybe,
    exact_version=maybe,
    max_version=maybe,
    any_of=st.none() | st.lists(versions, min_size=1, max_size=4).map(tuple),
)


def fits(constraint, version):
    """What the four fields say, each by itself."""
    return (
        (constraint.min_version is None or version >= constraint.min_version)
        and (constraint.max_version is None or version <= constraint.max_version)
        and (constraint.exact_version is None or version == constraint.exact_version)
        and (constraint.any_of is None or version in constraint.any_of)
    )


def raw(value):
    return msgspec.Raw(json.dumps(value).encode())


@given(constraints, versions)
def test_a_version_satisfies_a_constraint_when_it_satisfies_every_field(constraint, version):
    assert constraint.satisfied_by(version) == fits(constraint, version)


@given(constraints, versions)
def test_first_from_is_the_least_acceptable_version_from_there_on(constraint, start):
    expected = next((version for version in range(start, 30) if fits(constraint, version)), None)
    assert constraint.first_from(start) == expected


@given(constraints)
def test_what_no_version_satisfies_is_refused_and_nothing_else(constraint):
    possible = any(fits(constraint, version) for version in range(30))
    body = msgspec.Raw(msgspec.json.encode(constraint))
    if possible:
        assert parse(body, {}) == constraint
    else:
        with pytest.raises(ContradictoryConstraintError, match="no version can satisfy"):
            parse(body, {})


@given(constraints)
def test_headers_say_the_same_as_a_body(constraint):
    assume(constraint.first_from(0) is not None)
    headers = CIMultiDict()
    for header, field in (("Min", "min_version"), ("Exact", "exact_version"), ("Max", "max_version")):
        if getattr(constraint, field) is not None:
            headers[f"x-weight-version-{header.lower()}"] = str(getattr(constraint, field))
    if constraint.any_of is not None:
        headers["X-Weight-Version-Any-Of"] = ", ".join(map(str, constraint.any_of))
    assert parse(None, headers) == constraint
    assert parse(msgspec.Raw(msgspec.json.encode(constraint)), headers) == constraint


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.sampled_from(["min_version", "any_of", "wait_s", "x"]), c),
    )
)
def test_anything_else_is_refused_or_understood_never_a_crash(value):
    with contextlib.suppress(InvalidConstraintError, ContradictoryConstraintError):
        parse(raw(value), {})


@given(st.dictionaries(st.sampled_from(["Min", "Exact", "Max", "Any-Of", "Wait"]), st.text(max_size=20)))
def test_so_with_headers(texts):
    with contextlib.suppress(InvalidConstraintError, ContradictoryConstraintError):
        parse(None, {f"X-Weight-Version-{name}": text for name, text in texts.items()})


def test_nothing_asks_for_nothing():
    assert parse(None, {}) == parse(raw(None), {}) == parse(raw({}), {}) == parse(raw({"min_version": None}), {}) == ANY
    assert ANY.is_empty
    assert ANY.first_from(3) == 3


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"min_versoin": 1}, "min_versoin"),
        ({"min_version": 1.5}, "min_version"),
        ({"max_version": 2**63}, "max_version"),
        ({"any_of": []}, "any_of"),
        ({"any_of": list(range(65))}, "any_of"),
        ({"wait_s": 1e9}, "wait_s"),
        (True, "min_version"),
    ],
)
def test_a_refusal_names_what_is_wrong(value, said):
    with pytest.raises(InvalidConstraintError, match=said):
        parse(raw(value), {})


def test_both_may_be_given_but_not_at_odds():
    assert parse(raw({"min_version": 2}), {"X-Weight-Version-Max": "4"}) == Constraint(min_version=2, max_version=4)
    with pytest.raises(ContradictoryConstraintError, match="min_version is 2 in the body and 3 in the headers"):
        parse(raw({"min_version": 2}), {"X-Weight-Version-Min": "3"})
