"""The sync client against the real API."""

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize
from support.local_service import STREAM

from patchswarm.daemon.errors import BadInputError
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.lives import Moment
from patchswarm.daemon.local.client import Client
from patchswarm.daemon.local.connection import default_socket, error_of
from patchswarm.daemon.local.errors import (
    AmbiguousTensorError,
    BadSourceError,
    ConnectionLostError,
    InvalidRequestError,
    LeaseGoneError,
    LocalError,
    NotRunningError,
    UnauthorizedError,
    UnknownStreamError,
    UnknownTensorError,
    UnknownVersionError,
    VersionNotReadyError,
)
from patchswarm.daemon.local.model import PublishProgress, PublishResult


@pytest.fixture
def client(api):
    return Client(api.api.socket)


def test_it_tells_what_the_node_tells(api, client):
    api.commit(1)
    api.commit(2)
    api.service.told.note(STREAM, 1, 2, "ab" * 16, Moment.COMMITTED)
    assert [status.stream for status in client.streams()] == [STREAM]
    assert client.status(STREAM).current.version == 2
    assert client.version(STREAM).label == "step 2"
    assert [version.version for version in client.versions(STREAM)] == [2, 1]
    assert [(life.version, list(life.moments)) for life in client.lives(STREAM)] == [(2, ["committed"])]
    assert client.peers()[0].site == "eu/b"
    assert client.ready().ready


def test_a_version_is_found_by_its_label(api, client):
    api.commit(1, label="first")
    api.commit(2)
    assert client.find(STREAM, "first").version == 1
    assert client.find(STREAM, "second") is None
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.find, STREAM, "third", 60)
        api.wait_for(lambda service: service.waiters == 1)
        api.commit(3, label="third")
        assert waiting.result(30).version == 3


def test_tensors_are_listed_without_reading_them(api, client):
    api.commit(1)
    listed = {tensor.name: (tensor.dtype, tensor.shape) for tensor in client.tensor_list(STREAM).tensors}
    assert listed["model.embed/weight"] == ("BF16", [64, 33])
    assert client.tensor_list(STREAM, 1).version.version == 1


def test_a_node_that_is_not_ready_is_an_answer_not_an_error(api, client):
    api.service.reasons = ["far behind"]
    assert client.ready().reasons == ["far behind"]


def test_problems_come_back_as_the_errors_that_the_service_raised(api, client):
    with pytest.raises(UnknownStreamError, match="does not follow stream 'llama'") as raised:
        client.status("llama")
    assert raised.value.exit is Exit.NOT_FOUND
    with pytest.raises(VersionNotReadyError) as raised:
        client.version(STREAM)
    assert raised.value.context["current"] is None
    with pytest.raises(UnknownStreamError, match=r"'what/ever\?#%2F'"):
        client.status("what/ever?#%2F")


def test_a_problem_of_a_newer_daemon_keeps_its_slug():
    error = error_of(
        418, b'{"type":"urn:patchswarm:problem:teapot","title":"A teapot","status":418,"detail":"no coffee","more":1}'
    )
    assert (type(error), error.slug, error.status, str(error)) == (LocalError, "teapot", 418, "no coffee")
    assert "418" in str(error_of(418, b"<html>"))


def test_waiting_ends_with_the_version(api, client):
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.wait, STREAM, at_least=2)
        api.wait_for(lambda service: service.waiters == 1)
        api.commit(1)
        api.commit(2)
        assert waiting.result(30).version == 2


def test_waiting_in_vain_ends_with_none(api, client):
    api.commit(1)
    assert client.wait(STREAM, at_least=2, timeout_s=0.01) is None
    assert client.wait(STREAM, at_least=2, timeout_s=0) is None
    assert client.wait(STREAM, at_least=1, timeout_s=0).version == 1


