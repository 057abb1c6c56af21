"""`--json`: every command has it, and then prints JSON documents, one a line, and nothing else."""

import json
import time

import click
import pytest
from daemon.nodes import free_port, make_head
from support.checkpoints import model, write

from patchswarm.daemon import cli
from patchswarm.daemon import run as daemon_run
from patchswarm.daemon.fleet import enrol
from patchswarm.daemon.local.gateway import run as gateway_run
from patchswarm.daemon.local.slime import following
from patchswarm.daemon.local.trainer import run as trainer_run
from patchswarm.daemon.local.trainer.watching import Event

NODE = "ab" * 32


def commands(group=cli.main, before=()):
    """Every command that does something, by the words that name it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield " ".join((*before, name)), command


LINES = {
    "init": "--site s --listen 127.0.0.1:{port}",
    "invite": "",
    "join": "token --site s",
    "daemon": "",
    "revoke": NODE,
    "issuer": "",
    "publisher adopt": "mine",
    "publisher rotate": "",
    "publish": "{directory} --stream qwen",
    "watch": "{directory} --stream qwen",
    "pull": "--stream qwen --out {directory}/out",
    "status": "",
    "versions": "--stream qwen",
    "verify": "--stream qwen",
    "peers": "",
    "inspect": "--dirs {directory} {directory}",
    "gateway": "--stream qwen --engine openai --engine-url http://127.0.0.1:9 --listen 127.0.0.1:{port}",
    "write-deltas": "{directory} --stream qwen --once",
    "completion": "bash",
}
SILENT = {"daemon", "gateway"}
"""They print nothing: they log, in JSON."""


@pytest.fixture
def own(tmp_path):
    """A head of this test's own: some commands change its keys."""
    return make_head(tmp_path / "own")


@pytest.fixture
def stand_ins(monkeypatch, own):
    """What goes on for ever, or talks to others, replaced by something that has ended before it began."""
    logs = []

    async def join(_token, home, **_options):
        return enrol.Joined(own.identity.node_id, own.config, "head:1")

    class Follower:
        def __init__(self, *_):
            self.left = [following.Folder(number=1, epoch=1, version=7, manifest="cd", full=True)]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def make(self, _wait_s):
            return bool(self.left)

        def show(self):
            return self.left.pop()

    def watch(_settings, _socket, _state, say):
        say(Event("published", "published step_1 as version 7", "step_1", 7, 10, 100))
        say(Event("refused", "refused step_2: empty", "step_2"))

    monkeypatch.setattr(enrol, "join", join)
    monkeypatch.setattr(daemon_run, "run", lambda _home, log_format: logs.append(log_format))
    monkeypatch.setattr(gateway_run, "run", lambda _section, _socket, _log, log_format: logs.append(log_format))
    monkeypatch.setattr(trainer_run, "run", watch)
    monkeypatch.setattr(following, "Follower", Follower)
    return logs


def test_there_is_a_line_here_for_every_command():
    assert LINES.keys() == {name for name, _ in commands()}


@pytest.mark.parametrize("name", LINES)
def test_every_command_speaks_json(run, fake, own, stand_ins, tmp_path, name):
    directory = write(tmp_path / "model", model(layers=1, width=16))
    line = f"{name} {LINES[name]}".format(directory=directory, port=free_port()).split()
    home = None if name == "completion" else tmp_path / "new" if name in {"init", "join"} else own.home.root
    result = run(*line, "--json", home=home)
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(isinstance(document, dict) for document in documents)
    assert bool(documents) is (name not in SILENT)
    assert stand_ins == (["json"] if name in SILENT else [])
    assert result.stderr == "" or name == "revoke"  # which says that no daemon has heard of it yet


def test_what_a_watch_says_has_facts_beside_the_words(run, fake, own, stand_ins, tmp_path):
    result = run("watch", tmp_path, "--stream", "qwen", "--json", home=own.home.root)
    first = json.loads(result.stdout.splitlines()[0])
    assert (first["event"], first["folder"], first["version"], first["patch_bytes"]) == ("published", "step_1", 7, 10)


def test_a_withdrawn_invite_is_named(run, own):
    run("invite", home=own.home.root)
    (invite,) = json.loads(run("invite", "--list", "--json", home=own.home.root).stdout)["invites"]
    said = run("invite", "--withdraw", invite["id"], "--json", home=own.home.root).stdout
    assert json.loads(said) == {"withdrawn": invite["id"]}


def test_keys_and_epochs_are_told(run, own):
    said = json.loads(run("issuer", "--json", home=own.home.root).stdout)
    assert len(bytes.fromhex(said["issuing_key"])) == 32
    assert said["not_after"] > time.time()
    assert json.loads(run("publisher", "adopt", "qwen", "--json", home=own.home.root).stdout) == {
        "stream": "qwen",
        "epoch": 1,
    }
    assert json.loads(run("publisher", "rotate", "--json", home=own.home.root).stdout) == {"streams": {"qwen": 2}}
