"""Progress and tables on terminals and elsewhere."""

import json
import os
import pty
import re
import subprocess
import sys

from patchswarm.daemon import console

SHOW = """
import sys
from patchswarm.daemon import console
with console.progress(quiet="quiet" in sys.argv) as show:
    for stage, total in (("read", 100), ("encode", 0), ("send", 50)):
        for done in (0, total // 2, total):
            show(stage, done, total)
print("done")
"""


def on_a_terminal(*arguments, code=SHOW):
    """Standard error of a program that shows progress there, standard error being a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            shown += part
        assert process.stdout.read() == "done\n"
        assert process.wait(timeout=30) == 0
    os.close(ours)
    return shown.decode()


def test_stages_are_bars_on_a_terminal_that_vanish_at_the_end():
    shown = on_a_terminal()
    for stage in ("read", "encode", "send"):
        assert stage in shown
    assert "━" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the last thing done is to wipe the bars' lines


def test_quiet_shows_nothing_on_a_terminal_either():
    assert on_a_terminal("quiet") == ""


def test_elsewhere_nothing_is_shown(capsys):
    with console.progress(quiet=False) as show, console.steps(quiet=False) as told:
        show("read", 1, 2)
        told("dialling")
    assert capsys.readouterr() == ("", "")


def test_rates_and_the_time_that_is_left_are_shown():
    code = """
import time
from patchswarm.daemon import console
with console.progress(quiet=False) as show:
    show("read", 0, 4 << 20)
    for mib in (1, 2, 3):
        time.sleep(0.2)
        show("read", mib << 20, 4 << 20)
    time.sleep(0.2)
print("done")
"""
    shown = on_a_terminal(code=code)
    assert "MiB" in shown
    assert "MiB/s" in shown
    assert re.search(r"(?<!\d)00:0\d", shown), "minutes and seconds that are left"


def test_steps_that_cannot_be_measured_are_named_on_a_terminal():
    code = """
import time
from patchswarm.daemon import console
with console.steps(quiet=False) as told:
    for step in ("looking for the head", "enrolling"):
        told(step)
        time.sleep(0.3)
print("done")
"""
    shown = on_a_terminal(code=code)
    assert "looking for the head" in shown
    assert "enrolling" in shown


def test_columns_align_and_are_never_cut(capsys):
    console.print_columns(("A", "LONG HEADER", "C"), [("x" * 300, "1", "end"), ("y", "", "z")])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.index("LONG HEADER") == first.index("1") == 302
    assert header.index("C") == first.index("end") == second.index("z")
    assert not any(line.endswith(" ") for line in (header, first, second))


def test_json_is_one_line_for_programs(capsys):
    console.print_json({"a": [1, {"b": None}]})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": [1, {"b": None}]}