def test_following_gives_each_newer_version_across_a_key_rotation(api, client):
    following = client.follow(STREAM)
    api.commit(1)
    assert next(following).version == 1
    api.commit(2)
    api.commit(9)
    assert next(following).version == 9
    api.service.epoch = 2
    api.commit(3)
    assert (info := next(following)).epoch == 2
    assert info.version == 3


def test_a_lease_gives_the_directory_and_lets_go_of_it(api, client):
    api.commit(4, proven=False)
    with client.lease(STREAM) as lease:
        assert lease.version == 4
        assert lease.proven is False
        assert (lease.path / "config.json").is_file()
        assert not api.service.leases[lease.info.lease].gone
    assert api.service.leases[lease.info.lease].gone


def test_a_lease_is_renewed_while_it_is_held(api, client):
    api.commit(1)
    with client.lease(STREAM, ttl_s=0.03) as lease:
        api.wait_for(lambda service: len(service.renewals) >= 3)
        lease.check()
    assert set(api.service.renewals) == {lease.info.lease}


def test_a_lost_lease_is_an_error_for_whoever_relied_on_it(api, client):
    api.commit(1)
    with pytest.raises(LeaseGoneError), client.lease(STREAM) as lease:
        lose(api, lease)


def lose(api, lease):
    api.service.leases[lease.info.lease].gone = True


def test_a_lease_lost_at_a_renewal_is_known_at_once(api, client):
    api.commit(1)
    lease = client.lease(STREAM, ttl_s=0.03)
    lease.__enter__()
    lose(api, lease)
    lease._renewer.join(30)
    with pytest.raises(LeaseGoneError):
        lease.check()
    with pytest.raises(LeaseGoneError):
        lease.__exit__(None, None, None)


def test_the_readers_own_error_is_not_hidden_by_a_lost_lease(api, client):
    def read():
        with client.lease(STREAM) as lease:
            lose(api, lease)
            raise ZeroDivisionError

    api.commit(1)
    with pytest.raises(ZeroDivisionError):
        read()


def test_leasing_what_is_not_here_is_an_error(api, client):
    with pytest.raises(UnknownVersionError), client.lease(STREAM, 7):
        pass


def test_tensors_are_the_safetensors_librarys_own_without_a_copy(api, client):
    api.commit(1)
    folder = api.service.known[1].path
    with client.tensors(STREAM) as tensors:
        assert tensors.version.version == 1
        assert len(tensors) == 7
        for name in set(tensors) - {"twice"}:
            info = tensors.info(name)
            truth = dict(deserialize((folder / info.file).read_bytes()))[name]
            array = tensors[name]
            assert array.tobytes() == bytes(truth["data"])
            assert not array.flags.owndata
            assert not array.flags.writeable
        assert tensors["model.norm weight%2F"].dtype == np.float32
        assert tensors["scalar"].shape == ()
        assert tensors["empty"].shape == (0, 4)
        assert tensors["model.embed/weight"].dtype == np.uint16
        assert tensors["model.embed/weight"].shape == (64, 33)
        assert tensors["packed"].shape == (4, 3)
        assert api.service.leases["lease-1"].gone is False
    assert api.service.leases["lease-1"].gone is True


def test_an_array_shows_the_files_own_pages(api, client):
    api.commit(1)
    with client.tensors(STREAM) as tensors:
        info = tensors.info("model.fp8")
        array = tensors["model.fp8"]
        before = int(array[0, 0])
        with (api.service.known[1].path / info.file).open("r+b") as file:
            file.seek(info.offset)
            file.write(bytes([before ^ 0xFF]))
        assert array[0, 0] == before ^ 0xFF


def test_a_tensor_that_is_not_there_or_there_twice_is_named(api, client):
    api.commit(1)
    with client.tensors(STREAM) as tensors:
        assert "nope" not in tensors
        with pytest.raises(UnknownTensorError, match="'nope'"):
            tensors["nope"]
        with pytest.raises(AmbiguousTensorError, match=r"model-2\.safetensors"):
            tensors["twice"]


