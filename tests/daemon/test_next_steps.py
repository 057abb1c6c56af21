"""Every error ends with what to do next: each kind of problem has a step, and each message that says its own does."""

import ast
import errno
import os
import re
from functools import cache
from pathlib import Path

import pytest

import patchswarm.daemon
from patchswarm.daemon.errors import DaemonError, reason
from patchswarm.daemon.fleet import enrol
from patchswarm.daemon.fleet.invites import InviteRefusedError
from patchswarm.daemon.fleet.reach import ReachError
from patchswarm.daemon.local import problems
from patchswarm.daemon.local.errors import PROBLEMS, LocalError, UnknownVersionError
from patchswarm.daemon.local.gateway import errors as gateway
from patchswarm.storage import errors as storage

DAEMON = Path(patchswarm.daemon.__file__).parent
VERBS = (
    "abort|add|ask|begin|call|check|choose|commit|convert|correct|delete|exclude|free|get|give|hand|have|import|install|join|keep|leave"
    "|list|load|make|mount|move|name|pass|point|publish|pull|put|raise|read|remove|replace|report|restart|restore|run"
    "|see|send|set|shorten|show|start|stop|take|try|upgrade|use|wait|write|compare|lists|shows"
)
STEP = re.compile(
    rf"(?:^|[;:,.(] |\b(?:and|or|then|first) )(?:then |once more )?(?:{VERBS})\b|'patchswarm |pip install|GET "
)
"""What an instruction looks like: a clause that begins with a verb, or a command."""

INTERNAL = {InviteRefusedError, ReachError}
"""These are turned into others, or into a line of the log, before anybody sees them."""

PASSED_ON = {
    "config.py: str(error).removeprefix(f'{home.config}: ')",  # a ConfigError
    "fleet/enrol.py: _REFUSALS[reason]",  # see below
    "fleet/enrol.py: str(error)",  # protocol.join's errors, see below
    "fleet/governing.py: str(error)",  # storage's
    "inspecting.py: str(error)",
    "node.py: str(error)",
    "membership.py: '; '.join(problems)",  # storage.slot_dir.check_fit's
    "config.py: {where}: stream.{name}: {error}",  # protocol.ids.check_stream_name's
    "options.py: {parameter.opts[0]}: {error}",  # the same
    "local/engines/vllm_transfer.py: _NOT_INITIALISED",
}
"""Messages made elsewhere."""


def kinds(kind):
    return {kind}.union(*(kinds(child) for child in kind.__subclasses__()))


def words(node):
    """A message's text as it stands in the source, None for one that is made elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}" for part in parts
            )
        case ast.BinOp(left=left, right=right):
            return (words(left) or "") + (words(right) or "")
        case _:
            return None


@cache
def raised():
    """Every place where an error of this floor is made: (file and line, class name, call)."""
    found = []
    for path in sorted(DAEMON.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id.endswith("Error")
                and node.args
            ):
                found += [(path.relative_to(DAEMON), node.lineno, node.func.id, node)]
    return found


def has_step(text):
    return STEP.search(text) is not None


def test_every_kind_of_problem_has_a_next_step():
    without = [slug for slug, error in PROBLEMS.items() if not has_step(error.remedy)]
    assert without == []


def test_every_class_with_a_remedy_says_something_to_do():
    for error in kinds(DaemonError):
        assert not error.remedy or has_step(error.remedy), (error, error.remedy)


def test_every_message_says_what_to_do_where_its_class_does_not():
    classes = {error.__name__: error for error in kinds(DaemonError) - INTERNAL}
    without = []
    for path, line, name, call in raised():
        error = classes.get(name)
        if (
            error is None
            or error.remedy
            or any(keyword.arg == "remedy" and words(keyword.value) != "" for keyword in call.keywords)
        ):
            continue
        text = words(call.args[0])
        said = ast.unparse(call.args[0]) if text is None else text
        passes = f"{path}: {said}" in PASSED_ON or (text is not None and (has_step(text) or "{reason(error)}" in text))
        if not passes:
            without.append(f"{path}:{line} {said}")
    assert without == []


def test_a_remedy_at_the_place_is_one():
    for path, line, _, call in raised():
        for keyword in call.keywords:
            text = words(keyword.value) if keyword.arg == "remedy" else None
            assert not text or has_step(text), f"{path}:{line} {text}"


def test_why_a_host_may_not_join_ends_with_a_step():
    assert all(has_step(text) for text in enrol._REFUSALS.values())


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.ENOSPC, errno.ENOENT, errno.EROFS, errno.EADDRINUSE, errno.EXDEV, 0]
)
def test_what_the_system_says_is_followed_by_a_step(number):
    said = reason(OSError(number, os.strerror(number)))
    assert said.startswith(f"{os.strerror(number)}; ")
    assert has_step(said)


# -- on their way to the user ----------------------------------------------------------------------------------------


def test_a_problem_says_what_is_wrong_and_what_to_do_on_one_line():
    error = UnknownVersionError("version 3 is not held here")
    assert str(error) == "version 3 is not held here; 'patchswarm versions' shows what is here"
    assert (error.problem.detail, error.problem.remedy) == ("version 3 is not held here", error.remedy)


def test_a_remedy_of_its_own_goes_before_the_one_of_the_class():
    assert str(UnknownVersionError("gone", remedy="wait")) == "gone; wait"
    assert str(UnknownVersionError("gone: wait", remedy="")) == "gone: wait"


@pytest.mark.parametrize("slug", PROBLEMS)
def test_the_client_raises_what_the_daemon_said(slug):
    for remedy in (None, "do this", ""):
        error = PROBLEMS[slug]("it went wrong", remedy=remedy)
        again = LocalError.of(error.problem)
        assert type(again) is PROBLEMS[slug]
        assert (str(again), again.remedy) == (str(error), error.remedy)


@pytest.mark.parametrize(
    "kind", sorted(kinds(storage.StorageError), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_what_goes_wrong_on_disk_reaches_the_caller_with_a_step(kind):
    if kind.__module__ != storage.__name__:
        return
    error = problems.as_local(kind("something is wrong with /slots/v7"))
    says_itself = {row[0] for row in problems._STORAGE if row[2] == ""}
    assert has_step(str(error)) or any(issubclass(kind, each) for each in says_itself), str(error)


def test_what_storage_says_itself_it_does_say():
    """The classes whose messages are passed on as they are: each message in storage/ has its step."""
    says_itself = {row[0].__name__ for row in problems._STORAGE if row[2] == ""}
    without = []
    for path in sorted((DAEMON.parent / "storage").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in says_itself:
                text = words(node.args[0])
                if text is not None and not has_step(text):
                    without.append(f"{path.name}:{node.lineno} {text}")
    assert without == []


def test_a_bug_is_told_with_a_step_too():
    error = problems.told_of(KeyError("x"), "publishing /m", "publish failed")
    assert str(error) == "publishing /m failed (KeyError); see the daemon's log, and report what it says there"


def test_the_gateway_says_it_in_its_message():
    error = gateway.RouteBlockedError("/load changes the engine's weights")
    assert (
        error.body["error"]["message"]
        == "/load changes the engine's weights; publish the weights: the gateway loads them"
    )
