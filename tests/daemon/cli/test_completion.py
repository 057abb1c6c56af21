"""Shell completion: what a real bash is offered, what the daemon is asked, and that nothing is ever said instead."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from daemon.cli.fakes import AWAY, PEER
from daemon.single import head_of, short_path
from support.checkpoints import model, write

from patchswarm.daemon import cli, completing
from patchswarm.daemon.local.errors import NotRunningError

COMMAND = Path(sys.executable).parent / "patchswarm"


def offered(*words):
    """What is offered for the last of these words."""
    *before, begun = words
    complete = ShellComplete(cli.main, {}, "patchswarm", "_PATCHSWARM_COMPLETE")
    return {item.value: item.help for item in complete.get_completions(before, begun)}


def bash(line, **environment):
    """What bash's own completion makes of a line that is being typed; each as bash would put it in."""
    script = r"""
        eval "$(patchswarm completion bash)"
        COMP_LINE=$1 COMP_POINT=${#1}
        read -ra COMP_WORDS <<< "$COMP_LINE"
        [[ $COMP_LINE == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
        function=$(complete -p patchswarm | sed 's/.*-F \([^ ]*\).*/\1/')
        compopt() { :; }
        "$function" patchswarm "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", line],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}", **environment},
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def at_home(head, monkeypatch):
    monkeypatch.setenv("PATCHSWARM_HOME", str(head.home.root))


# -- what is offered -------------------------------------------------------------------------------------------------


def test_commands_and_options_are_offered():
    assert "publish" in offered("pub")
    assert {"--stream", "--label", "--json"} <= offered("publish", "--").keys()
    assert offered("publisher", "").keys() == {"adopt", "rotate"}


@pytest.mark.parametrize(
    "words",
    [
        ("publish", "/dir", "--stream"),
        ("pull", "--stream"),
        ("versions", "--stream"),
        ("verify", "--stream"),
        ("watch", "/dir", "--stream"),
        ("write-deltas", "/dir", "--stream"),
        ("inspect", "--stream"),
        ("gateway", "--stream"),
        ("publisher", "adopt"),
    ],
    ids=lambda words: " ".join(words[:1]),
)
def test_streams_are_offered_wherever_one_is_wanted(fake, at_home, words):
    assert offered(*words, "") == {"qwen": "fetching", "tiny": "waiting"}
    assert offered(*words, "q").keys() == {"qwen"}


def test_versions_come_with_their_labels_once_the_stream_is_given(fake, at_home):
    for words in (("pull", "--version"), ("inspect", "--version"), ("inspect", "--from")):
        assert offered(*words[:1], "--stream", "qwen", *words[1:], "") == {"7": "step 700"}
        assert offered(*words, "") == {}


def test_labels_are_offered_where_no_quoting_is_needed(fake, at_home, monkeypatch):
    assert offered("versions", "--stream", "qwen", "--label", "") == {}, "step 700 would come apart"
    monkeypatch.setattr(completing.shlex, "quote", lambda text: text)
    assert offered("versions", "--stream", "qwen", "--label", "st") == {"step 700": "version 7"}


def test_nodes_are_offered_with_their_sites(fake, at_home):
    assert offered("revoke", "") == {PEER.node: PEER.site, AWAY.node: None}
    assert offered("revoke", "EE").keys() == {PEER.node}


def test_invites_are_offered_without_a_daemon(run, at_home):
    run("invite", "--uses", "2")
    (invite, *_) = json.loads(run("invite", "--list", "--json").stdout)["invites"]
    assert offered("invite", "--withdraw", invite["id"][:4]) == {invite["id"]: f"{invite['uses_left']} uses left"}


def test_the_home_or_socket_on_the_line_is_asked(fake, head, tmp_path):
    assert offered("versions", "--home", str(head.home.root), "--stream", "").keys() == {"qwen", "tiny"}
    assert fake.socket == head.config.local.socket
    offered("versions", "--socket", str(tmp_path / "s"), "--stream", "")
    assert fake.socket == tmp_path / "s"


# -- when there is nothing to offer ----------------------------------------------------------------------------------


def test_without_a_daemon_nothing_is_offered_and_nothing_said(at_home, capfd):
    assert offered("pull", "--stream", "") == {}
    assert capfd.readouterr() == ("", "")


def test_in_a_home_that_is_none_nothing_is_offered_and_nothing_said(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PATCHSWARM_HOME", str(tmp_path / "none"))
    assert offered("pull", "--stream", "") == offered("invite", "--withdraw", "") == {}
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_daemon_is_no_word_in_the_line(fake, at_home, capfd):
    fake.failure = NotRunningError("away")
    assert offered("pull", "--stream", "") == {}
    assert capfd.readouterr() == ("", "")


def test_a_daemon_that_takes_its_time_is_not_waited_for(tmp_path, capfd):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        began_s = time.monotonic()
        assert offered("pull", "--socket", str(path), "--stream", "") == {}
        assert time.monotonic() - began_s < completing.ANSWER_S + 1.0
    assert capfd.readouterr() == ("", "")


# -- shells ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(run, shell):
    script = run("completion", shell, home=None).stdout
    assert f"_PATCHSWARM_COMPLETE={shell}_complete" in script
    assert json.loads(run("completion", shell, "--json", home=None).stdout) == {"shell": shell, "script": script}
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


async def test_a_real_bash_completes_with_what_a_real_daemon_has(tmp_path):
    with short_path() as root:
        async with head_of(root) as head:
            made = await head.publish("qwen", write(tmp_path / "1", model()), label="step-1")
            home = {"PATCHSWARM_HOME": str(head.home.root)}
            assert await asyncio.to_thread(bash, "patchswarm ver", **home) == ["verify", "versions"]
            assert await asyncio.to_thread(bash, "patchswarm versions --stream q", **home) == ["qwen"]
            assert await asyncio.to_thread(bash, "patchswarm versions --stream qwen --label ", **home) == ["step-1"]
            assert await asyncio.to_thread(bash, "patchswarm pull --stream qwen --version ", **home) == [
                str(made.slot.version)
            ]
    assert bash(f"patchswarm versions --home {tmp_path / 'none'} --stream ") == []
