"""Finished folders are published once each, oldest first, whatever ends or fails on the way."""

import asyncio
import os
import shutil

import pytest
from support.checkpoints import files_of, model, stepped, write
from support.local_service import STREAM
from support.slime_fleet import Trainer

from patchswarm.daemon.errors import BadInputError, HomeError, InUseError
from patchswarm.daemon.local.aio_client import AsyncClient
from patchswarm.daemon.local.errors import BadSourceError, NotPublisherError, PublishBusyError, UnavailableError
from patchswarm.daemon.local.trainer.finding import look
from patchswarm.daemon.local.trainer.record import Intent, open_record
from patchswarm.daemon.local.trainer.watching import Options, Watcher


class Watch:
    """A watcher over a trainer's directory, driven look by look at times that the test says."""

    def __init__(self, head, root):
        self.head = head
        self.root = root
        self.directory = root / "out"
        self.directory.mkdir()
        self.said = []
        self.events = []
        self.now = 0.0
        self.made = 0

    def hear(self, event):
        self.events.append(event)
        self.said.append(event.text)

    def checkpoint(self, name, *, marked=True, time=None, **options):
        """A folder as a trainer makes it; each is a second younger than the one before."""
        folder = write(self.directory / name, model(seed=len(name) + self.made, layers=1, width=16), **options)
        if marked:
            (folder / "STABLE").touch()
        self.made += 1
        for path in (each for each in folder.rglob("*") if each.is_file()):
            os.utime(path, (1e9 + self.made, time or 1e9 + self.made))
        return folder

    async def run(self, looks=None, **options):
        """One life of a watcher: as many looks, or until there is nothing to do."""
        settings = Options(directory=self.directory, stream=STREAM, staging=self.root / "staging", **options)
        with open_record(self.root / "state", STREAM, self.directory) as record:
            async with AsyncClient(self.head.socket) as client:
                watcher = Watcher(settings, client, self.head.client, record, self.hear, lambda: self.now)
                did = True
                while did if looks is None else looks:
                    did = await watcher.step()
                    looks = None if looks is None else looks - 1


@pytest.fixture
def watch(head, tmp_path):
    return Watch(head, tmp_path)


async def test_marked_folders_are_published_oldest_first(watch, head):
    for number in (9, 10, 2):
        watch.checkpoint(f"step_{number}")
    await watch.run()
    assert head.labels() == ["step_9", "step_10", "step_2"], "in the order in which they were finished"
    assert files_of(head.path()) == {
        name: digest for name, digest in files_of(watch.directory / "step_2").items() if name != "STABLE"
    }
    assert [line.split(":")[0] for line in watch.said] == [
        "published step_9 as version 1",
        "published step_10 as version 2",
        "published step_2 as version 3",
    ]
    assert [(each.event, each.folder, each.version) for each in watch.events] == [
        ("published", "step_9", 1),
        ("published", "step_10", 2),
        ("published", "step_2", 3),
    ]
    assert all(0 < each.patch_bytes <= each.full_bytes for each in watch.events), "what a program is told besides"


async def test_a_restart_publishes_nothing_twice(watch, head):
    watch.checkpoint("step_1")
    await watch.run()
    watch.checkpoint("step_2")
    await watch.run()
    await watch.run()
    assert head.labels() == ["step_1", "step_2"]


async def test_a_folder_made_anew_is_published_anew(watch, head):
    """The trainer went back: its step is an old one, the version is a new one."""
    watch.checkpoint("step_1")
    await watch.run()
    shutil.rmtree(watch.directory / "step_1")
    watch.checkpoint("step_1")
    await watch.run()
    assert head.labels() == ["step_1", "step_1"]


async def test_without_a_marker_a_folder_must_have_settled(watch, head):
    folder = watch.checkpoint("step_1", marked=False)
    with open_record(watch.root / "state", STREAM, watch.directory) as record:
        async with AsyncClient(head.socket) as client:
            options = Options(directory=watch.directory, stream=STREAM, settle_s=10, staging=watch.root / "staging")
            looking = Watcher(options, client, head.client, record, watch.said.append, lambda: watch.now)
            assert not await looking.step()
            watch.now = 9.0
            assert not await looking.step()
            (folder / "late.json").write_text("{}")
            watch.now = 18.0
            assert not await looking.step()
            watch.now = 28.0
            assert await looking.step()
    assert "late.json" in head.files()


