"""Upgrade and downgrade: a home goes from one version of the program to another and back, and nothing in it is lost.

What a program is too old for it refuses with one clear line, and touches nothing.
"""

import hashlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from daemon.nodes import make_head
from support.checkpoints import files_of, model, stepped, write
from support.programs import later_program

from patchswarm.daemon.config import Config
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.local.connection import DaemonAddress, read_json, stream_path
from patchswarm.daemon.local.model import LeaseInfo, LeaseRequest, RenewRequest
from patchswarm.storage.catalog import Catalog

pytestmark = pytest.mark.timeout(300)
COMMAND = Path(sys.executable).parent / "patchswarm"


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    return later_program(tmp_path_factory.mktemp("later"))


def change_program(fleet, command):
    """Stop every daemon, and start it again as another version of the program."""
    for node in fleet.nodes.values():
        node.stop()
        node.daemon = (str(command), "daemon")
        node.start()


def inodes(path):
    """Which files these are, whatever is in them; the state file is another one with each proof."""
    files = (each for each in path.iterdir() if not each.name.startswith(".patchswarm"))
    return {each.name: each.stat().st_ino for each in files}


def ask(node, method, path, body=None):
    address = DaemonAddress(node.home / "patchswarm.sock", "")
    with address.exchange(method, path, body=body, timeout_s=30) as response:
        return None if method == "DELETE" else read_json(response, LeaseInfo)


def test_a_fleet_goes_to_a_later_version_and_back_and_keeps_versions_slots_and_leases(
    own_fleet, stream, tmp_path, later
):
    fleet, random = own_fleet, np.random.default_rng(3)
    node = fleet.add("node", "eu-west/b")
    tensors = model()
    first = write(tmp_path / "1", tensors)
    fleet.publish(first, stream)
    before = node.client.version(stream)
    files = inodes(Path(before.path))
    lease = ask(node, "POST", stream_path(stream, "leases"), LeaseRequest(version=1, ttl_s=600))
    identity = node.client.node().node

    change_program(fleet, later)
    node.command("status")  # with the command of the version before
    fleet.check(node, stream, 1, files_of(first))
    assert node.client.version(stream).path == before.path
    assert inodes(Path(before.path)) == files, "nothing was fetched or built anew"
    renewed = ask(node, "PUT", stream_path(stream, "leases", lease.lease), RenewRequest(ttl_s=600))
    assert (renewed.version, renewed.path) == (1, before.path)
    assert node.client.node().node == identity
    tensors = stepped(tensors, random)
    second = write(tmp_path / "2", tensors)
    fleet.publish(second, stream)

    change_program(fleet, COMMAND)
    fleet.check(node, stream, 2, files_of(second))
    with node.client.lease(stream, 1) as old:
        assert files_of(old.path) == files_of(first), "and the lease has held the version before all the while"
    ask(node, "DELETE", stream_path(stream, "leases", lease.lease))
    fleet.publish(write(tmp_path / "3", stepped(tensors, random)), stream)


# -- what is too new -------------------------------------------------------------------------------------------------


def snapshot(root):
    """Every file of a home and what is in it; not the lock, which whoever looks at a home takes."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def refused(home, *command):
    """The one line with which a command refuses a home, having changed nothing in it."""
    before = snapshot(home.root)
    done = subprocess.run(
        [COMMAND, *command, "--home", home.root], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == Exit.HOME, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.stderr
    assert snapshot(home.root) == before
    return line.removeprefix("error: ")


@pytest.fixture
def home(tmp_path):
    made = make_head(tmp_path / "h").home
    Catalog(made.catalog).close()
    return made


@pytest.mark.parametrize("command", [("daemon",), ("status",), ("invite",), ("publish", "/m", "--stream", "qwen")])
def test_a_home_of_a_later_format_is_refused_by_every_command(home, command):
    (home.root / "format").write_text("patchswarm home 2\n")
    assert refused(home, *command) == (
        f"{home.root}: home format 2, but this patchswarm reads format 1; use the newer patchswarm that wrote it"
    )


def test_a_catalog_of_a_later_format_is_refused_and_not_taken_for_a_damaged_one(home):
    database = sqlite3.connect(home.catalog)
    database.execute("PRAGMA user_version = 99")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    line = refused(home, "daemon")
    assert "format 99" in line
    assert "upgrade" in line


@pytest.mark.parametrize("catalog", ["beside it", "lost"])
def test_a_signed_log_of_a_later_format_is_refused_and_not_taken_for_a_damaged_one(home, catalog):
    if catalog == "lost":
        home.catalog.unlink()
    log = home.root / "catalog.signed"
    data = log.read_bytes() if log.exists() else b""
    assert data, "a catalog has one from its first day"
    at = 6  # the format's byte, see docs/formats.md
    log.write_bytes(data[:at] + b"\x63" + data[at + 1 :])
    assert "later format: upgrade patchswarm" in refused(home, "daemon")


def test_a_key_of_a_later_version_is_named_and_a_later_meaning_of_keys_is_refused(home, later):
    text = home.config.read_text()
    home.config.write_text(text.replace("[log]", "[log]\ncolour = true"))
    assert "unknown key log.colour" in refused(home, "daemon")
    home.config.write_text(text.replace("config_version = 1", "config_version = 2"))
    assert "config_version 2, but this patchswarm reads 1: upgrade it" in refused(home, "daemon")


def test_what_a_later_version_writes_by_itself_this_one_reads(tmp_path, later):
    """New keys stand in a new file with their defaults, and those are comments."""
    root = tmp_path / "h"
    subprocess.run(
        [later, "init", "--home", root, "--site", "a", "--listen", "127.0.0.1:7340"], check=True, timeout=120
    )
    from patchswarm.daemon.home import Home

    assert "# colour = false" in (root / "config.toml").read_text()
    assert Config.load(Home.at(root)).node.site == "a"
