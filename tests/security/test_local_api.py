"""Users of this host: each has its right, none gets the node's keys, and none can make the daemon swell."""

import asyncio
import contextlib
import http.client
import json
import os
import socket

import msgspec
import pytest
from daemon.nodes import free_port, make_head
from daemon.single import Single
from support.checkpoints import model, write
from support.local_service import MemoryService

from patchswarm.daemon.errors import ConfigError, HomeError, RefusedError
from patchswarm.daemon.home import TOKENS, read_token
from patchswarm.daemon.local import rights
from patchswarm.daemon.local.api import LocalConfig, serve_local
from patchswarm.daemon.local.rights import Right

pytestmark = pytest.mark.timeout(60)
READ, PUBLISH, ADMIN = "reading-and-leasing", "publishing-as-well", "all-that-there-is"
RAISES = [  # what each right is for, and one request that takes it
    ("GET", "/v1/streams", Right.READ),
    ("POST", "/v1/streams/qwen/leases", Right.READ),
    ("GET", "/v1/node", Right.READ),
    ("POST", "/v1/streams/qwen/versions", Right.PUBLISH),
    ("POST", "/v1/streams/qwen/verify", Right.ADMIN),
    ("POST", "/v1/objects", Right.ADMIN),
]


@contextlib.asynccontextmanager
async def api(tmp_path, root, **options):
    config = LocalConfig(root / "s", tcp=("127.0.0.1", 0), token=READ, **options)
    async with serve_local(MemoryService(tmp_path), config) as running:
        yield running


def ask(connection, method, path, token="", body=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body or {}) if method != "GET" else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


async def over_tcp(running, *request, **options):
    return await asyncio.to_thread(ask, http.client.HTTPConnection(*running.tcp, timeout=10), *request, **options)


async def over_unix(running, *request):
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(os.fspath(running.socket))
    return await asyncio.to_thread(ask, connection, *request)


@pytest.mark.parametrize(("method", "path", "right"), RAISES, ids=str)
async def test_each_token_gives_its_right_and_no_other(tmp_path, root, method, path, right):
    async with api(tmp_path, root, publish_token=PUBLISH, admin_token=ADMIN) as running:
        for token, has in ((READ, Right.READ), (PUBLISH, Right.PUBLISHER), (ADMIN, Right.ALL)):
            status, _ = await over_tcp(running, method, path, token=token)
            assert (status == 403) == (right not in has), (token, status)


@pytest.mark.parametrize("token", ["", "guess", READ[:-1], READ + "x", "é"])
@pytest.mark.parametrize(("method", "path", "right"), RAISES, ids=str)
async def test_without_a_token_nothing_is_answered(tmp_path, root, method, path, right, token):
    async with api(tmp_path, root, publish_token=PUBLISH, admin_token=ADMIN) as running:
        status, _ = await over_tcp(running, method, path, token=token.encode().decode("latin-1"))
        assert status == 401


@pytest.mark.parametrize(("method", "path", "right"), RAISES, ids=str)
async def test_another_user_on_the_socket_has_what_is_configured(tmp_path, root, monkeypatch, method, path, right):
    monkeypatch.setattr(rights, "_user", lambda _: 54321)
    for others in (Right.READ, Right.PUBLISHER, Right.NONE):
        async with api(tmp_path, root, others=others) as running:
            status, _ = await over_unix(running, method, path)
            assert (status == 403) == (right not in others), (others, status)


async def test_the_own_user_may_do_everything_on_the_socket(tmp_path, root):
    async with api(tmp_path, root, others=Right.NONE) as running:
        for method, path, _ in RAISES:
            assert (await over_unix(running, method, path))[0] != 403


async def test_two_tokens_that_are_the_same_are_refused(tmp_path, root):
    with pytest.raises(ConfigError, match="two of the local API's tokens are the same"):
        async with api(tmp_path, root, admin_token=READ):
            pass


async def test_body_too_large_is_refused(tmp_path, root):
    async with api(tmp_path, root) as running:
        status, answer = await over_tcp(
            running, "POST", "/v1/streams/qwen/leases", token=READ, body={"x": "y" * 100_000}
        )
        assert status == 413
        assert b"body-too-large" in answer


def test_tokens_are_the_owners_alone_and_differ(root):
    made = make_head(root / "h")
    assert len({read_token(made.home.root / name) for name in TOKENS}) == 3
    assert {(made.home.root / name).stat().st_mode & 0o777 for name in TOKENS} == {0o600}
    (made.home.root / "token").chmod(0o644)
    with pytest.raises(HomeError, match="every user may read this token"):
        read_token(made.home.root / "token")


async def test_the_nodes_secrets_are_not_published_by_whoever_may_publish(head, tmp_path):
    home = head.home.root
    (tmp_path / "link").symlink_to(home / "keys")
    for directory in (home / "keys", tmp_path / "link"):
        with pytest.raises(RefusedError, match="not to be published"):
            await head.publish("qwen", directory)


@pytest.mark.parametrize("secret", ["keys/node.key", "keys/ca.key", "keys/publisher.key", "token", "token-admin"])
@pytest.mark.parametrize("link", ["symbolic", "hard"])
async def test_link_to_a_secret_in_a_checkpoint_is_not_published(head, root, secret, link):
    directory = write(root / "c", model(layers=1, width=64))
    if link == "hard":
        (directory / "notes.txt").hardlink_to(head.home.root / secret)
    else:
        (directory / "notes.txt").symlink_to(head.home.root / secret)
    with pytest.raises(RefusedError, match="holds keys or tokens of this node"):
        await head.publish("qwen", directory)
    assert "qwen" not in head.node.replicas


async def test_a_daemon_takes_its_tokens_from_the_home(root):
    made = make_head(root / "h")
    config = msgspec.structs.replace(
        made.config, local=msgspec.structs.replace(made.config.local, tcp=f"127.0.0.1:{free_port()}")
    )
    async with Single(made.home, config).running():
        pass
    (made.home.root / "token-admin").chmod(0o666)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with Single(made.home, config).running():
            pass
    assert caught.group_contains(HomeError, match="token-admin: every user may read")
