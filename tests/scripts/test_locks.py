"""scripts/locks: the pins of scripts/constraints.txt with the hashes of their files, and nothing besides."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "scripts" / "locks"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; [^\n]*?)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def named(name):
    """A name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_of(text):
    return {named(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)}


def locked(lock):
    return {named(name): version for name, version, _ in PIN.findall((LOCKS / f"{lock}.txt").read_text())}


def needs(*extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return {named(re.match(r"[\w.-]+", line)[0]) for line in lines}


CONSTRAINTS = (ROOT / "scripts" / "constraints.txt").read_text()
FOR_TESTS = CONSTRAINTS.split("\n# Not installed by scripts/test")[0]


@pytest.mark.parametrize("lock", ["run", "dev", "model"])
def test_every_line_of_a_lock_is_a_pin_with_hashes(lock):
    text = (LOCKS / f"{lock}.txt").read_text()
    rest = PIN.sub("", text).split("\n")
    assert [line for line in rest if line and not line.startswith("#")] == []
    assert locked(lock)


@pytest.mark.parametrize("lock", ["run", "dev", "model"])
def test_locks_hold_the_versions_of_the_constraints(lock):
    pins = pins_of(CONSTRAINTS)
    assert locked(lock) == {name: pins.get(name) for name in locked(lock)}, "run scripts/lock"


def test_each_pin_for_the_tests_and_the_demo_is_in_a_lock():
    assert pins_of(FOR_TESTS).keys() == locked("run").keys() | locked("dev").keys() | locked("model").keys()


def test_locks_hold_what_the_project_asks_for_and_what_builds_it():
    assert needs("mirror") | {"setuptools"} <= locked("run").keys()
    assert needs("dev") <= locked("dev").keys()
    assert not locked("run").keys() & {"pytest", "ruff", "torch"}


def test_a_file_with_another_hash_is_refused(tmp_path):
    """What scripts/lib/environment.sh relies on: pip compares before it installs."""
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not what was locked")
    (tmp_path / "lock.txt").write_text(f"thing==1.0 --hash=sha256:{'0' * 64}\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--isolated", "--no-index", "--find-links", tmp_path),
            *("--target", tmp_path / "there", "--require-hashes", "--requirement", tmp_path / "lock.txt"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