def test_torch_sees_the_same_bits(api, client):
    torch = pytest.importorskip("torch")
    api.commit(1)
    with client.tensors(STREAM) as tensors:
        weight = tensors.torch("model.embed/weight")
        assert weight.dtype == torch.bfloat16
        assert weight.shape == (64, 33)
        assert weight.view(torch.uint16).numpy().tobytes() == tensors["model.embed/weight"].tobytes()
        assert tensors.torch("model.fp8").dtype == torch.float8_e4m3fn
        assert tensors.torch("empty").shape == (0, 4)
        assert tensors.torch("packed").shape == (4, 3)
        before = files_below(api.service.known[1].path)
        weight.zero_()  # a private copy of the page, not the slot
        assert files_below(api.service.known[1].path) == before


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".patchswarm")
    }


def test_pull_gives_the_versions_files_and_nothing_else(api, client, tmp_path):
    api.commit(1)
    api.commit(2, more={"big.bin": os.urandom(3 << 20)})
    told = []
    out = tmp_path / "deep" / "down"
    info = client.pull(STREAM, out, progress=lambda done, total: told.append((done, total)))
    assert info.version == 2
    assert files_below(out) == files_below(api.service.known[2].path)
    assert {path.name for path in out.iterdir()} == {Path(name).parts[0] for name in files_below(out)}
    assert told[-1] == (info.size_bytes, info.size_bytes)
    assert list(out.parent.iterdir()) == [out]
    assert api.service.leases["lease-1"].gone


def test_pull_waits_for_the_version(api, client, tmp_path):
    with ThreadPoolExecutor() as pool:
        pulling = pool.submit(client.pull, STREAM, tmp_path / "out", 1, 60)
        api.wait_for(lambda service: service.waiters == 1)
        api.commit(1)
        assert pulling.result(30).version == 1
    with pytest.raises(VersionNotReadyError, match="version 9"):
        client.pull(STREAM, tmp_path / "other", 9, 0.01)


@pytest.mark.parametrize("what", ["file", "full", "dangling"])
def test_pull_does_not_touch_what_is_there(api, client, tmp_path, what):
    api.commit(1)
    out = tmp_path / "out"
    if what == "file":
        out.write_text("mine")
    elif what == "full":
        out.mkdir()
        (out / "mine").touch()
    else:
        (tmp_path / "plain").write_text("mine")
        out.symlink_to(tmp_path / "plain")
    with pytest.raises(BadInputError, match="choose another place"):
        client.pull(STREAM, out)
    assert api.service.leases == {}


def test_pull_fills_an_empty_directory(api, client, tmp_path):
    api.commit(1)
    (tmp_path / "out").mkdir()
    client.pull(STREAM, tmp_path / "out")
    assert files_below(tmp_path / "out") == files_below(api.service.known[1].path)


def test_a_pull_that_fails_leaves_nothing(api, client, tmp_path):
    api.commit(1)
    (api.service.known[1].path / "model-2.safetensors").unlink()
    with pytest.raises(LocalError, match="damaged"):
        client.pull(STREAM, tmp_path / "out" / "v1")
    assert list((tmp_path / "out").iterdir()) == []


def test_publish_tells_progress_and_gives_the_result(api, client, tmp_path, monkeypatch):
    result = PublishResult(
        stream=STREAM,
        epoch=1,
        version=8,
        label="step 8",
        manifest="ab" * 32,
        changed_fraction=0.01,
        changed_elements=12,
        full_bytes=1000,
        patch_bytes=10,
        ratio=100.0,
        chunks=1,
        seconds={"read": 0.1},
    )
    requests = []

    async def publishing(request, progress):
        requests.append(request)
        progress(PublishProgress(stage="read", done_bytes=1, total_bytes=2))
        return result

    api.service.publishing = publishing
    told = []
    monkeypatch.chdir(tmp_path)
    assert client.publish("new", stream=STREAM, version=8, label="step 8", base=True, progress=told.append) == result
    assert [progress.stage for progress in told] == ["read"]
    assert requests[0].directory == str(tmp_path / "new")
    assert requests[0].base


