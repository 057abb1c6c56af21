"""Which changes of config.toml take effect while the daemon runs."""

import msgspec
import pytest

from patchswarm.daemon.config import Config, Limits, Log, Storage, Stream, Streams
from patchswarm.daemon.reloading import RELOADABLE, reload

replace = msgspec.structs.replace


def test_an_unchanged_file_changes_nothing():
    assert reload(Config(), Config()) == (Config(), [], [])


def test_reloadable_keys_are_applied_and_others_wait():
    file = Config(limits=Limits(lanes=3), log=Log(level="debug"), storage=Storage(retain_versions=4, slots=3))
    found = reload(Config(), file)
    assert found.applied == ["log.level", "storage.retain_versions"]
    assert found.waiting == ["limits.lanes", "storage.slots"]
    assert found.config == Config(log=Log(level="debug"), storage=Storage(retain_versions=4))


def test_a_table_of_a_stream_waits_key_by_key():
    file = Config(stream={"qwen": Stream(anchor_every=4)}, streams=Streams(follow=("qwen",)))
    found = reload(Config(stream={"qwen": Stream()}), file)
    assert found.waiting == ["stream.qwen.anchor_every", "streams.follow"]
    assert reload(Config(), file).waiting[0].startswith("stream.qwen.")


@pytest.mark.parametrize("key", sorted(RELOADABLE))
def test_every_reloadable_key_exists(key):
    section, name = key.split(".")
    assert hasattr(getattr(Config(), section), name)