async def test_a_torn_folder_is_waited_for_and_said_once(watch, head):
    folder = watch.checkpoint("step_1", shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    data = shard.read_bytes()
    shard.unlink()
    await watch.run(looks=3)
    assert head.labels() == []
    assert watch.said == [
        "waiting for step_1: model-00002-of-00002.safetensors, which model.safetensors.index.json names, is not there"
    ]
    shard.write_bytes(data)
    await watch.run()
    assert head.labels() == ["step_1"]


async def test_the_newest_only_skips_the_others_and_says_so(watch, head):
    for number in (1, 2, 3):
        watch.checkpoint(f"step_{number}")
    await watch.run(newest_only=True)
    assert head.labels() == ["step_3"]
    assert watch.said[:2] == [
        "skipped step_1: a newer one, step_3, is ready",
        "skipped step_2: a newer one, step_3, is ready",
    ]
    watch.checkpoint("step_4")
    await watch.run(newest_only=True)
    await watch.run()
    assert head.labels() == ["step_3", "step_4"], "skipped is skipped, also after a restart"


async def test_a_refused_folder_does_not_hold_up_the_next(watch, head):
    watch.checkpoint("step_1")
    watch.checkpoint("step_2")
    head.failure = BadSourceError("step_1 cannot be published: a name with a colon", remedy="rename it")
    await watch.run()
    assert head.labels() == ["step_2"]
    assert watch.said[0] == "refused step_1: step_1 cannot be published: a name with a colon; rename it"
    await watch.run()
    assert head.labels() == ["step_2"], "it is not tried again until it changes"
    (watch.directory / "step_1" / "STABLE").write_text("again")
    await watch.run()
    assert head.labels() == ["step_2", "step_1"]


@pytest.mark.parametrize("failure", [PublishBusyError("another is under way"), UnavailableError("starting")])
async def test_what_will_pass_is_tried_again(watch, head, failure):
    watch.checkpoint("step_1")
    head.failure = failure
    await watch.run(looks=1)
    assert watch.said == [f"{failure}; trying again"]
    await watch.run()
    assert head.labels() == ["step_1"]


async def test_a_node_that_may_not_publish_ends_the_watch(watch, head):
    watch.checkpoint("step_1")
    head.failure = NotPublisherError("publish on the head")
    with pytest.raises(NotPublisherError):
        await watch.run()


async def test_a_publish_whose_end_was_not_seen_is_not_made_again(watch, head):
    """Killed after the daemon had published, before it was written down."""
    watch.checkpoint("step_1")
    await watch.run()
    folder = watch.checkpoint("step_2")
    with open_record(watch.root / "state", STREAM, watch.directory) as record:
        sight = look(watch.directory, "*", "STABLE")[1]
        record.begin(Intent(name="step_2", stamp=sight.stamp, label="step_2", after=(1, 1)))
    head.client.publish(folder, stream=STREAM, label="step_2")
    await watch.run()
    assert head.labels() == ["step_1", "step_2"]
    assert watch.said[-1] == "step_2 was published before, as version 2"


async def test_a_publish_that_came_to_nothing_is_made_again(watch, head):
    watch.checkpoint("step_1")
    with open_record(watch.root / "state", STREAM, watch.directory) as record:
        (sight,) = look(watch.directory, "*", "STABLE")
        record.begin(Intent(name="step_1", stamp=sight.stamp, label="step_1", after=(0, 0)))
    await watch.run()
    assert head.labels() == ["step_1"]


async def test_an_older_version_with_the_same_label_is_not_taken_for_it(watch, head, tmp_path):
    head.client.publish(write(tmp_path / "other", model(layers=1, width=16)), stream=STREAM, label="step_1")
    watch.checkpoint("step_1")
    head.failure = UnavailableError("starting")
    await watch.run(looks=1)
    await watch.run()
    assert head.labels() == ["step_1", "step_1"]


async def test_labels_are_made_from_names(watch, head):
    watch.checkpoint("global_step12_hf")
    await watch.run(label="step {step} ({name})")
    assert head.labels() == ["step 12 (global_step12_hf)"]
    for template in ("{nmae}", "{0}", "{", "{name.x}"):
        with pytest.raises(BadInputError, match=r"only \{name\} and \{step\}"):
            await watch.run(label=template)


async def test_folders_that_the_trainer_removes_are_forgotten(watch, head):
    watch.checkpoint("step_1")
    await watch.run()
    shutil.rmtree(watch.directory / "step_1")
    await watch.run()
    (state,) = (watch.root / "state").glob("*.json")
    assert "step_1" not in state.read_text()


async def test_what_only_the_trainer_reads_is_left_out(watch, head):
    watch.checkpoint("checkpoint-5", side={"optimizer.pt": b"x", "global_step5/zero.pt": b"y", "tokenizer.json": b"{}"})
    await watch.run()
    assert head.files() == ["config.json", "model.safetensors", "tokenizer.json"]
    assert not any(path.name != ".lock" for path in (watch.root / "staging").iterdir())


async def test_slimes_deltas_are_applied_in_order(watch, head, tmp_path, random):
    tensors = model(layers=1, width=32)
    base = write(tmp_path / "base", tensors)
    head.client.publish(base, stream=STREAM, label="weight_v000000")
    trainer = Trainer(watch.directory, {name: each.data.tobytes() for name, each in tensors.items()})
    for number in (1, 2, 3):
        tensors = stepped(tensors, random)
        trainer.publish({name: each.data.tobytes() for name, each in tensors.items()})
        write(tmp_path / f"truth-{number}", tensors)
    await watch.run(newest_only=True)  # deltas build on one another: none may be skipped
    assert head.labels() == [f"weight_v{number:06}" for number in range(4)]
    assert files_of(head.path()) == files_of(tmp_path / "truth-3")


async def test_a_delta_without_its_base_is_refused_with_the_reason(watch, head, random):
    tensors = {"a": bytes(8)}
    Trainer(watch.directory, tensors).publish({"a": bytes(7) + b"x"})
    await watch.run()
    assert head.labels() == []
    assert "refused weight_v000001" in watch.said[0]
    assert "--label weight_v000000" in watch.said[0]


async def test_a_directory_that_cannot_be_read_is_looked_at_again(watch, head):
    watch.directory.rename(watch.root / "away")
    await watch.run(looks=2)
    assert watch.said == [f"{watch.directory} cannot be read: No such file or directory; looking again"]


async def test_two_watchers_of_one_directory_are_one_too_many(watch):
    with open_record(watch.root / "state", STREAM, watch.directory), pytest.raises(InUseError, match="watched for"):
        await watch.run()


@pytest.mark.parametrize(("text", "says"), [("{", "cannot be read"), ('{"format":9,"stream":"","directory":""}', "9")])
async def test_a_damaged_record_is_named(watch, text, says):
    watch.checkpoint("step_1")
    await watch.run()
    (state,) = (watch.root / "state").glob("*.json")
    state.write_text(text)
    with pytest.raises(HomeError, match=says):
        await watch.run()


async def test_a_watch_that_is_told_to_end_gives_up_what_it_publishes(watch, head):
    watch.checkpoint("step_1")
    begun, gave_up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow(_request, _progress):
        loop.call_soon_threadsafe(begun.set)
        try:
            await asyncio.Event().wait()
        finally:
            loop.call_soon_threadsafe(gave_up.set)

    publishing, head.api.service.publishing = head.api.service.publishing, slow
    running = asyncio.create_task(watch.run())
    await asyncio.wait_for(begun.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(gave_up.wait(), 30)
    head.api.service.publishing = publishing
    await watch.run()
    assert head.labels() == ["step_1"]


async def test_it_looks_again_until_it_is_told_to_stop(watch, head):
    settings = Options(directory=watch.directory, stream=STREAM, poll_s=0.01, staging=watch.root / "staging")
    stop = asyncio.Event()
    with open_record(watch.root / "state", STREAM, watch.directory) as record:
        async with AsyncClient(head.socket) as client:
            watcher = Watcher(settings, client, head.client, record, watch.said.append)
            running = asyncio.create_task(watcher.run(stop))
            watch.checkpoint("step_1")
            assert await client.find(STREAM, "step_1", 30) is not None
            watch.checkpoint("step_2")
            assert await client.find(STREAM, "step_2", 30) is not None
            stop.set()
            await asyncio.wait_for(running, 30)
