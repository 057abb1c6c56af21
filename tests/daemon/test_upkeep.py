"""How far a verification has come that somebody waits for, and how a slot that has lost a file is mended."""

import asyncio
import os
import threading
from functools import partial

import pytest
from daemon.single import Single, head_of, member_of, short_path, until
from support.checkpoints import files_of, model, write

STREAM = "qwen"


@pytest.fixture
def root():
    with short_path() as made:
        yield made


def held_up(slots, monkeypatch):
    """Have verifications of these slots wait after a piece: two events, that one is waiting, and that it may go on."""
    waiting, go_on, verify = threading.Event(), threading.Event(), slots.verify_slot

    def slowly(pace, size_bytes):
        went_on = pace(size_bytes)
        waiting.set()
        go_on.wait(30)
        return went_on

    monkeypatch.setattr(
        slots, "verify_slot", lambda slot, digests, threads, pace: verify(slot, digests, threads, partial(slowly, pace))
    )
    return waiting, go_on


async def test_a_verification_that_was_asked_for_tells_how_far_it_is_and_then_no_more(root, tmp_path, monkeypatch):
    async with head_of(root, verify_every_s=3600) as head:
        await head.publish(STREAM, write(tmp_path / "1", model()))
        slot, service = await head.committed(STREAM, 1), head.node.service
        await until(lambda: len(head.node.replicas[STREAM].slots.slots()) == 2)  # the version, and its twin
        assert service.status(STREAM).progress is None
        waiting, go_on = held_up(head.node.replicas[STREAM].slots, monkeypatch)
        verifying = asyncio.create_task(service.verify(STREAM, repair=False))
        await asyncio.to_thread(waiting.wait, 30)
        progress = service.status(STREAM).progress
        assert (progress.stage, progress.version, progress.done_bytes) == ("verify", 1, slot.layout.size)
        assert progress.total_bytes == 2 * slot.layout.size, "all slots count together"
        go_on.set()
        checks = await verifying
        assert [check.bad for check in checks] == [0, 0]
        assert service.status(STREAM).progress is None


async def test_a_check_that_nobody_waits_for_is_no_progress(root, tmp_path, monkeypatch):
    async with head_of(root, verify_every_s=3600) as head:
        await head.publish(STREAM, write(tmp_path / "1", model()))
        await head.committed(STREAM, 1)
        await until(lambda: len(head.node.replicas[STREAM].slots.slots()) == 2)
        waiting, go_on = held_up(head.node.replicas[STREAM].slots, monkeypatch)
        upkeep = head.node.upkeeps[STREAM]
        checking = asyncio.create_task(upkeep._check(head.node.replicas[STREAM].current(), mend=True))
        await asyncio.to_thread(waiting.wait, 30)
        assert head.node.service.status(STREAM).progress is None
        go_on.set()
        assert (await checking).bad == 0


@pytest.mark.parametrize("harm", ["removed", "cut short"])
async def test_a_slot_that_has_lost_a_file_is_mended(root, tmp_path, harm):
    directory = write(tmp_path / "1", model())
    async with head_of(root, verify_every_s=3600) as head:
        await head.publish(STREAM, directory)
        async with member_of(head, root) as member:
            slot = await member.committed(STREAM, 1)
            await until(lambda: len(member.node.replicas[STREAM].slots.slots()) == 2)
        file = slot.path / "model.safetensors"
        if harm == "removed":
            file.unlink()
        else:
            os.truncate(file, 100)
        async with Single(member.home, member.config).running() as again:
            await again.committed(STREAM, 1)
            checks = await again.node.service.verify(STREAM, repair=True)
            assert sum(check.bad for check in checks) > 0
            replica = again.node.replicas[STREAM]
            await until(lambda: replica.current() and files_of(replica.current().path) == files_of(directory))
