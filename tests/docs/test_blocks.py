"""No code block of the pages goes unlooked at: each is run, or held against the parsers, or a picture without commands.

A block that is new fails here until `plan` says what becomes of it.
"""

import re
from pathlib import Path

import pytest

from patchswarm.daemon.config import Config
from patchswarm.daemon.home import Home

from .commands import CHECKS, FOREIGN, WrongError, check_line, check_mention, check_name, commands_of, lines_of
from .markdown import ROOT, Block, Page, pages
from .plan import EXAMPLES, SHELL, TALES, WALKS, Read, Run, plan_of

PAGES = pages()
BLOCKS = [block for page in PAGES for block in page.blocks]
PROGRAMS = re.compile(
    rf"^(?:\$ |sudo |patchswarm [a-z]|scripts/|(?:{'|'.join(sorted({*CHECKS, *FOREIGN}))}) )", re.MULTILINE
)


def of(language):
    return [block for block in BLOCKS if block.language == language]


def test_there_is_something_to_look_at():
    assert len(PAGES) > 15
    assert len(of("sh")) > 15
    assert len(of("python")) > 10


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_of_a_kind_that_is_looked_at(block):
    assert block.language in {"sh", "python", "toml", "text", "mermaid", ""}, "say what the block holds"


@pytest.mark.parametrize("block", [*of("text"), *of("")], ids=str)
def test_what_is_only_looked_at_holds_no_command(block):
    found = PROGRAMS.search(block.text)
    assert found is None, f"{found[0]!r} begins a command: put the block between ```sh and ```"


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_a_shell_block_has_its_place_in_the_plan(block):
    plan_of(block)


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_every_command_of_a_block_exists_and_takes_these_options(block):
    for line in lines_of(block.text):
        check_line(line)


def test_the_plan_names_only_what_is_there():
    for page, entries in SHELL.items():
        texts = [block.text for block in of("sh") if block.page == page]
        for start in entries:
            assert sum(text.startswith(start) for text in texts) == 1, f"{page}: {start!r} begins not one block"
    with_code = {block.page for block in BLOCKS if block.language in {"sh", "python"}}
    assert with_code >= EXAMPLES


def test_what_is_to_be_run_is_on_a_page_that_a_test_runs():
    for page, entries in SHELL.items():
        if any(isinstance(what, Run) for what in entries.values()):
            assert page in {*WALKS, *TALES, *EXAMPLES}


def test_what_is_only_read_says_why_and_which_test_runs_it():
    for page, entries in SHELL.items():
        for start, what in entries.items():
            if isinstance(what, Read):
                assert what.why, f"{page}: {start}"
                for name in what.tests:
                    assert (ROOT / name).exists(), f"{page}: {start}: no {name}"


def test_no_program_is_let_through_that_no_page_uses():
    commands = [words for block in of("sh") for line in lines_of(block.text) for words in commands_of(line)]
    assert {Path(words[0]).name for words in commands} >= {*FOREIGN, *CHECKS}


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_a_python_block_is_on_a_page_whose_examples_are_run(block):
    plan_of(block)


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_a_piece_of_configuration_is_understood(block):
    Config.parse(block.text, Home(ROOT))


SPANS = sorted({span for page in PAGES for span in page.spans()})


COMMANDS = re.compile(r"(patchswarm [a-z-]+(?!.*\\0)|scripts/)")
"""As a sentence names them; what ends in a zero byte is a domain of signatures."""


@pytest.mark.parametrize("span", [span for span in SPANS if COMMANDS.match(span)])
def test_a_command_that_a_sentence_names_exists(span):
    check_mention(span)


@pytest.mark.parametrize(
    "name",
    sorted(set(re.findall(r"\bpatchswarm(?:\.[A-Za-z_]+){2,}", "\n".join(page.path.read_text() for page in PAGES)))),
)
def test_a_name_in_python_that_a_page_gives_exists(name):
    check_name(name)


@pytest.mark.parametrize(
    "span",
    [span for span in SPANS if re.fullmatch(r"(node|storage|streams|local|gateway|limits|mirror|log)\.[a-z_]+", span)],
)
def test_a_key_of_the_configuration_that_a_sentence_names_exists(span):
    section, _, key = span.partition(".")
    assert key in getattr(Config(), section).__struct_fields__


@pytest.mark.parametrize(
    "span", [span for span in SPANS if re.match(r"(tests|daemon|storage|protocol|docs)/[\w./{}-]+$", span)]
)
def test_a_file_that_a_sentence_names_exists(span):
    assert (ROOT / span.rstrip("/")).exists(), span


@pytest.mark.parametrize(
    "line",
    [
        "patchswarm publsh DIR --stream qwen",
        "patchswarm publish DIR --stream qwen --lable x",
        "patchswarm publish DIR",
        "patchswarm join TOKEN --site a --listen nowhere",
        "patchswarm publisher adapt qwen",
        "kubectl exec pod -- patchswarm invite --use 3",
        "kubectl apply -f scripts/k8s/tail.yaml",
        "sudo scripts/instal",
        "scripts/simulate --nods 3",
        "curl -s --unix-socket s http://localhost/v1/stream",
        "pip install 'patchswarm[mirrors]'",
        "cat token | patchswarm join - --sites a",
        "frobnicate",
    ],
)
def test_a_line_that_is_wrong_is_found(line):
    with pytest.raises(WrongError):
        check_line(line)


@pytest.mark.parametrize(
    "name", ["patchswarm.daemon.local.hooks.slime.publish_wights", "patchswarm.daemon.lokal.client"]
)
def test_a_name_that_is_wrong_is_found(name):
    with pytest.raises(WrongError):
        check_name(name)


@pytest.mark.parametrize("span", ["patchswarm versions --labels", "patchswarm publisher adapt", "scripts/dmo"])
def test_a_sentence_that_is_wrong_is_found(span):
    with pytest.raises(WrongError):
        check_mention(span)


@pytest.mark.parametrize("language", ["sh", "python"])
def test_a_block_that_nobody_planned_is_found(language):
    (block,) = Page("docs/codec.md", f"```{language}\npatchswarm status\n```\n").blocks
    assert block == Block("docs/codec.md", 1, language, "patchswarm status\n")
    with pytest.raises(AssertionError):
        plan_of(block)
