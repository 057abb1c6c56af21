"""What a host does with a version: wait, lease, pull, list, and plain HTTP on the socket."""

import http.client
import json
import socket
import subprocess
import threading

import numpy as np
import pytest
from support.checkpoints import files_of, model, stepped, write

from patchswarm.daemon.local.errors import UnknownVersionError

pytestmark = pytest.mark.timeout(300)  # a shared machine may be ten times slower than an idle one


class UnixConnection(http.client.HTTPConnection):
    """HTTP on a unix socket: what `curl --unix-socket` does."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def get(node, path, **headers):
    connection = UnixConnection(node.home / "patchswarm.sock")
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.fixture
def west(fleet):
    return fleet.nodes["west"]


@pytest.fixture
def published(fleet, stream, tmp_path):
    """Two versions; their directories."""
    tensors = model(layers=1)
    directories = [write(tmp_path / "1", tensors), write(tmp_path / "2", stepped(tensors, np.random.default_rng(1)))]
    for number, directory in enumerate(directories, start=1):
        fleet.publish(directory, stream, "--label", f"step {number}")
    return directories


def test_a_long_poll_returns_when_the_version_is_committed(fleet, stream, west, published, tmp_path):
    answers = []
    waiter = threading.Thread(target=lambda: answers.append(get(west, f"/v1/streams/{stream}/version?min=3&wait=60")))
    waiter.start()
    fleet.publish(write(tmp_path / "3", model(seed=5, layers=1)), stream)
    waiter.join(60)
    (answer,) = answers
    assert answer[0] == 200
    assert json.loads(answer[2])["version"] == 3


def test_a_wait_in_vain_is_a_problem_that_says_so(stream, west, published):
    status, headers, body = get(west, f"/v1/streams/{stream}/version?min=9&wait=0.1")
    problem = json.loads(body)
    assert status == 404
    assert headers["Content-Type"].startswith("application/problem+json")
    assert problem["type"] == "urn:patchswarm:problem:version-not-ready"
    assert "version 2" in problem["detail"]


def test_a_client_can_wait_for_a_stream_before_its_first_version(fleet, stream, west, tmp_path):
    found = []
    waiter = threading.Thread(target=lambda: found.append(west.client.wait(stream, 1, 60)))
    waiter.start()
    fleet.publish(write(tmp_path / "1", model(layers=1)), stream)
    waiter.join(60)
    assert [version.version for version in found] == [1]


def test_a_lease_keeps_its_version_while_newer_ones_come(fleet, stream, west, published, tmp_path):
    with west.client.lease(stream) as lease:
        assert lease.version == 2
        truth = files_of(published[1])
        assert files_of(lease.path) == truth
        tensors = model(layers=1)
        others = [node for node in fleet.running() if node is not west]
        for number, on in ((3, fleet.running()), (4, others), (5, others)):
            directory = write(tmp_path / str(number), tensors := stepped(tensors, np.random.default_rng(number)))
            fleet.publish(directory, stream, on=on)
            assert files_of(lease.path) == truth, f"version 2 changed under its reader when {number} came"
        assert west.client.version(stream).version == 3, "two slots: one is leased, one current, none free for more"
    fleet.check(west, stream, 5, files_of(directory))


def test_every_host_has_a_version_under_the_same_name(fleet, stream, published):
    for node in fleet.running():
        with node.client.lease(stream) as lease:
            assert lease.path == node.home / "slots" / stream / "v2"


def test_leasing_a_version_that_is_not_here_names_it(stream, west, published):
    with pytest.raises(UnknownVersionError, match="99"), west.client.lease(stream, 99):
        pass


def test_tensors_are_numpy_views_of_the_slot(stream, west, published):
    with west.client.tensors(stream) as tensors:
        assert "layers.0.up.weight" in tensors
        assert tensors["layers.0.up.weight"].shape == (512, 256)


def test_pull_copies_a_version_out(stream, west, published, tmp_path):
    said = west.command("pull", "--stream", stream, "--out", tmp_path / "out").stdout
    assert f"pulled {stream} version 2" in said
    assert files_of(tmp_path / "out") == files_of(published[1])


def test_pull_waits_for_a_version_to_come(fleet, stream, west, published, tmp_path):
    pulled = []

    def pull():
        line = ("pull", "--stream", stream, "--version", "3", "--wait", "60", "--out", tmp_path / "out", "--quiet")
        pulled.append(west.command(*line).stdout)

    waiter = threading.Thread(target=pull)
    waiter.start()
    directory = write(tmp_path / "3", model(seed=3, layers=1))
    fleet.publish(directory, stream)
    waiter.join(60)
    assert pulled == ["3\n"]
    assert files_of(tmp_path / "out") == files_of(directory)


def test_versions_lists_them_newest_first(stream, west, published):
    lines = west.command("versions", "--stream", stream).stdout.splitlines()
    assert lines[0].split()[:2] == ["VERSION", "LABEL"]
    assert [line.split()[0] for line in lines[1:]] == ["2", "1"]
    assert "step 2" in lines[1]
    listed = json.loads(west.command("versions", "--stream", stream, "--json").stdout)["versions"]
    assert [version["label"] for version in listed] == ["step 2", "step 1"]


def test_status_shows_streams_and_peers(fleet, stream, west, published):
    text = west.command("status").stdout
    assert stream in text
    status = json.loads(west.command("status", "--json").stdout)
    (mine,) = [each for each in status["streams"] if each["stream"] == stream]
    assert mine["state"] == "current"
    assert mine["lag"] == 0
    assert not mine["publisher"]
    assert mine["current"]["version"] == mine["head"]["version"] == 2
    assert {peer["site"] for peer in status["peers"]} == {"us-east/a"}
    assert len(status["peers"]) == 2
    assert any(peer["connected"] for peer in status["peers"])
    (head_sees,) = [each for each in fleet.head.client.streams() if each.stream == stream]
    assert head_sees.publisher


def test_curl_on_the_socket(stream, west, published):
    path = west.home / "patchswarm.sock"
    line = ["curl", "-sf", "--unix-socket", str(path), f"http://localhost/v1/streams/{stream}/version"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no curl on this machine; the same request is made in Python below")
    assert json.loads(done.stdout)["version"] == 2


def test_files_over_http_with_range_and_etag(stream, west, published):
    base = f"/v1/streams/{stream}/versions/2/files"
    status, _, body = get(west, base)
    listed = {file["path"]: file["size_bytes"] for file in json.loads(body)["files"]}
    assert status == 200
    assert listed == {path.name: path.stat().st_size for path in published[1].iterdir()}

    truth = (published[1] / "model.safetensors").read_bytes()
    status, headers, body = get(west, f"{base}/model.safetensors")
    assert (status, body) == (200, truth)
    etag = headers["ETag"]

    status, headers, body = get(west, f"{base}/model.safetensors", Range="bytes=1000-1999")
    assert (status, body) == (206, truth[1000:2000])
    assert headers["Content-Range"] == f"bytes 1000-1999/{len(truth)}"

    status, _, body = get(west, f"{base}/model.safetensors", If_None_Match=etag)
    assert (status, body) == (304, b"")


def test_one_tensor_over_http(stream, west, published):
    status, _, body = get(west, f"/v1/streams/{stream}/versions/2/tensors")
    assert status == 200
    entry = next(each for each in json.loads(body)["tensors"] if each["name"] == "layers.0.norm.weight")
    status, _, body = get(west, f"/v1/streams/{stream}/versions/2/tensors/layers.0.norm.weight")
    assert status == 200
    whole = (published[1] / entry["file"]).read_bytes()
    assert body == whole[entry["offset"] : entry["offset"] + entry["size_bytes"]]


def test_health_and_readiness(west, published):
    assert get(west, "/healthz")[0] == 200
    assert get(west, "/readyz")[0] == 200


def test_peers_over_http(fleet, west, published):
    status, _, body = get(west, "/v1/peers")
    assert status == 200
    assert len(json.loads(body)["peers"]) == len(fleet.nodes) - 1
