"""The home: made whole or not at all, one daemon at a time, clear words for each thing that can be wrong."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from patchswarm.daemon.errors import HomeError, InUseError
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.home import Home, write_private

NOBODY = 65534


@pytest.fixture
def home(tmp_path):
    return Home.at(tmp_path / "home")


@contextlib.contextmanager
def as_a_stranger():
    """Run as a user without rights, also where the tests run as root."""
    if os.getuid() != 0:
        pytest.skip("only root can become someone else")
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def open_folder():
    """A folder that everyone can look into, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def make(home):
    with home.making():
        pass


def test_a_made_home_passes_the_check_and_is_private(home):
    make(home)
    home.check()
    assert home.keys.stat().st_mode & 0o777 == 0o700
    assert home.invites.stat().st_mode & 0o777 == 0o700
    assert (home.root / "format").read_text() == "patchswarm home 1\n"


def test_parents_are_made_too(tmp_path):
    make(Home.at(tmp_path / "a" / "b" / "home"))


def test_a_missing_home_and_an_empty_folder_are_told_apart(tmp_path, home):
    with pytest.raises(HomeError, match="no such home; make one there with 'patchswarm init'"):
        home.check()
    with pytest.raises(HomeError, match="not a home yet"):
        Home.at(tmp_path).check()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("patchswarm home 2\n", "home format 2, but this patchswarm reads format 1; use the newer patchswarm"),
        ("patchswarm home 0\n", "use the older patchswarm"),
        ("something else\n", "does not say 'patchswarm home 1'; choose another --home"),
        ("patchswarm home x\n", "choose another --home, or restore the file"),
        ("", "choose another --home, or restore the file"),
    ],
)
def test_another_format_is_refused_by_number(home, line, message):
    make(home)
    (home.root / "format").write_text(line)
    with pytest.raises(HomeError, match=message):
        home.check()


def test_a_home_is_never_made_twice(home):
    make(home)
    with pytest.raises(HomeError, match="already a home"):
        make(home)
    home.check()


def test_foreign_files_are_left_alone(home):
    home.root.mkdir()
    (home.root / "thesis.tex").write_text("years of work")
    with pytest.raises(HomeError, match=r"not empty \(holds 'thesis.tex'\)"):
        make(home)
    assert [path.name for path in home.root.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_home(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(HomeError, match="not a directory"):
            make(Home.at(path))


def test_nothing_is_left_when_making_fails(tmp_path, home):

    def fail_half_way():
        with home.making():
            write_private(home.keys / "node.key", b"secret")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_of_the_users_stays_when_making_fails(home):
    home.root.mkdir()
    with pytest.raises(ZeroDivisionError), home.making():
        raise ZeroDivisionError
    assert list(home.root.iterdir()) == []


def test_a_making_cut_short_by_a_crash_is_made_again(home):
    code = (
        "import os, sys; from patchswarm.daemon.home import Home, write_private\n"
        "home = Home.at(sys.argv[1])\n"
        "with home.making():\n"
        "    write_private(home.keys / 'node.key', b'old')\n"
        "    (home.root / '.config.toml.1.tmp').write_bytes(b'torn')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, home.root], check=False, timeout=30).returncode == -9
    assert (home.keys / "node.key").exists()
    with pytest.raises(HomeError, match="not a home yet"):
        home.check()
    make(home)
    home.check()


def test_a_second_daemon_is_refused_naming_the_first(home):
    make(home)
    code = (
        "import sys; from patchswarm.daemon.home import Home\n"
        "with Home.at(sys.argv[1]).lock():\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, home.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(InUseError, match=f"in use by process {first.pid}; stop it first") as caught, home.lock():
            pytest.fail("two hold the home")
        assert caught.value.exit is Exit.IN_USE
        first.kill()
        first.wait(timeout=10)
    with home.lock():
        assert home.lock_file.read_text() == f"{os.getpid()}\n"


def test_two_makings_do_not_mix(home):
    with home.making():
        with pytest.raises(InUseError), home.making():
            pytest.fail("two make one home")
        assert home.keys.is_dir()
    home.check()


def test_a_home_of_someone_else_is_refused(open_folder):
    home = Home.at(open_folder / "home")
    make(home)
    with as_a_stranger(), pytest.raises(HomeError, match="cannot look into it: Permission denied; run as its owner"):
        home.check()
    home.root.chmod(0o755)
    with as_a_stranger():
        with pytest.raises(HomeError, match="no right to write this home; run as its owner"):
            home.check()
        with pytest.raises(HomeError, match="lock: cannot open it: Permission denied"), home.lock():
            pytest.fail("locked a home of someone else")
        with pytest.raises(HomeError, match="cannot make a home here: Permission denied"):
            make(Home.at(open_folder / "mine"))


def test_private_files_are_replaced_whole_and_never_readable_by_others(tmp_path):
    path = tmp_path / "node.key"
    write_private(path, b"first")
    write_private(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["node.key"]


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path, monkeypatch):
    path = tmp_path / "node.key"
    write_private(path, b"old")

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HomeError, match=r"node\.key: cannot write it: No space left on device"):
        write_private(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["node.key"]


def test_the_home_of_a_user_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Home.at("~/.patchswarm").root == tmp_path / ".patchswarm"
    monkeypatch.chdir(tmp_path)
    assert Home.at("here").root == tmp_path / "here"


def test_the_home_of_a_user_that_does_not_exist_is_named():
    with pytest.raises(HomeError, match="~no-such-user/x: no such user"):
        Home.at("~no-such-user/x")
