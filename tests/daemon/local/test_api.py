"""The API as a whole: health, unknown paths, the token, the sockets it listens on."""

import http.client
import socket
import stat

import pytest
from support.local_service import MemoryService

from patchswarm.daemon.errors import ConfigError, InUseError
from patchswarm.daemon.local.api import LocalConfig, endpoints, serve_local
from patchswarm.daemon.local.listening import MAX_PATH_BYTES, listen_tcp, listen_unix
from patchswarm.daemon.local.problems import as_local
from patchswarm.storage import errors as storage_errors

TOKEN = "a-token-for-tests-only"


def test_the_node_is_alive_and_ready(api):
    assert api.ask("GET", "/healthz").json() == {"ok": True}
    assert api.ask("GET", "/readyz").json() == {"ready": True, "reasons": []}


def test_a_node_that_is_not_ready_says_why(api):
    api.service.reasons = ["stream 'qwen' is 3 versions behind"]
    answer = api.ask("GET", "/readyz")
    assert (answer.status, answer.problem) == (503, "not-ready")
    assert answer.json()["context"]["reasons"] == ["stream 'qwen' is 3 versions behind"]


def test_peers_are_listed(api):
    (peer,) = api.ask("GET", "/v1/peers").json()["peers"]
    assert peer["site"] == "eu/b"
    assert peer["heads"] == [{"stream": "qwen", "epoch": 1, "version": 3}]


@pytest.mark.parametrize("path", ["/v1", "/v2/streams", "/v1/streams/", "/v1/streams/a/b", "//etc/passwd"])
def test_a_path_that_does_not_exist_is_a_problem(api, path):
    answer = api.ask("GET", path)
    assert (answer.status, answer.problem) == (404, "unknown-route")


def test_a_method_that_a_path_does_not_take_is_a_problem_that_names_those_it_does(api):
    answer = api.ask("DELETE", "/v1/streams")
    assert (answer.status, answer.problem) == (405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD"


def test_an_unknown_parameter_is_refused_everywhere(api):
    api.commit(1)
    for target in ("/v1/streams", "/healthz", "/v1/peers", "/v1/streams/qwen/versions/1/files/config.json"):
        answer = api.ask("GET", target + "?verbose=1")
        assert (answer.status, answer.problem) == (400, "invalid-request")
        assert "`verbose`" in answer.json()["detail"]


def test_a_bug_in_the_service_is_a_problem_and_the_api_lives_on(api):
    def broken():
        raise ZeroDivisionError("inside")

    api.service.peers = broken
    answer = api.ask("GET", "/v1/peers")
    assert (answer.status, answer.problem) == (500, "internal-error")
    assert b"inside" not in answer.body
    (entry,) = api.logged
    assert (entry["event"], entry["path"], entry["exc_info"]) == ("local request failed", "/v1/peers", True)
    api.logged.clear()
    assert api.ask("GET", "/healthz").status == 200


def test_every_storage_error_is_a_problem_that_keeps_its_words():
    kinds = [storage_errors.StorageError, *storage_errors.StorageError.__subclasses__()]
    for kind in kinds:
        problem = as_local(kind("slot /x/v3: torn"))
        assert problem is not None
        assert problem.detail == "slot /x/v3: torn"
        assert 400 <= problem.status < 600
    assert as_local(storage_errors.LeaseGoneError("x")).status == 410
    assert as_local(storage_errors.NotACheckpointError("x")).status == 422
    assert as_local(storage_errors.NoSpaceError("x")).status == 507


def ask_tcp(api, headers):
    connection = http.client.HTTPConnection(*api.api.tcp, timeout=30)
    connection.request("GET", "/healthz", headers=headers)
    response = connection.getresponse()
    answer = response.status, response.headers, response.read()
    connection.close()
    return answer


def test_tcp_answers_to_the_token(api):
    status, _, body = ask_tcp(api, {"Authorization": f"Bearer {TOKEN}"})
    assert (status, body) == (200, b'{"ok":true}\n')


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \xfc\xfe"},
    ],
)
def test_tcp_answers_nothing_without_the_token(api, headers):
    status, answered, body = ask_tcp(api, headers)
    assert status == 401
    assert answered["www-authenticate"] == "Bearer"
    assert b"urn:patchswarm:problem:unauthorized" in body
    assert TOKEN.encode() not in body


def test_the_unix_socket_asks_for_no_token_and_has_the_mode_it_should(api):
    assert stat.S_IMODE(api.api.socket.stat().st_mode) == 0o660
    assert api.ask("GET", "/healthz").status == 200


def test_a_short_token_or_a_public_address_is_refused(tmp_path):
    async def serve(**options):
        async with serve_local(MemoryService(tmp_path), LocalConfig(socket=tmp_path / "s", **options)):
            pass

    for options in ({"tcp": ("127.0.0.1", 0)}, {"tcp": ("127.0.0.1", 0), "token": "short"}):
        coroutine = serve(**options)
        with pytest.raises(ConfigError, match="token"):
            coroutine.send(None)
    for host in ("0.0.0.0", "192.0.2.1", "example.org", "::"):
        with pytest.raises(ConfigError, match="loopback"):
            listen_tcp(host, 0)


async def test_the_socket_file_goes_with_the_api(tmp_path):
    path = tmp_path / "api.sock"
    async with serve_local(MemoryService(tmp_path), LocalConfig(socket=path)):
        assert path.is_socket()
    assert not path.exists()


def test_a_socket_that_a_daemon_answers_on_is_left_alone(api):
    with pytest.raises(InUseError, match="another daemon answers"):
        listen_unix(api.api.socket, 0o660)
    assert api.ask("GET", "/healthz").status == 200


def test_a_dead_socket_is_replaced(tmp_path):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listen_unix(path, 0o600) as listener, socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
        assert listener.accept()[0].close() is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_in_the_sockets_place_is_not_removed(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(InUseError, match="not a socket"):
        listen_unix(path, 0o660)
    assert path.read_text() == "mine"


def test_a_socket_where_none_can_be_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot listen here: No such file"):
        listen_unix(tmp_path / "missing" / "s", 0o660)
    with pytest.raises(ConfigError, match=str(MAX_PATH_BYTES)):
        listen_unix(tmp_path / ("x" * 108), 0o660)


def test_a_tcp_port_in_use_is_one_clear_error():
    with listen_tcp("127.0.0.1", 0) as first, pytest.raises(InUseError, match="choose another port"):
        listen_tcp("127.0.0.1", first.getsockname()[1])


def test_every_endpoint_says_what_it_takes_and_answers():
    table = endpoints(None, None)
    places = [(endpoint.method, endpoint.path) for endpoint in table]
    assert len(places) == len(set(places)) == 27
    for endpoint in table:
        assert endpoint.summary
        assert (
            endpoint.answer is not None
            or endpoint.status == 204
            or endpoint.media != "application/json"
            or endpoint.path == "/openapi.json"
        )
