"""What a shell line of a page says, and whether that can be said: the command is there, and takes those options.

Nothing is run here. Programs that are not ours are known by name, so that a new one is a decision.
"""

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import click

from patchswarm.daemon.cli import main
from patchswarm.daemon.local.api import endpoints

from .markdown import ROOT

FOREIGN = {"cp", "export", "firewall-cmd", "install", "modprobe", "nft", "python3", "sha256sum", "sysctl", "systemctl"}
FOREIGN |= {"tar", "ufw", "vllm"}
"""Programs whose own options are not looked at."""


class WrongError(Exception):
    """A line of a page says what cannot be said."""


def lines_of(text):
    """Logical lines of a script: continued ones joined; comments, empty ones and a function's frame left out."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = (re.sub(r"\s+# .*", "", line).strip() for line in joined.split("\n"))
    return [line for line in lines if line and not re.match(r"#|\w+\(\) \{$|\}$", line)]


def commands_of(line):
    """The commands in a line, each as its words: pipes, lists and redirections taken apart."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>(){}")
    lexer.whitespace_split = True
    found, words, skip = [], [], False
    for word in lexer:
        if set(word) <= set("|&;(){}"):
            found.append(words)
            words = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            words.append(word)
    return [own for own in map(_own, [*found, words]) if own]


def _own(words):
    """The command itself: without assignments, `sudo -u USER`, and what starts it in a pod or a container."""
    while words:
        if re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        elif words[0] == "sudo":
            words = words[3:] if words[1] == "-u" else words[1:]
        elif words[0] == "kubectl" and "--" in words:
            words = words[words.index("--") + 1 :]
        elif image := next((at for at, word in enumerate(words) if re.match(r"patchswarm:\d", word)), None):
            if "build" in words:
                return words
            words = ["patchswarm", *(words[image + 1 :] or ["daemon"])]
        else:
            break
    return words


def check_line(line):
    """Raise WrongError unless every command in the line is one that exists, with these options."""
    for words in commands_of(line):
        name = Path(words[0]).name
        if name == "patchswarm":
            check_patchswarm(words[1:])
        elif words[0].startswith("scripts/"):
            check_script(words)
        elif name in CHECKS:
            CHECKS[name](words)
        elif name not in FOREIGN:
            raise WrongError(f"{name}: no program that tests/docs/commands.py knows how to check")


def check_patchswarm(arguments):
    """Raise WrongError unless the command line is understood, values included."""
    command, path = main, "patchswarm"
    while isinstance(command, click.Group) and arguments[:1] != ["--version"]:
        if not arguments or arguments[0] not in command.commands:
            raise WrongError(f"{path} {' '.join(arguments[:1])}: no such command")
        path, command, arguments = f"{path} {arguments[0]}", command.commands[arguments[0]], arguments[1:]
    try:
        command.make_context(path, list(arguments))
    except click.exceptions.Exit:  # --help
        pass
    except click.ClickException as error:
        raise WrongError(f"{path} {' '.join(arguments)}: {error.format_message()}") from None


def check_mention(span):
    """Raise WrongError unless what a sentence says of `patchswarm …` or `scripts/…` is there: names and options."""
    words = [word for word in re.split(r"[ \[\]|=]+", span) if word]
    if words[0].startswith("scripts/"):
        check_script(words)
        return
    command = main
    for word in words[1:]:
        if isinstance(command, click.Group) and re.fullmatch(r"[a-z-]+", word):
            if word not in command.commands:
                if "|" in span:  # `publisher adopt | rotate`
                    continue
                raise WrongError(f"{span}: no command {word}")
            command = command.commands[word]
        elif word.startswith("--") and not any(word in option.opts for option in command.params):
            raise WrongError(f"{span}: no option {word}")


def check_script(words):
    """Raise WrongError unless the script is there, and its source or that of what it runs knows the options."""
    script = ROOT / words[0]
    if not script.exists():
        raise WrongError(f"{words[0]}: no such script")
    options = [word.split("=")[0] for word in words[1:] if re.match(r"-\w|--\w", word)]
    if not options:
        return
    text = script.read_text()
    for run in re.findall(r"scripts/lib/(\w+)\.py|-m (\w+)", text):
        path = ROOT / "scripts" / "lib" / (run[0] or run[1])
        sources = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        text += "".join(source.read_text() for source in sources if source.exists())
    for option in options:
        if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text):
            raise WrongError(f"{words[0]}: no option {option}")


def check_curl(words):
    """Raise WrongError unless what is asked of the daemon's socket is an endpoint of its API."""
    if "--unix-socket" not in words:
        return
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    for url in (word for word in words if word.startswith("http://localhost")):
        path = url.removeprefix("http://localhost").partition("?")[0]
        if not any(
            endpoint.method == method and re.fullmatch(re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(endpoint.path)), path)
            for endpoint in endpoints(None, None)
        ):
            raise WrongError(f"{method} {path}: no such endpoint")


def check_pip(words):
    """Raise WrongError unless the extras that are asked for exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        for extra in filter(None, re.sub(r"^.*\[|\].*$|^[^\[]*$", "", word).split(",")):
            if extra not in extras:
                raise WrongError(f"{word}: no extra {extra}")


def check_files(words):
    """Raise WrongError unless the files of the repository that `-f` names are there."""
    for at, word in enumerate(words[:-1]):
        if word == "-f" and not (ROOT / words[at + 1]).is_file():
            raise WrongError(f"{words[at + 1]}: no such file")


CHECKS = {"curl": check_curl, "pip": check_pip, "kubectl": check_files, "podman": check_files}


def check_name(dotted):
    """Raise WrongError unless `patchswarm.a.b.name` is a module, or a name that one defines; nothing is imported."""
    parts = dotted.split(".")
    for count in range(len(parts), 1, -1):
        try:
            spec = importlib.util.find_spec(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        if spec is None:
            continue
        rest = parts[count:]
        if not rest:
            return
        if spec.origin and re.search(
            rf"^(?:async )?(?:def|class) {rest[0]}\b|^{rest[0]}\b.* = |^    {rest[0]},|import {rest[0]}\b",
            Path(spec.origin).read_text(),
            re.MULTILINE,
        ):
            return
        break
    raise WrongError(f"{dotted}: nothing has this name")
