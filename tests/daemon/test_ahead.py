"""Versions applied while they still come in: committed from there, undone when nothing comes of them, never trusted."""

import asyncio

import pytest
from daemon.single import until
from support.streams import model, read_tree, write_tree

from patchswarm.daemon.making import Making
from patchswarm.storage.errors import NoSpaceError

STREAM = "qwen"


@pytest.fixture
def almost(monkeypatch):
    """Publishes stop before they sign, everything encoded, until `go` is set."""
    go = asyncio.Event()
    finish = Making._finish

    async def held(self, *arguments, **options):
        await go.wait()
        return await finish(self, *arguments, **options)

    monkeypatch.setattr(Making, "_finish", held)
    return go


def ahead_of(member):
    return member.node.replicas[STREAM]._rebuilder.ahead


async def ready(head, member, root, almost):
    """Both hold version 1, twins made."""
    almost.set()
    await head.publish(STREAM, write_tree(root / "trainer" / "1", model(1, 0)))
    await member.committed(STREAM, 1)
    for single in (head, member):
        slots = single.node.replicas[STREAM].slots
        await until(lambda slots=slots: any(slot.twin for slot in slots.slots()))
    almost.clear()


async def applied(member, chunks=1):
    """Wait until so many chunks are applied of a version that is still being made."""
    await until(lambda: STREAM in member.node.replicas and ahead_of(member).attempt)
    await until(lambda: (begun := ahead_of(member)._begun) is None or begun.applied.bit_count() >= chunks)
    assert ahead_of(member).attempt


async def test_a_step_is_applied_while_it_is_made_and_committed_with_its_manifest(head, member, root, almost):
    await ready(head, member, root, almost)
    publishing = asyncio.create_task(head.publish(STREAM, write_tree(root / "trainer" / "2", model(1, 1))))
    await applied(member)
    replica = member.node.replicas[STREAM]
    assert replica.current().version == 1
    assert read_tree(replica.current().path) == model(1, 0)
    finished, begun = replica._rebuilder._apply, []
    replica._rebuilder._apply = lambda route, building, done: begun.append(done) or finished(route, building, done)
    almost.set()
    await publishing
    slot = await member.committed(STREAM, 2)
    assert read_tree(slot.path) == model(1, 1)
    assert begun[0]


async def test_a_first_version_is_applied_while_it_is_made(head, member, root, almost):
    publishing = asyncio.create_task(head.publish(STREAM, write_tree(root / "trainer" / "1", model(1, 0))))
    await applied(member)
    assert member.node.replicas[STREAM].current() is None
    almost.set()
    await publishing
    assert read_tree((await member.committed(STREAM, 1)).path) == model(1, 0)


async def test_what_comes_to_nothing_is_undone(head, member, root, almost, monkeypatch):
    await ready(head, member, root, almost)

    def no_room(*_arguments, **_options):
        raise NoSpaceError("no room for the signature")

    with monkeypatch.context() as patched:
        patched.setattr(Making, "_sign", no_room)
        publishing = asyncio.create_task(head.publish(STREAM, write_tree(root / "trainer" / "2", model(1, 1))))
        await applied(member)
        almost.set()
        with pytest.raises(NoSpaceError):
            await publishing
    given_up = ahead_of(member).attempt
    assert given_up
    made = await head.publish(STREAM, write_tree(root / "trainer" / "3", model(1, 2)))
    slot = await member.committed(STREAM, made.slot.version)
    assert read_tree(slot.path) == model(1, 2)
    assert ahead_of(member).attempt != given_up
    await until(lambda: any(slot.twin for slot in member.node.replicas[STREAM].slots.slots()))
    (twin,) = [slot for slot in member.node.replicas[STREAM].slots.slots() if slot.twin]
    assert read_tree(twin.path) == model(1, 2)


async def test_a_twin_with_a_flipped_bit_is_not_begun_twice_and_the_version_is_exact(head, member, root, almost):
    await ready(head, member, root, almost)
    slots = member.node.replicas[STREAM].slots
    twin = next(slot for slot in slots.slots() if slot.twin)
    file = max(twin.path.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    with file.open("r+b") as opened:  # every bit of the second half: some of it is sure to be a record's old value
        opened.seek(file.stat().st_size // 2)
        data = opened.read()
        opened.seek(file.stat().st_size // 2)
        opened.write(bytes(byte ^ 255 for byte in data))
    almost.set()
    await head.publish(STREAM, write_tree(root / "trainer" / "2", model(1, 1)))
    slot = await member.committed(STREAM, 2, within_s=60)
    assert read_tree(slot.path) == model(1, 1)


async def test_a_publish_that_is_not_streamed_is_heard_of_when_it_is_encoded(head, member, root, almost, monkeypatch):
    await ready(head, member, root, almost)
    heard, announce = [], Making._announce

    def noted(self, opening):
        heard.append(self._diff is not None)
        announce(self, opening)

    monkeypatch.setattr(Making, "_announce", noted)
    almost.set()
    for number, streamed in enumerate((True, False), 2):
        await head.publish(STREAM, write_tree(root / "trainer" / str(number), model(1, number)), streamed=streamed)
        assert read_tree((await member.committed(STREAM, number)).path) == model(1, number)
    assert heard == [False, True]
