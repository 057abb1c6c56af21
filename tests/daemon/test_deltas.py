"""Deltas from real daemons: between slots, along transitions that have no slot, and what ends one."""

import asyncio
import os

import numpy as np
import pytest
from safetensors import deserialize
from support.checkpoints import model, stepped, write

from patchswarm.daemon.local import errors
from patchswarm.daemon.local.errors import UnknownVersionError
from patchswarm.protocol.errors import BaseMismatchError
from patchswarm.storage.errors import LoadInFullError

from .single import head_of, member_of, short_path, until

STREAM = "qwen"


class Publishing:
    """A head that publishes one training step after the other, and what it published."""

    def __init__(self, head, root):
        self.head = head
        self.root = root
        self.random = np.random.default_rng(5)
        self.versions = []

    async def step(self, tensors=None):
        if tensors is None:
            tensors = stepped(self.versions[-1], self.random) if self.versions else model(1)
        self.versions.append(tensors)
        number = len(self.versions)
        side = {"trainer_state.json": b"x" * 100 * number}
        await self.head.publish(STREAM, write(self.root / f"c{number}", tensors, shards=2, side=side))
        return number


async def read(single, start, end):
    """A delta as an engine reads it: name to (indices, values)."""
    async with single.node.service.open_delta(STREAM, start, end) as opened:
        raw = await asyncio.to_thread(os.pread, opened.descriptor, opened.size_bytes + 1, 0)
        assert len(raw) == opened.size_bytes
        entries = {name: (entry["dtype"], bytes(entry["data"])) for name, entry in deserialize(raw)}
    return {
        name.removesuffix(".indices"): (
            np.frombuffer(data, np.int32),
            np.frombuffer(entries[name.removesuffix("indices") + "values"][1], np.uint16),
        )
        for name, (_, data) in entries.items()
        if name.endswith(".indices")
    }


def leads(delta, before, after):
    """Whether a delta, applied to one version's tensors, gives those of another."""
    for name, tensor in before.items():
        data = tensor.data.view(np.uint16).copy()
        if name in delta:
            indices, values = delta[name]
            data[indices] = values
        if not np.array_equal(data, after[name].data.view(np.uint16)):
            return False
    return True


@pytest.fixture
async def fleet():
    with short_path() as root:
        async with head_of(root) as head, member_of(head, root) as member:
            yield Publishing(head, root), member


async def two_held(fleet, *second):
    """Both versions stand in the member's slots, the first by a lease."""
    publishing, member = fleet
    await publishing.step()
    await member.committed(STREAM, 1)
    await member.node.service.lease(STREAM, 1, 60)
    await publishing.step(*second)
    await member.committed(STREAM, 2)
    return publishing, member


async def test_two_versions_that_are_held_are_compared(fleet):
    publishing, member = await two_held(fleet)
    delta = await read(member, 1, None)
    assert leads(delta, *publishing.versions)
    assert leads(await read(member, 2, 1), *reversed(publishing.versions))
    assert await read(member, 2, 2) == {}


async def test_a_version_that_has_no_slot_is_reached_along_its_transitions(fleet):
    """Both slots are leased, so versions 3 and 4 are in the chunk store only."""
    publishing, member = fleet
    for number in (1, 2):
        await publishing.step()
        await member.committed(STREAM, number)
        await member.node.service.lease(STREAM, number, 60)
    await publishing.step()
    await publishing.step()
    await until(lambda: len(member.fleet.view.complete(STREAM)) == len(publishing.head.fleet.view.complete(STREAM)))
    assert member.node.replicas[STREAM].current().version == 2
    one, two, three, four = publishing.versions
    assert leads(await read(member, 2, 3), two, three)
    assert leads(await read(member, 2, 4), two, four)
    assert leads(await read(member, 1, 4), one, four)


async def test_a_version_that_is_not_held_or_not_known_is_one_clear_error(fleet):
    publishing, member = fleet
    await publishing.step()
    await member.committed(STREAM, 1)
    with pytest.raises(UnknownVersionError, match=r"version 0 of qwen is not held here; keep a lease"):
        await read(member, 0, 1)
    with pytest.raises(UnknownVersionError, match="version 9 of qwen is neither held here nor reached from version 1"):
        await read(member, 1, 9)


async def test_other_tensors_say_to_load_in_full(fleet):
    _, member = await two_held(fleet, model(1, layers=3))
    with pytest.raises(LoadInFullError, match=r"tensor 'layers\.3\.[a-z.]+' is gone from the later version"):
        await read(member, 1, 2)


async def test_it_is_made_once_for_all_who_ask_and_again_after_a_withdrawal(fleet, monkeypatch):
    publishing, member = await two_held(fleet)
    made = []
    from patchswarm.daemon import deltas

    write_delta = deltas.write_delta
    monkeypatch.setattr(deltas, "write_delta", lambda *given: made.append(given) or write_delta(*given))
    found = await asyncio.gather(*(read(member, 1, 2) for _ in range(4)))
    assert len(made) == 1
    assert all(leads(delta, *publishing.versions) for delta in found)
    async with member.node.service.open_delta(STREAM, 1, 2) as opened:
        replica = member.node.replicas[STREAM]
        slot = replica.current()
        await asyncio.to_thread(replica.withdraw, slot)
        await until(opened.voided.is_set)
    await member.committed(STREAM, 2)  # rebuilt from version 1, which is held
    assert leads(await read(member, 1, 2), *publishing.versions)
    assert len(made) == 2


async def test_who_goes_away_ends_the_work(fleet, monkeypatch):
    publishing, member = await two_held(fleet)
    from patchswarm.daemon import deltas

    begun, compare = asyncio.Event(), deltas.compare
    loop = asyncio.get_running_loop()

    def endless(*given):
        loop.call_soon_threadsafe(begun.set)
        while True:
            yield next(iter(compare(*given)))

    monkeypatch.setattr(deltas, "compare", endless)
    reading = asyncio.create_task(read(member, 1, 2))
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    monkeypatch.undo()
    assert leads(await read(member, 1, 2), *publishing.versions)


async def test_what_no_version_or_no_fitting_transition_leads_to_is_one_clear_error(fleet, monkeypatch):
    publishing, member = fleet
    for number in (1, 2):
        await publishing.step()
        await member.committed(STREAM, number)
        await member.node.service.lease(STREAM, number, 60)
    await publishing.step()
    await until(lambda: len(member.fleet.view.complete(STREAM)) == len(publishing.head.fleet.view.complete(STREAM)))
    from patchswarm.daemon import deltas

    def not_fitting(*_):
        raise BaseMismatchError("the old values are not the base's")
        yield

    monkeypatch.setattr(deltas, "compose_legs", not_fitting)
    with pytest.raises(errors.LoadInFullError, match="a transition to version 3 does not fit"):
        await read(member, 2, 3)
    monkeypatch.setattr(member.node.replicas[STREAM], "current", lambda: None)
    with pytest.raises(UnknownVersionError, match="no version that is served now"):
        await read(member, 2, None)
