"""Bad input: one clear line that names the thing and says what to do, the exit code of the table, nothing half-done."""

import json
import os
import shutil
import socket
import subprocess
import threading

import numpy as np
import pytest
from local_fleet import COMMAND, Node
from support.checkpoints import model, stepped, write

from patchswarm.daemon.exits import Exit

pytestmark = pytest.mark.timeout(300)  # a shared machine may be ten times slower than an idle one


def refused(node, code, *arguments):
    """The one line on standard error of a command that must fail with `code`."""
    done = node.command(*arguments, expect=code)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return lines[0]


@pytest.fixture
def head(fleet):
    return fleet.head


@pytest.fixture
def published(fleet, stream, tmp_path):
    """One good version; it must still be the newest, and another publish work, when the test is over."""
    tensors = model(layers=1)
    directory = write(tmp_path / "good", tensors)
    fleet.publish(directory, stream)
    yield directory
    assert [version.version for version in fleet.head.client.versions(stream)] == [1]
    following = write(tmp_path / "following", stepped(tensors, np.random.default_rng(1)))
    assert fleet.publish(following, stream)["version"] == 2


def publish_refused(head, stream, directory, code=Exit.BAD_INPUT):
    return refused(head, code, "publish", directory, "--stream", stream, "--quiet")


def test_a_missing_directory(head, stream, published, tmp_path):
    line = publish_refused(head, stream, tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in line


def test_an_empty_directory(head, stream, published, tmp_path):
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in publish_refused(head, stream, tmp_path / "empty")


def test_a_file_in_place_of_a_directory(head, stream, published):
    assert "config.json" in publish_refused(head, stream, published / "config.json")


def with_header(path, tensors, data_bytes):
    entries = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        for name, (dtype, shape, offsets) in tensors.items()
    }
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(data_bytes))


def long_header(path):
    path.write_bytes((2**40).to_bytes(8, "little") + path.read_bytes()[8:])


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def cut_in_header(path):
    path.write_bytes(path.read_bytes()[:50])


def too_short(path):
    path.write_bytes(b"abc")


def no_json(path):
    path.write_bytes((16).to_bytes(8, "little") + b"{this is no json" + bytes(100))


def list_for_header(path):
    path.write_bytes((2).to_bytes(8, "little") + b"[]")


def offsets_beyond_the_end(path):
    with_header(path, {"a": ("F32", [4], [0, 16]), "b": ("F32", [4], [16, 99])}, 32)


def size_that_contradicts_the_shape(path):
    with_header(path, {"a": ("F32", [5], [0, 16])}, 16)


def overlapping_tensors(path):
    with_header(path, {"a": ("F32", [4], [0, 16]), "b": ("F32", [4], [8, 24])}, 24)


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        cut_in_header,
        too_short,
        long_header,
        no_json,
        list_for_header,
        offsets_beyond_the_end,
        size_that_contradicts_the_shape,
        overlapping_tensors,
    ],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_safetensors_file(head, stream, published, tmp_path, damage):
    bad = write(tmp_path / "bad", model(seed=9, layers=1))
    damage(bad / "model.safetensors")
    assert "model.safetensors" in publish_refused(head, stream, bad)


def test_a_link_that_leads_nowhere(head, stream, published, tmp_path):
    bad = write(tmp_path / "bad", model(seed=9, layers=1))
    (bad / "tokenizer.json").symlink_to(tmp_path / "gone")
    assert "tokenizer.json" in publish_refused(head, stream, bad)


def test_a_directory_that_the_trainer_is_still_writing(head, stream, published, tmp_path):
    bad = write(tmp_path / "bad", model(seed=9, layers=1))
    done = threading.Event()

    def keep_writing():
        number = 0
        with (bad / "model.safetensors").open("r+b") as file:
            while not done.is_set():
                number += 1
                file.seek(-8, os.SEEK_END)
                file.write(number.to_bytes(8, "little"))
                file.flush()

    trainer = threading.Thread(target=keep_writing)
    trainer.start()
    try:
        line = publish_refused(head, stream, bad)
    finally:
        done.set()
        trainer.join()
    assert "model.safetensors" in line
    assert "chang" in line


@pytest.mark.parametrize("number", ["0", "1"])
def test_a_version_that_does_not_rise(head, stream, published, number):
    line = refused(head, Exit.CONFLICT, "publish", published, "--stream", stream, "--version", number, "--quiet")
    assert number in line


@pytest.mark.parametrize("name", ["../escape", "a b", "", "-", "x" * 65, ".hidden"])
def test_a_stream_name_that_cannot_be_a_folder(head, tmp_path, name):
    directory = write(tmp_path / "good", model(layers=1))
    done = head.command("publish", directory, f"--stream={name}", "--quiet", expect=Exit.BAD_INPUT)
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [("versions",), ("pull", "--out", "/tmp/never-made")], ids=lambda arguments: arguments[0]
)
def test_an_unknown_stream(fleet, arguments):
    command, *rest = arguments
    line = refused(fleet.nodes["west"], Exit.NOT_FOUND, command, "--stream", "no-such-stream", *rest)
    assert "no-such-stream" in line


def test_an_unknown_version(fleet, stream, published, tmp_path):
    line = refused(
        fleet.head, Exit.NOT_FOUND, "pull", "--stream", stream, "--version", "77", "--out", tmp_path / "out", "--quiet"
    )
    assert "77" in line
    assert not (tmp_path / "out").exists()


