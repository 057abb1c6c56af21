"""What the commands print, where, and with which exit code; what a daemon does is tested with real ones."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner
from daemon.cli.fakes import FOLLOWING
from daemon.nodes import free_port

from patchswarm.daemon import cli, console, exits
from patchswarm.daemon.config import Config
from patchswarm.daemon.errors import BadInputError, DaemonError, InUseError
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.fleet import enrol
from patchswarm.daemon.home import Home
from patchswarm.daemon.local.errors import UnknownStreamError
from patchswarm.daemon.local.model import Progress
from patchswarm.protocol.join import decode_token

# -- init, join, invite ----------------------------------------------------------------------------------------------


def test_init_makes_a_home_and_says_what_to_do_next(run, tmp_path):
    home, listen = tmp_path / "new", f"127.0.0.1:{free_port()}"
    result = run("init", "--site", "us-east/a", "--listen", listen, home=home)
    assert result.stdout.splitlines()[0].endswith(f"of site us-east/a lives in {home}")
    assert f"others reach it at {listen}" in result.stdout
    assert f"start it: patchswarm daemon --home {home}" in result.stdout
    assert Config.load(Home.at(home)).node.site == "us-east/a"


def test_init_tells_a_program_the_same(run, tmp_path):
    result = run(
        *(
            "init",
            "--site",
            "a",
            "--listen",
            "0.0.0.0:7340",
            "--advertise",
            "head:1",
            "--advertise",
            "head:2",
            "--json",
        ),
        home=tmp_path / "new",
    )
    told = json.loads(result.stdout)
    assert told["addresses"] == ["head:1", "head:2"]
    assert told["home"] == str(tmp_path / "new")
    assert len(told["node"]) == 64


def test_a_head_that_nobody_can_dial_is_warned_about(run, tmp_path):
    result = run("init", "--site", "a", "--listen", "0.0.0.0:7340", home=tmp_path / "new")
    assert "others cannot dial it; set node.advertise" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("init", "--listen", "127.0.0.1:1"),
        ("init", "--site", "a"),
        ("init", "--site", "a", "--listen", "nowhere"),
        ("init", "--site", "a", "--listen", "127.0.0.1:1", "--advertise", "nowhere"),
        ("join", "token"),
        ("join", "--site", "a"),
        ("join", "token", "--site", "a", "--listen", "nowhere"),
        ("invite", "--ttl", "soon"),
        ("invite", "--uses", "0"),
        ("publish", "dir"),
        ("publish", "--stream", "s"),
        ("publish", "dir", "--stream", "s", "--version", "-1"),
        ("pull", "--stream", "s"),
        ("pull", "--stream", "s", "--out", "d", "--wait", "-1"),
        ("versions",),
        ("nonsense",),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_a_usage_error_and_makes_nothing(run, tmp_path, arguments):
    result = run(*arguments, home=tmp_path / "new", code=Exit.USAGE)
    assert result.stderr.startswith("Usage: ")
    assert result.stdout == ""
    assert not (tmp_path / "new").exists()


def test_invite_prints_the_token_and_nothing_else(run, head):
    result = run("invite", "--ttl", "2h", "--uses", "3")
    token = decode_token(result.stdout)
    assert result.stdout.count("\n") == 1
    assert token.issuer == head.identity.node_id
    assert token.addresses == head.config.node.addresses
    listed = json.loads(run("invite", "--list", "--json").stdout)["invites"]
    mine = next(invite for invite in listed if invite["id"] == token.invite.hex())
    assert mine["uses_left"] == 3


def test_invites_are_listed_and_withdrawn(run):
    token = decode_token(run("invite").stdout)
    listed = run("invite", "--list").stdout
    assert listed.startswith("INVITE")
    assert token.invite.hex() in listed
    assert "24 h" in listed
    run("invite", "--withdraw", token.invite.hex())
    assert token.invite.hex() not in run("invite", "--list").stdout
    result = run("invite", "--withdraw", token.invite.hex(), code=Exit.BAD_INPUT)
    assert result.stderr == f"error: no invite '{token.invite.hex()}' here; 'patchswarm invite --list' shows them\n"


@pytest.mark.parametrize("how", ["argument", "standard input", "environment"])
def test_join_takes_the_token_where_it_is_safest(run, tmp_path, monkeypatch, how):
    seen = []

    async def join(token, home, *, told, **options):
        told("looking for the head")
        seen.append((token.strip(), options))
        raise BadInputError("far enough")

    monkeypatch.setattr(enrol, "join", join)
    tail = ("--site", "b", "--listen", "")
    options = {"code": Exit.BAD_INPUT, "home": tmp_path / "new"}
    if how == "argument":
        run("join", "the-token", *tail, **options)
    elif how == "standard input":
        run("join", "-", *tail, input="the-token\n", **options)
    else:
        run("join", *tail, env={"PATCHSWARM_JOIN_TOKEN": "the-token"}, **options)
    assert seen == [("the-token", {"site": "b", "listen": "", "advertise": (), "storage": {}})]


# -- publish, pull, status, versions, peers --------------------------------------------------------------------------


def test_publish_prints_the_version_and_what_it_cost(run, fake, tmp_path):
    result = run("publish", tmp_path, "--stream", "qwen", "--label", "step 800", "--version", 8, "--base")
    asked = {"directory": tmp_path, "stream": "qwen", "version": 8, "label": "step 800", "base": True, "streamed": True}
    assert fake.asked == asked
    assert result.stdout.splitlines() == [
        "published qwen version 8 (step 800)",
        "  changed  0.261% (123,456 elements)",
        "  patch    239 KiB of 90.6 MiB, 387.8x smaller",
        "  seconds  read 0.12, encode 0.34",
    ]
    assert result.stderr == "", "no bars where there is no terminal"


def test_publish_quietly_prints_the_number_only(run, fake, tmp_path):
    result = run("publish", tmp_path, "--stream", "qwen", "-q")
    assert (result.stdout, result.stderr) == ("8\n", "")
    assert fake.asked["version"] is None


def test_publish_tells_a_program_everything(run, fake, tmp_path):
    result = run("publish", tmp_path, "--stream", "qwen", "--json")
    assert json.loads(result.stdout)["seconds"] == {"read": 0.12, "encode": 0.345}
    assert result.stderr == ""


def test_a_relative_directory_is_published_as_the_daemon_sees_it(run, fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("publish", "checkpoint", "--stream", "qwen", "-q")
    assert fake.asked["directory"] == tmp_path / "checkpoint"


def test_pull_says_what_came_and_where_it_is(run, fake, tmp_path):
    result = run("pull", "--stream", "qwen", "--out", tmp_path / "out", "--version", 7, "--wait", "2.5")
    assert fake.asked == {"stream": "qwen", "out": tmp_path / "out", "version": 7, "wait_s": 2.5}
    assert result.stdout == f"pulled qwen version 7, 90.6 MiB, into {tmp_path / 'out'}\n"
    assert run("pull", "--stream", "qwen", "--out", tmp_path / "out", "-q").stdout == "7\n"
    told = json.loads(run("pull", "--stream", "qwen", "--out", tmp_path / "out", "--json").stdout)
    assert told["version"]["manifest"] == "ab" * 32


def test_verify_shows_what_the_daemon_says_of_its_progress_to_whoever_looks_on(run, fake, monkeypatch):
    shown, asked = [], threading.Event()

    @contextlib.contextmanager
    def progress(*, quiet):
        assert not quiet
        yield lambda *seen: (shown.append(seen), asked.set())

    def status(stream):
        verifying = Progress(version=7, stage="verify", done_bytes=25, total_bytes=100)
        return msgspec.structs.replace(FOLLOWING, progress=verifying)

    verify = fake.verify
    monkeypatch.setattr(console, "is_watched", lambda *, quiet: not quiet)
    monkeypatch.setattr(console, "progress", progress)
    fake.status = status
    fake.verify = lambda *given, **options: (asked.wait(30), verify(*given, **options))[1]
    assert "/slots/qwen/v7" in run("verify", "--stream", "qwen").stdout
    assert set(shown) == {("verify", 25, 100)}
    shown.clear()
    run("verify", "--stream", "qwen", "--json")
    assert shown == []


def test_status_shows_streams_errors_and_peers(run, fake):
    assert run("status").stdout.splitlines() == [
        "problem: clock is slow",
        "STREAM  STATE     VERSION  HEAD  LAG      PROVEN  PROGRESS",
        "qwen    fetching  7        9     2 (3 s)  yes     fetch 25%",
        "tiny    waiting   -        -     0        -       -",
        "qwen: last error: no peer had chunk 4",
        "",
        "PEER        SITE       LINK  RTT MS  UP     DOWN       LANES  HEADS",
        "ffffffffff  -          no    -       0 B/s  0 B/s      0      -",
        "eeeeeeeeee  eu-west/b  yes   81.2    0 B/s  2.5 MiB/s  3      qwen 9",
    ]


def test_status_tells_a_program_the_same(run, fake):
    told = json.loads(run("status", "--json").stdout)
    assert [stream["stream"] for stream in told["streams"]] == ["qwen", "tiny"]
    assert told["streams"][0]["lag"] == 2
    assert [peer["connected"] for peer in told["peers"]] == [True, False]
    assert told["problems"] == ["clock is slow"]
    assert json.loads(run("peers", "--json").stdout) == {"peers": told["peers"]}


def test_an_empty_fleet_says_how_to_begin(run, fake, monkeypatch):
    monkeypatch.setattr(fake, "streams", list)
    monkeypatch.setattr(fake, "peers", list)
    result = run("status").stdout
    assert "no streams yet; the head starts one with 'patchswarm publish" in result
    assert "no peers yet; add some with 'patchswarm invite'" in result


def test_versions_are_a_table(run, fake, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    header, row = run("versions", "--stream", "qwen").stdout.splitlines()
    assert header.split() == ["VERSION", "LABEL", "SIZE", "COMMITTED", "BYTES", "MANIFEST"]
    assert row.split()[:3] == ["7", "step", "700"]
    assert row.split()[-4:] == ["2023-11-14", "22:13:20", "proven", "ababababab"]
    assert json.loads(run("versions", "--stream", "qwen", "--json").stdout)["versions"][0]["version"] == 7


def test_versions_are_found_by_their_label(run, fake):
    found = json.loads(run("versions", "--stream", "qwen", "--label", "step 700", "--json").stdout)["versions"]
    assert [version["version"] for version in found] == [7]
    missing = run("versions", "--stream", "qwen", "--label", "step 7", code=Exit.NOT_FOUND)
    assert "labelled 'step 7'" in missing.stderr


def test_a_watch_remembers_in_a_home_or_where_it_is_told_and_makes_neither(run, tmp_path):
    nowhere = Home.at(tmp_path / "nowhere")
    command = ("watch", tmp_path, "--stream", "qwen", "--socket", tmp_path / "s")
    assert "no such home" in run(*command, home=nowhere.root, code=Exit.HOME).stderr
    assert not nowhere.root.exists()


def test_commands_find_the_socket_of_the_home_or_the_one_they_are_given(run, fake, head, tmp_path):
    run("peers")
    assert fake.socket == head.home.root / "patchswarm.sock"
    run("peers", "--socket", tmp_path / "other.sock", home=None)
    assert fake.socket == tmp_path / "other.sock"
    run("peers", home=None, env={"PATCHSWARM_SOCKET": "/run/x.sock"})
    assert fake.socket == Path("/run/x.sock")
    run("peers", home=None, env={"PATCHSWARM_HOME": str(head.home.root)})
    assert fake.socket == head.home.root / "patchswarm.sock"


def test_every_option_reads_the_environment(run, fake, tmp_path):
    run(
        "publish", tmp_path, "-q", env={"PATCHSWARM_PUBLISH_STREAM": "qwen", "PATCHSWARM_PUBLISH_LABEL": "from outside"}
    )
    assert fake.asked["stream"] == "qwen"
    assert fake.asked["label"] == "from outside"


# -- errors and exit codes -------------------------------------------------------------------------------------------


def test_an_error_is_one_line_with_its_exit_code(run, fake):
    fake.failure = UnknownStreamError("stream 'x' is not followed\n here", remedy="see streams.follow")
    result = run("versions", "--stream", "x", code=Exit.NOT_FOUND)
    assert (result.stdout, result.stderr) == ("", "error: stream 'x' is not followed here; see streams.follow\n")


def test_a_bug_is_one_line_too_and_says_how_to_see_more(run, fake):
    fake.failure = RuntimeError("the impossible")
    result = run("peers", code=Exit.UNEXPECTED)
    assert result.stderr == "error: unexpected RuntimeError: the impossible; PATCHSWARM_DEBUG=1 shows where\n"


def test_a_bug_shows_its_traceback_on_request(head, fake):
    fake.failure = RuntimeError("the impossible")
    arguments = ["peers", "--home", str(head.home.root)]
    result = CliRunner().invoke(cli.main, arguments, env={"PATCHSWARM_DEBUG": "1"})
    assert result.exception is fake.failure


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (InUseError("port 1 is taken"), "port 1 is taken", Exit.IN_USE),
        (ExceptionGroup("tasks", [ValueError("x"), InUseError("port 1 is taken")]), "port 1 is taken", Exit.IN_USE),
        (ExceptionGroup("a", [ExceptionGroup("b", [BadInputError("no")])]), "no", Exit.BAD_INPUT),
        (
            OSError(28, "No space left on device", "/x"),
            "/x: No space left on device; free some room there, or choose another place",
            Exit.UNEXPECTED,
        ),
    ],
)
def test_errors_from_tasks_and_the_system_are_explained(run, fake, error, message, code):
    fake.failure = error
    assert run("peers", code=code).stderr == f"error: {message}\n"


def test_an_interrupted_command_says_so_by_its_code(run, fake):
    fake.failure = KeyboardInterrupt()
    run("peers", code=Exit.INTERRUPTED)


def test_a_home_that_is_none_is_named(run, tmp_path):
    for command in (["daemon"], ["invite"], ["status"]):
        result = run(*command, home=tmp_path / "nowhere", code=Exit.HOME)
        assert result.stderr.startswith(f"error: {tmp_path / 'nowhere'}: no such home; make one there with")


def test_help_shows_every_exit_code(run):
    text = run("--help", home=None).stdout
    for code in Exit:
        assert f"{code.value:>5}  {exits.MEANINGS[code]}" in text
    assert set(exits.MEANINGS) == set(Exit)


def test_every_command_and_option_is_explained():
    for name, command in cli.main.commands.items():
        assert command.help, name
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or parameter.help, (name, parameter.name)


def test_every_error_of_this_floor_has_a_code_of_its_own_meaning():
    def kinds(kind):
        return {kind}.union(*(kinds(child) for child in kind.__subclasses__()))

    assert {error.exit for error in kinds(DaemonError)} <= set(Exit)
    without = {kind for kind in kinds(DaemonError) if kind.exit is Exit.UNEXPECTED and kind.__subclasses__() == []}
    assert {kind.__name__ for kind in without} <= {"StorageFailedError"}


# -- a real process --------------------------------------------------------------------------------------------------


def process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "patchswarm.daemon", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_help_does_not_import_what_only_commands_need():
    code = (
        "import sys; from patchswarm.daemon import cli\n"
        "heavy = {'numpy', 'numba', 'aiohttp', 'cryptography', 'asyncio', 'rich', 'msgspec', 'structlog', 'blake3'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_module_runs_as_a_program():
    done = process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("patchswarm, version ")


def test_a_reader_that_leaves_early_does_no_harm(head):
    done = subprocess.run(
        f"{sys.executable} -m patchswarm.daemon invite --home {head.home.root} --list | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""


def test_ctrl_c_ends_a_waiting_command_quietly(head):
    """A join whose head accepts the connection and says nothing is interrupted, as a person would."""
    token = enrol.invite(head.home, head.identity, head.config, ttl_s=60)
    home = head.home.root.parent / "joiner"
    with (
        socket.create_server(("127.0.0.1", head.port)) as silent,
        subprocess.Popen(
            [sys.executable, "-m", "patchswarm.daemon", "join", "-", "--site", "b", "--home", home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as joining,
    ):
        joining.stdin.write(token)
        joining.stdin.close()
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            joining.send_signal(signal.SIGINT)
            assert joining.wait(timeout=30) == Exit.INTERRUPTED
        assert joining.stderr.read() == ""
    assert not home.exists()
