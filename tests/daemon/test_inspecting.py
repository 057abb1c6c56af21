"""`patchswarm inspect`: what it prints of two directories, and of two versions that a real daemon holds."""

import asyncio
import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from support.checkpoints import model, stepped, tensor, write

from patchswarm.daemon import cli
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.local import client as client_module
from patchswarm.daemon.local.model import VersionInfo

from .single import head_of, member_of, short_path

STREAM = "qwen"


def run(*arguments, code=Exit.OK):
    result = CliRunner().invoke(cli.main, ["inspect", *map(str, arguments)])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def steps(tmp_path):
    """Three steps of a model."""
    random = np.random.default_rng(1)
    tensors = [model(1)]
    tensors += [stepped(tensors[0], random)]
    tensors += [stepped(tensors[1], random)]
    return [write(tmp_path / f"step{number}", each) for number, each in enumerate(tensors)]


def sections(text):
    """The tables of the output: each as its rows, by the first word of its header."""
    tables = [block.splitlines() for block in text.split("\n\n")[1:]]
    return {(rows[0].split()[0], rows[0].split()[1]): [row.split() for row in rows[1:]] for rows in tables}


# -- directories -----------------------------------------------------------------------------------------------------


def test_two_directories_are_compared_without_a_daemon(steps):
    text = run("--dirs", *steps[:2]).stdout
    first = text.splitlines()
    assert first[0] == f"{steps[0]} -> {steps[1]}"
    assert first[1].split()[0] == "changed"
    assert first[1].endswith("of 1,177,600 elements)")
    assert "x smaller" in first[2]
    assert first[3].endswith("of it reached")
    tables = sections(text)
    assert [row[0] for row in tables["DTYPE", "TENSORS"]] == ["BF16"]
    assert [row[0] for row in tables["GROUP", "TENSORS"]] == [
        "embed.weight",
        "layers.*.down.weight",
        "layers.*.norm.weight",
        "layers.*.up.weight",
    ]
    assert {row[0] for row in tables["DTYPE", "EXPONENT"]} == {"BF16"}
    assert tables["ULPS", "CHANGED"][0][0] == "1"


def test_a_program_is_told_everything(steps):
    result = run("--dirs", *steps[:2], "--dirs", *steps[1:], "--json")
    assert result.stderr == ""
    first, second = json.loads(result.stdout)["transitions"]
    assert (first["old"], first["new"]) == (str(steps[0]), str(steps[1]))
    assert (second["old"], second["new"]) == (str(steps[1]), str(steps[2]))
    for found in (first, second):
        assert found["changed_fraction"] == found["changed"] / found["elements"] > 0
        assert sum(group["changed"] for group in found["groups"]) == found["changed"]
        assert found["bound_reached"] == found["bound_bytes"] / found["tensor_patch_bytes"]


def test_the_same_directory_twice_is_nothing_to_send(steps):
    text = run("--dirs", steps[0], steps[0]).stdout
    assert "changed  0.000% (0 of 1,177,600 elements)" in text
    assert "nothing to send" in text
    assert "ULPS" not in text


def test_integers_have_no_exponents(tmp_path):
    random = np.random.default_rng(1)
    before = {"t": tensor("U8", (64, 64), random)}
    after = stepped(before, random)
    text = run("--dirs", write(tmp_path / "a", before), write(tmp_path / "b", after)).stdout
    assert "EXPONENT" not in text
    assert "U8" in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root / "missing", "missing does not exist"),
        (lambda root: write(root / "other", model(1, layers=2)), "tensor 'layers.2.down.weight' is in "),
        (lambda root: write(root / "file", model(1)) / "config.json", "config.json is not a directory"),
    ],
)
def test_a_directory_that_cannot_be_compared_is_one_clear_line(steps, tmp_path, make, message):
    result = run("--dirs", steps[0], make(tmp_path), code=Exit.BAD_INPUT)
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --dirs OLD NEW or --stream NAME"),
        (["--dirs", "a", "b", "--stream", "qwen"], "give either --dirs OLD NEW or --stream NAME"),
        (["--dirs", "a", "b", "--version", "3"], "--version and --from go with --stream"),
        (["--stream", "qwen", "--version", "3", "--version", "4", "--from", "1"], "--from goes with one --version"),
    ],
)
def test_options_that_do_not_go_together_are_a_wrong_command_line(arguments, message):
    assert message in run(*arguments, code=Exit.USAGE).stderr


# -- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_is_drawn(steps, tmp_path, suffix, begin):
    picture = tmp_path / f"still.{suffix}"
    run("--dirs", *steps[:2], "--plot", picture)
    assert picture.read_bytes().startswith(begin)


def test_a_picture_of_several_versions_shows_them_over_time(steps, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: drawn.append(figure) or save(figure, path))
    run("--dirs", *steps[:2], "--plot", tmp_path / "one.png")
    run("--dirs", *steps[:2], "--dirs", *steps[1:], "--plot", tmp_path / "two.png")
    run("--dirs", steps[0], steps[0], "--plot", tmp_path / "none.png")
    one, two, none = ([axes.get_title().split(",")[0] for axes in figure.axes] for figure in drawn)
    panels = [
        "Changed share by group of tensors",
        "Changed share by exponent of the old value",
        "How far changed elements moved",
    ]
    assert one == none == panels
    assert two[:4] == [*panels, "Over versions"]
    assert [len(axes.lines) for axes in drawn[1].axes[:4]] == [0, 2, 0, 1]


