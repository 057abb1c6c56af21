"""The gate: who is let in, who waits, who is drained."""

import asyncio

import pytest

from patchswarm.daemon.local.gateway.choice import Applied
from patchswarm.daemon.local.gateway.constraint import ANY, Constraint
from patchswarm.daemon.local.gateway.errors import EngineUnavailableError, WeightVersionMovedError
from patchswarm.daemon.local.gateway.gate import Drain, Gate

CUT = WeightVersionMovedError("cut")


def patient(_constraint, _applied):
    return 60.0


def version(number):
    return Applied(1, number, f"m{number}")


@pytest.fixture
def gate():
    gate = Gate()
    gate.apply("qwen", version(1))
    return gate


class Visitor:
    """A request in a task of its own: enters, stays until told to go, leaves."""

    def __init__(self, gate, constraint=ANY, stream="qwen", patience=patient):
        self.go = asyncio.Event()
        self.admission = None
        self.inside = asyncio.Event()
        self.task = asyncio.create_task(self.visit(gate, constraint, stream, patience))

    async def visit(self, gate, constraint, stream, patience):
        self.admission = await gate.enter(stream, constraint, patience)
        self.inside.set()
        try:
            await self.go.wait()
        finally:
            gate.leave(self.admission)


async def settled():
    """Until every task that can go on has."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_is_satisfied_enters_at_once(gate):
    admission = await gate.enter("qwen", Constraint(min_version=1), patient)
    assert admission.start == version(1)
    assert gate.active == 1
    gate.leave(admission)
    assert gate.active == 0


async def test_who_is_not_waits_until_the_weights_are_applied(gate):
    visitor = Visitor(gate, Constraint(min_version=2))
    await gate.wanted.wait()
    assert gate.waiting("qwen") == [Constraint(min_version=2)]
    assert gate.waiting("other") == []
    gate.apply("qwen", version(2))
    await visitor.inside.wait()
    assert visitor.admission.start == version(2)
    assert gate.waiting("qwen") == []
    visitor.go.set()
    await visitor.task


async def test_patience_is_looked_at_again_when_there_is_news(gate):
    left = [60.0]
    visitor = Visitor(gate, Constraint(min_version=2), patience=lambda _c, _a: left[0])
    await gate.wanted.wait()
    left[0] = 0.0
    gate.changed()
    with pytest.raises(TimeoutError):
        await visitor.task
    assert gate.waiting("qwen") == []


async def test_a_move_waits_for_those_it_would_break_and_for_no_other(gate):
    free = Visitor(gate)
    fine = Visitor(gate, Constraint(min_version=1))
    elsewhere = Visitor(gate, stream="other")
    broken = Visitor(gate, Constraint(max_version=1))
    await settled()
    closed = asyncio.Event()

    async def move():
        async with gate.closed("qwen", (1, 2), Drain.BROKEN, drain_s=60, cut=CUT):
            closed.set()
            gate.apply("qwen", version(2))

    task = asyncio.create_task(move())
    await settled()
    assert not closed.is_set()
    broken.go.set()
    await task
    for visitor in (free, fine, elsewhere, broken):
        visitor.go.set()
        await visitor.task


@pytest.mark.parametrize(("drain", "waits_for_other"), [(Drain.STREAM, False), (Drain.ALL, True)])
async def test_a_move_may_wait_for_more(gate, drain, waits_for_other):
    mine, other = Visitor(gate), Visitor(gate, stream="other")
    await settled()
    closed = asyncio.Event()

    async def move():
        async with gate.closed("qwen", (1, 2), drain, drain_s=60, cut=CUT):
            closed.set()

    task = asyncio.create_task(move())
    await settled()
    assert not closed.is_set()
    mine.go.set()
    await settled()
    assert closed.is_set() != waits_for_other
    other.go.set()
    await task
    await asyncio.gather(mine.task, other.task)


async def test_while_it_is_closed_everybody_waits_and_then_begins_with_the_new_weights(gate):
    async with gate.closed("qwen", (1, 2), Drain.ALL, drain_s=60, cut=CUT):
        visitors = [Visitor(gate), Visitor(gate, Constraint(min_version=1))]
        await settled()
        assert gate.active == 0
        gate.apply("qwen", version(2))
        await settled()
        assert gate.active == 0
    for visitor in visitors:
        await visitor.inside.wait()
        assert visitor.admission.start == version(2)
        visitor.go.set()
        await visitor.task


async def test_who_stays_too_long_is_cut_and_told_why(gate):
    visitor = Visitor(gate, Constraint(exact_version=1))
    await visitor.inside.wait()
    async with gate.closed("qwen", (1, 2), Drain.BROKEN, drain_s=0.0, cut=CUT):
        assert gate.active == 0
    assert visitor.admission.cut is CUT
    with pytest.raises(asyncio.CancelledError):
        await visitor.task


async def test_a_blocked_gate_refuses_at_once_those_who_wait_too(gate):
    visitor = Visitor(gate, Constraint(min_version=2))
    await gate.wanted.wait()
    gate.block("weights unknown")
    with pytest.raises(EngineUnavailableError, match="weights unknown"):
        await visitor.task
    with pytest.raises(EngineUnavailableError):
        await gate.enter("qwen", ANY, patient)
    gate.block("")
    gate.leave(await gate.enter("qwen", ANY, patient))


async def test_forgotten_weights_satisfy_nobody(gate):
    gate.forget("qwen")
    assert gate.applied("qwen") is None
    with pytest.raises(TimeoutError):
        await gate.enter("qwen", Constraint(min_version=0), lambda _c, _a: 0.0)
    assert (await gate.enter("qwen", ANY, patient)).start is None
