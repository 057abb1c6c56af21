"""The fuzzer, for a moment in every run, and for a minute a target with `-m slow`; `scripts/fuzz` goes on longer."""

import random
import time

import pytest
from fuzzing import run
from fuzzing.http import fuzz_http
from fuzzing.mutate import Mutator
from fuzzing.run import MEMORY_BYTES, fuzz
from fuzzing.targets import TARGETS, Target

from patchswarm.protocol.errors import MessageError

CASES = 400
BY_NAME = {target.name: target for target in TARGETS}


def judge(outcome):
    assert outcome.finding == ""
    assert outcome.grown_bytes <= MEMORY_BYTES
    assert 0 < outcome.refused < outcome.cases, "some input is refused, and some gets past the door"


@pytest.mark.parametrize("name", BY_NAME)
def test_bent_input_raises_what_it_may_and_needs_no_memory(name):
    judge(fuzz(BY_NAME[name], 60, seed=5, most=CASES))


def test_bent_requests_meet_no_error_of_the_daemons_own():
    outcome = fuzz_http(60, seed=5, most=CASES)
    assert outcome.finding == ""
    assert outcome.refused


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", [*BY_NAME, "http"])
def test_bent_input_for_a_minute(name):
    seed = time.time_ns() % 2**32
    print(f"seed {seed}")
    outcome = fuzz_http(60, seed) if name == "http" else fuzz(BY_NAME[name], 60, seed)
    assert outcome.finding == ""


def target_that(does):
    def cases(_):
        while True:
            yield does

    return Target("made up", (MessageError,), cases)


def test_an_error_that_nobody_allowed_is_a_finding_with_its_case():
    def fail():
        raise KeyError("x")

    outcome = fuzz(target_that(fail), 5, seed=1, most=10)
    assert outcome.cases == 1
    assert "KeyError: 'x'" in outcome.finding


def test_an_allowed_error_is_none():
    def refuse():
        raise MessageError("no")

    assert fuzz(target_that(refuse), 5, seed=1, most=10).finding == ""


def test_memory_without_bounds_is_a_finding(monkeypatch):
    peaks = iter((0, MEMORY_BYTES + 1))
    monkeypatch.setattr(run, "peak_bytes", lambda: next(peaks))
    assert "over the limit" in fuzz(target_that(lambda: None), 5, seed=1, most=10).finding


def test_the_same_seed_bends_alike():
    def some(seed):
        mutator = Mutator(random.Random(seed))
        return [mutator.packed(b"\x93\x01\x02\xa3abc") for _ in range(50)]

    assert some(1) == some(1)
    assert some(1) != some(2)
