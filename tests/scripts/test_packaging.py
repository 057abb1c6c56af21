"""What is installed: every module of the house and nothing beside it, from a clean copy, next to whatever is there."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "scripts/container/Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FLOORS = ("daemon", "protocol", "storage")


def modules():
    """Every Python file of the three floors, as it lies in an installation."""
    files = [path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")]
    return {f"patchswarm/{path.relative_to(ROOT)}" for path in files}


def copied():
    """(source, destination) of what the Containerfile copies from this repository."""
    for line in re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE, re.MULTILINE):
        *sources, destination = line.split()
        for source in sources:
            yield source, Path(source).name if destination == "./" else destination


def pip(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is built from nothing but what the Containerfile copies."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name, destination in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / destination, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / destination)
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source)
    (made,) = out.glob("*.whl")
    return made


def test_every_package_is_named_where_it_is_installed_from():
    packages = {f"patchswarm.{'.'.join(path.parent.relative_to(ROOT).parts)}" for path in ROOT.glob("*/**/__init__.py")}
    house = {each for each in packages if each.split(".")[1] in FLOORS}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == house
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    assert folders == {name: name.removeprefix("patchswarm.").replace(".", "/") for name in house}


def test_extras_are_those_that_the_docs_name():
    assert set(PROJECT["project"]["optional-dependencies"]) == {"torch", "mirror", "plot", "dev"}


def test_the_wheel_holds_every_module_and_nothing_outside_its_own_name(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if name.endswith(".py")} == modules()
    assert {name.partition("/")[0] for name in names} == {
        "patchswarm",
        f"patchswarm-{wheel.name.split('-')[1]}.dist-info",
    }
    assert {f"patchswarm/{floor}/py.typed" for floor in FLOORS} <= names
    assert "patchswarm/daemon/local/page.html" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
        (points,) = (each for each in archive.namelist() if each.endswith("entry_points.txt"))
        assert "patchswarm = patchswarm.daemon.cli:main" in archive.read(points).decode()
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.11" in text
    assert "Provides-Extra: mirror" in text


@pytest.mark.slow
def test_it_installs_beside_python_daemon_and_both_work(wheel, tmp_path):
    """PyPI's python-daemon is the import package `daemon`. Needs the package index."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    try:
        pip("--python", python, "install", "--quiet", "python-daemon")
    except AssertionError as error:
        pytest.skip(f"python-daemon is not to be had here: {error}")
    pip("--python", python, "install", "--quiet", "--no-deps", wheel)
    # Everything else that patchswarm needs is taken from this environment: its own installation is not on that path.
    program = (
        "import daemon, patchswarm.daemon.cli, patchswarm.storage.chunks\n"
        "assert daemon.DaemonContext and patchswarm.daemon.cli.main\n"
        "print(daemon.__file__, patchswarm.daemon.__file__, sep='\\n')"
    )
    said = subprocess.run(
        [python, "-P", "-c", program],
        env={"PYTHONPATH": sysconfig.get_path("purelib")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert [Path(path).is_relative_to(tmp_path / "env") for path in said] == [True, True]
    assert Path(said[0]).parts[-2:] == ("daemon", "__init__.py")
    shown = subprocess.run(
        [tmp_path / "env/bin/patchswarm", "--help"],
        env={"PYTHONPATH": sysconfig.get_path("purelib")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "publish" in shown