@pytest.mark.parametrize("late", [True, False])
def test_a_publish_that_fails_raises_whenever_it_fails(api, client, late):
    async def publishing(request, progress):
        if late:
            progress(PublishProgress(stage="read", done_bytes=1, total_bytes=2))
        raise BadSourceError(f"{request.directory}: no such directory")

    api.service.publishing = publishing
    with pytest.raises(BadSourceError, match="/nope: no such directory") as raised:
        client.publish("/nope", stream=STREAM)
    assert raised.value.exit is Exit.BAD_INPUT


def test_nobody_on_the_socket_is_one_clear_error(tmp_path):
    client = Client(tmp_path / "none.sock")
    for ask in (client.streams, lambda: client.publish("/m", stream=STREAM), lambda: client.wait(STREAM)):
        with pytest.raises(NotRunningError, match=r"none\.sock: no daemon answers here .*patchswarm daemon") as raised:
            ask()
    assert raised.value.exit is Exit.NOT_RUNNING


@contextlib.contextmanager
def someone_answering(path, text):
    """A server that answers one request with `text` and closes."""

    def answer():
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):  # what the caller still had to say
                pass

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join(30)


@pytest.mark.parametrize("text", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", b"gibberish\r\n\r\n"])
def test_a_daemon_that_goes_away_in_mid_answer_is_one_clear_error(tmp_path, text):
    with someone_answering(tmp_path / "s", text), pytest.raises(ConnectionLostError, match="went away"):
        Client(tmp_path / "s").streams()


def test_something_else_on_the_socket_is_one_clear_error(tmp_path):
    text = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
    with someone_answering(tmp_path / "s", text), pytest.raises(LocalError, match="something unexpected"):
        Client(tmp_path / "s").streams()


def test_a_daemon_that_does_not_answer_is_one_clear_error(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(ConnectionLostError, match="did not answer"):
            Client(tmp_path / "s", timeout_s=0.05).streams()


def test_a_publish_that_ends_without_an_end_is_an_error(tmp_path):
    text = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n"
    with someone_answering(tmp_path / "s", text), pytest.raises(ConnectionLostError, match="during the publish"):
        Client(tmp_path / "s").publish("/m", stream=STREAM)


def test_over_tcp_the_token_opens_the_door(api):
    host, port = api.api.tcp
    assert Client(f"http://{host}:{port}", token="a-token-for-tests-only").ready().ready
    with pytest.raises(UnauthorizedError):
        Client(f"http://{host}:{port}", token="wrong").ready()


@pytest.mark.parametrize("address", ["https://localhost:1", "http://localhost", "ftp://x:1", "http://:80"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(BadInputError, match="address"):
        Client(address)


def test_the_socket_is_found_by_the_environment(monkeypatch):
    monkeypatch.setenv("PATCHSWARM_HOME", "/srv/h")
    monkeypatch.delenv("PATCHSWARM_SOCKET", raising=False)
    assert default_socket() == Path("/srv/h/patchswarm.sock")
    monkeypatch.setenv("PATCHSWARM_SOCKET", "/run/p.sock")
    assert default_socket() == Path("/run/p.sock")


class TestTooLittleTime:
    @pytest.fixture
    def local_config(self, local_config):
        return dataclasses.replace(local_config, tcp=None)

    def test_a_ttl_that_the_daemon_does_not_take_is_its_word(self, api):
        api.commit(1)
        with pytest.raises(InvalidRequestError, match="ttl_s"), Client(api.api.socket).lease(STREAM, ttl_s=-1):
            pass


def test_importing_the_client_brings_in_nothing_heavy():
    heavy = ("numpy", "torch", "aiohttp", "asyncio", "numba", "cryptography", "structlog")
    code = f"import sys, patchswarm.daemon.local.client; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
