"""A stream's versions become folders that hosts pull, in order, across restarts, skips and runs that begin anew."""

import json
import signal
import threading

import pytest
from click.testing import CliRunner
from support.checkpoints import files_of
from support.local_service import STREAM
from support.slime_fleet import Host

from patchswarm.daemon.errors import BadInputError, InUseError
from patchswarm.daemon.local.errors import LeaseGoneError
from patchswarm.daemon.local.slime import following as following_module
from patchswarm.daemon.local.slime.command import write_deltas
from patchswarm.daemon.local.slime.following import Follower, Options
from patchswarm.daemon.local.slime.target import write_full


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def publish(head, run):
    """Publish the next step, or a folder; where it lies."""

    def publish(folder=None, label=""):
        folder = folder or run.step()
        head.client.publish(folder, stream=STREAM, label=label)
        return folder

    return publish


def follower(head, out, **options):
    return Follower(head.client, STREAM, out, Options(**options))


def folders(out):
    return sorted(path.name for path in out.iterdir() if path.is_dir())


def kinds(out):
    """Number and kind of each folder."""
    found = {}
    for path in sorted(out.glob("weight_v*")):
        index = path / "model.safetensors.index.json"
        metadata = json.loads(index.read_text()).get("metadata", {}) if index.exists() else {}
        found[int(path.name[8:])] = metadata.get("delta_encoding", "full")
    return found


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_the_first_is_whole_and_the_next_are_deltas(head, run, out, publish, tmp_path, encoding):
    host = Host(tmp_path / "host", run.base)
    publish(run.base)
    with follower(head, out, encoding=encoding) as following:
        assert following.step(0).full
        for number in (2, 3):
            truth = publish()
            folder = following.step(0)
            assert (folder.number, folder.version, folder.full) == (number, number, False)
            host.pull(out, number)
            assert files_of(host.folder) == files_of(truth)
        assert following.step(0) is None, "nothing new"
    assert kinds(out) == {1: "full", 2: encoding, 3: encoding}
    index = json.loads((out / "weight_v000003" / "model.safetensors.index.json").read_text())["metadata"]
    assert index["patchswarm_version"] == "3"
    assert index["patchswarm_manifest"] == head.client.version(STREAM).manifest


def test_slimes_own_numbers_are_kept_and_its_base_is_not_written(head, run, out, publish, tmp_path):
    """The fleet of a slime trainer whose post-write hook publishes: engines count from what they were started with."""
    host = Host(tmp_path / "host", run.base)
    publish(run.base, "weight_v000000")
    with follower(head, out) as following:
        assert following.step(0).number == 0
        assert folders(out) == []
        for number in (1, 2):
            truth = publish(label=f"weight_v{number:06}")
            assert following.step(0).number == number
            host.pull(out, number)
            assert files_of(host.folder) == files_of(truth)
    assert kinds(out) == {1: "xor", 2: "xor"}


def test_a_skipped_version_is_written_whole(head, out, publish, tmp_path, run):
    host = Host(tmp_path / "host", run.base)
    publish()
    with follower(head, out) as following:
        following.step(0)
        publish()
        truth = publish()
        assert following.step(0).full
    host.pull(out, 3)
    assert files_of(host.folder) == files_of(truth)
    with pytest.raises(FileNotFoundError):
        Host(tmp_path / "another", run.base).pull(out, 2)


def test_a_restart_goes_on_with_deltas(head, out, publish, run, tmp_path):
    publish()
    with follower(head, out) as following:
        following.step(0)
    publish()
    with follower(head, out) as following:
        assert not following.step(0).full
        assert following.step(0) is None
    assert kinds(out) == {1: "full", 2: "xor"}


def test_what_is_not_held_any_more_cannot_be_compared_with(head, out, publish):
    publish()
    with follower(head, out) as following:
        following.step(0)
    publish()
    del head.api.service.known[1]  # its slot has been written again
    with follower(head, out) as following:
        assert following.step(0).full


def test_a_lease_that_was_lost_makes_the_next_whole(head, out, publish, monkeypatch):
    monkeypatch.setattr(following_module, "LEASE_TTL_S", 0.3)
    publish()
    with follower(head, out) as following:
        following.step(0)
        for lease in head.api.service.leases.values():
            lease.gone = True
        renewing = following._held._renewer
        assert renewing.is_alive()
        renewing.join(30)  # the renewal finds out
        publish()
        assert following.step(0).full