def test_only_the_groups_that_change_most_are_drawn(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    random = np.random.default_rng(1)
    before = {f"part{number:02}.weight": tensor("U8", (40 * (1 + number),), random) for number in range(40)}
    after = stepped(before, random, fraction=0.5)
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _path: drawn.append(figure))
    run("--dirs", write(tmp_path / "a", before), write(tmp_path / "b", after), "--plot", tmp_path / "x.png")
    groups = drawn[0].axes[0]
    assert groups.get_title().endswith("the 24 that change most")
    assert [label.get_text() for label in groups.get_yticklabels()] == [
        f"part{number:02}.weight" for number in range(16, 40)
    ]


def test_without_matplotlib_it_says_what_to_install_and_measures_nothing(steps, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--dirs", *steps[:2], "--plot", tmp_path / "x.png", code=Exit.BAD_INPUT)
    assert result.stderr == "error: --plot needs matplotlib: pip install 'patchswarm[plot]'\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.bmp", "x.bmp: name a picture that ends in .png, .svg, .pdf"),
        ("picture", "picture: name a picture that ends in .png, .svg, .pdf"),
        ("missing/x.png", "missing is not a directory: make it first"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_said_before_anything_is_measured(steps, tmp_path, name, message):
    result = run("--dirs", *steps[:2], "--plot", tmp_path / name, code=Exit.BAD_INPUT)
    assert result.stderr == f"error: {tmp_path / message}\n"


# -- versions --------------------------------------------------------------------------------------------------------


class Versions:
    """A client of a daemon that knows these versions, and holds those with a path."""

    def __init__(self, held, known):
        self.known = [
            VersionInfo(
                stream=STREAM, epoch=0, version=number, label="", manifest="", size_bytes=1, proven=True,
                path="/slots" if number in held else None,
            )
            for number in known
        ]  # fmt: skip

    def __call__(self, _socket):
        return self

    def versions(self, _stream):
        return self.known


@pytest.mark.parametrize(
    ("held", "arguments", "message"),
    [
        ([7], [], "version 6 of 'qwen', to compare 7 with, is not held here any more; held are 7; keep a lease on it "),
        ([5, 7], ["--version", 6], "version 6 of 'qwen' is not held here; held are 5, 7"),
        ([5, 7], ["--version", 9], "version 9 of 'qwen' is not held here; held are 5, 7"),
        ([4, 7], ["--version", 4], "no version of 'qwen' before 4 is known here; held are 4, 7; give --from"),
        ([7], ["--from", 3], "version 3 of 'qwen', to compare 7 with, is not held here any more; held are 7; keep"),
        ([], ["--version", 7], "version 7 of 'qwen' is not held here; none is held"),
        ([], [], "no version of 'qwen' is held here yet"),
    ],
)
def test_a_version_that_is_not_held_is_one_line_that_says_which_are(monkeypatch, tmp_path, held, arguments, message):
    monkeypatch.setattr(client_module, "Client", Versions(held, [7, 6, 5, 4]))
    result = run("--stream", STREAM, *arguments, "--socket", tmp_path / "s", code=Exit.NOT_FOUND)
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


async def command(*arguments, code=Exit.OK):
    """Run the command beside the daemons of this test; what it printed, and what it complained of."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "patchswarm.daemon", "inspect", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complained = await process.communicate()
    assert process.returncode == code, complained.decode()
    return printed.decode(), complained.decode()


async def test_versions_that_a_real_daemon_holds_are_compared_under_leases(tmp_path):
    with short_path() as root:
        async with head_of(root) as head, member_of(head, root) as member:
            tensors = [model(1)]
            tensors.append(stepped(tensors[0], np.random.default_rng(2)))
            directories = [write(tmp_path / f"{number}", each, shards=2) for number, each in enumerate(tensors)]
            here = ("--stream", STREAM, "--socket", member.config.local.socket)

            await head.publish(STREAM, directories[0])
            await member.committed(STREAM, 1)
            _, error = await command(*here, code=Exit.NOT_FOUND)
            assert error == f"error: no version of {STREAM!r} before 1 is known here; held are 1; give --from\n"

            await member.node.service.lease(STREAM, 1, 60)
            published = await head.publish(STREAM, directories[1])
            await member.committed(STREAM, 2)
            (found,) = json.loads((await command(*here, "--json"))[0])["transitions"]
            (same,) = json.loads((await command("--dirs", *directories, "--json"))[0])["transitions"]
            assert (found.pop("old"), found.pop("new")) == (f"{STREAM} 1", f"{STREAM} 2")
            del same["old"], same["new"]
            assert found == same
            assert found["patch_bytes"] == pytest.approx(published.patch_bytes, rel=0.02)

            (back,) = json.loads((await command(*here, "--version", 1, "--from", 2, "--json"))[0])["transitions"]
            assert back["changed"] == found["changed"]
            assert member.node.replicas[STREAM].slots.lease_count() == 1  # the command's own are given back