def test_pulling_into_a_directory_that_holds_something(fleet, stream, published, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    line = refused(fleet.head, Exit.BAD_INPUT, "pull", "--stream", stream, "--out", tmp_path / "out", "--quiet")
    assert str(tmp_path / "out") in line
    assert (tmp_path / "out" / "mine").read_text() == "mine"


def test_pulling_a_version_that_does_not_come_in_time(fleet, stream, published, tmp_path):
    arguments = ("pull", "--stream", stream, "--version", "9", "--wait", "0.1", "--out", tmp_path / "out", "--quiet")
    assert "9" in refused(fleet.head, Exit.TIMEOUT, *arguments)


def test_publishing_on_a_rollout_host(fleet, stream, published):
    line = refused(fleet.nodes["west"], Exit.REFUSED, "publish", published, "--stream", stream, "--quiet")
    assert "publish on the head" in line


# -- joining ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def newcomer(tmp_path):
    """A node without a home; it must still have none when the test is over."""
    node = Node(tmp_path, "newcomer", "eu-west/b")
    yield node
    assert not node.home.exists()


def join_refused(node, token, code):
    return refused(node, code, "join", token, "--site", node.site, "--listen", node.address)


def test_a_token_that_is_none(newcomer):
    assert "token" in join_refused(newcomer, "hello", Exit.BAD_INPUT)


def test_a_damaged_token(fleet, newcomer):
    token = fleet.head.invite()
    assert "damaged" in join_refused(newcomer, token[:-3], Exit.BAD_INPUT)


def test_an_expired_token(fleet, newcomer):
    token = fleet.head.invite("--ttl", "0.001s")
    assert "expired" in join_refused(newcomer, token, Exit.REFUSED)


def test_a_token_of_another_cluster(fleet, newcomer, tmp_path):
    """A foreign head made it, but its address leads to ours."""
    foreign = Node(tmp_path, "foreign", "us-east/a")
    foreign.address = fleet.head.address
    foreign.init()
    line = join_refused(newcomer, foreign.invite(), Exit.REFUSED)
    assert "cluster" in line


def test_a_token_that_was_used(fleet, newcomer, tmp_path):
    token = fleet.head.invite()
    first = Node(tmp_path, "first", "eu-west/b")
    first.join(token)
    assert "used" in join_refused(newcomer, token, Exit.REFUSED)


def test_a_head_that_nobody_reaches(newcomer, tmp_path):
    silent = Node(tmp_path, "silent", "us-east/a")
    silent.init()
    assert silent.address in join_refused(newcomer, silent.invite(), Exit.NOT_RUNNING)


# -- homes, ports and sockets ----------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path):
    """A head of its own, not running."""
    node = Node(tmp_path, "n", "us-east/a")
    node.init()
    return node


def test_a_daemon_that_runs_already(fleet):
    line = refused(fleet.head, Exit.IN_USE, "daemon")
    assert str(fleet.head.home) in line
    assert str(fleet.head.pid) in line
    assert fleet.head.client.ready()


def test_a_port_in_use(node):
    with socket.socket() as other:
        host, port = node.address.split(":")
        other.bind((host, int(port)))
        other.listen()
        assert port in refused(node, Exit.IN_USE, "daemon")


def test_a_socket_in_use(node):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(node.home / "patchswarm.sock"))
        other.listen()
        assert "patchswarm.sock" in refused(node, Exit.IN_USE, "daemon")


def test_a_socket_left_by_a_dead_daemon_is_replaced(node):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(node.home / "patchswarm.sock"))
    node.start()
    node.stop()


def test_a_home_that_does_not_exist(tmp_path):
    nobody = Node(tmp_path, "nowhere", "us-east/a")
    for arguments in (("daemon",), ("status",), ("invite",)):
        line = refused(nobody, Exit.HOME, *arguments)
        assert str(nobody.home) in line
    assert not nobody.home.exists()


def test_a_home_that_is_one_already(node):
    line = refused(node, Exit.HOME, "init", "--site", "x", "--listen", node.address)
    assert str(node.home) in line


def test_a_folder_that_holds_something_else(tmp_path):
    other = Node(tmp_path, "other", "us-east/a")
    other.home.mkdir()
    (other.home / "thesis.tex").write_text("mine")
    assert "thesis.tex" in refused(other, Exit.HOME, "init", "--site", "x", "--listen", other.address)
    assert [path.name for path in other.home.iterdir()] == ["thesis.tex"]


def test_a_home_without_rights(node):
    line = [str(COMMAND), "daemon", "--home", str(node.home)]
    if os.geteuid() == 0:  # root without the right to pass over permissions
        if shutil.which("setpriv") is None:
            pytest.skip("root has every right here, and there is no setpriv to take it away")
        line = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *line]
    node.home.chmod(0o500)
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    finally:
        node.home.chmod(0o700)
    assert done.returncode == Exit.HOME
    assert len(done.stderr.splitlines()) == 1
    assert str(node.home) in done.stderr


def test_a_config_with_a_misspelt_key(node):
    config = node.home / "config.toml"
    config.write_text(config.read_text() + '\n[storage]\nslot_dri = "/dev/shm"\n')
    line = refused(node, Exit.HOME, "daemon")
    assert "config.toml" in line


def test_a_command_without_a_daemon(node):
    for arguments in (
        ("status",),
        ("versions", "--stream", "s"),
        ("pull", "--stream", "s", "--out", "/tmp/never-made"),
    ):
        line = refused(node, Exit.NOT_RUNNING, *arguments)
        assert str(node.home) in line


def test_a_wrong_command_line(node):
    assert node.command("publish", expect=Exit.USAGE).returncode == 2