def test_a_run_that_begins_anew_replaces_the_folders_of_the_old_one(head, run, out, publish, tmp_path):
    publish(run.base, "weight_v000000")
    with follower(head, out) as following:
        following.step(0)
        for number in (1, 2, 3):
            publish(label=f"weight_v{number:06}")
            following.step(0)
        publish(run.base, "weight_v000000")
        assert following.step(0).number == 0
        assert folders(out) == [], "they led to the old run's weights"
        truth = publish(label="weight_v000001")
        following.step(0)
    host = Host(tmp_path / "host", run.base)
    host.pull(out, 1)
    assert files_of(host.folder) == files_of(truth)


def test_old_folders_go_when_full_ones_are_written(head, out, publish, run, tmp_path):
    with follower(head, out, full_every=2) as following:
        for _ in range(9):
            truth = publish()
            following.step(0)
    assert kinds(out) == {4: "full", 5: "xor", 6: "xor", 7: "full", 8: "xor", 9: "xor"}
    host = Host(tmp_path / "host", run.base)
    host.pull(out, 9)
    assert files_of(host.folder) == files_of(truth)


def test_a_crash_half_way_leaves_no_half_folder(head, out, publish, monkeypatch):
    publish()
    with follower(head, out) as following:
        following.step(0)
        publish()
        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.rename", lambda *_: (_ for _ in ()).throw(SystemExit))
            with pytest.raises(SystemExit):
                following.step(0)
    assert folders(out) == ["weight_v000001"]
    (out / ".making-weight_v000002").mkdir()
    with follower(head, out) as following:
        assert following.last.number == 1, "the folder that never appeared is not counted on"
        assert following.step(0).number == 2
    assert folders(out) == ["weight_v000001", "weight_v000002"]


def test_what_was_made_and_not_shown_is_taken_back(head, out, publish):
    publish()
    with follower(head, out) as following:
        assert following.make(0)
        assert folders(out) == [".making-weight_v000001"]
    assert folders(out) == []
    with follower(head, out) as following:
        assert following.last is None
        assert following.step(0).number == 1


def test_what_was_written_from_a_lost_lease_never_appears(head, out, publish, monkeypatch):
    publish()

    def write_and_lose(new, into):
        write_full(new, into)
        for lease in head.api.service.leases.values():
            lease.gone = True
        for thread in threading.enumerate():
            if thread.name == "patchswarm-lease":
                thread.join(30)  # the renewal finds out

    with monkeypatch.context() as patch, follower(head, out) as following:
        patch.setattr(following_module, "LEASE_TTL_S", 0.3)
        patch.setattr(following_module, "write_full", write_and_lose)
        with pytest.raises(LeaseGoneError):
            following.step(0)
        assert folders(out) == []
        assert following.last is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_folder_that_appeared_is_said_even_when_the_end_comes_with_it(head, out, publish, monkeypatch, number):
    publish()
    show = Follower.show

    def show_and_end(self):
        signal.raise_signal(number)
        return show(self)

    monkeypatch.setattr(Follower, "show", show_and_end)
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        done = CliRunner().invoke(write_deltas, [str(out), "--stream", STREAM, "--socket", str(head.socket)])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert (done.exit_code, done.stdout) == (0, "wrote weight_v000001 whole: version 1\n")
    assert folders(out) == ["weight_v000001"]


def test_one_writer_at_a_time(head, out):
    with follower(head, out), pytest.raises(InUseError, match="another process writes here"), follower(head, out):
        pass


def test_folders_of_others_are_not_touched(head, out):
    (out / "weight_v000001").mkdir(parents=True)
    with pytest.raises(BadInputError, match="weight_v000001 of somebody else"), follower(head, out):
        pass


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format":1,"stream":"other"}', "of stream 'other'"),
        ('{"format":2,"stream":"qwen"}', "format 2"),
        ("{", "damaged"),
        ("", "damaged"),
    ],
)
def test_a_state_that_is_not_ours_is_named(head, out, text, says):
    out.mkdir()
    (out / ".patchswarm.json").write_text(text)
    with pytest.raises(BadInputError, match=says), follower(head, out):
        pass
