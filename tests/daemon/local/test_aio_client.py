"""The async client against the real API."""

import asyncio

import pytest
from support.local_service import STREAM

from patchswarm.daemon.errors import BadInputError
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.lives import Moment
from patchswarm.daemon.local.aio_client import AsyncClient
from patchswarm.daemon.local.errors import (
    BadSourceError,
    LeaseGoneError,
    NotRunningError,
    UnauthorizedError,
    UnknownStreamError,
    VersionNotReadyError,
)
from patchswarm.daemon.local.model import PublishProgress, PublishResult


@pytest.fixture
async def client(api):
    async with AsyncClient(api.api.socket) as client:
        yield client


async def until(api, condition):
    """Wait, on this loop, until the service's loop says that `condition` holds."""
    await asyncio.wrap_future(api.submit(api.service.changed_once(lambda: condition(api.service))))


async def test_it_tells_what_the_node_tells(api, client):
    api.commit(1)
    api.commit(2)
    api.service.told.note(STREAM, 1, 2, "ab" * 16, Moment.COMMITTED)
    assert [status.stream for status in await client.streams()] == [STREAM]
    assert (await client.status(STREAM)).current.version == 2
    assert (await client.version(STREAM)).label == "step 2"
    assert [version.version for version in await client.versions(STREAM)] == [2, 1]
    assert [(life.version, list(life.moments)) for life in await client.lives(STREAM)] == [(2, ["committed"])]
    assert (await client.peers())[0].site == "eu/b"
    assert (await client.ready()).ready
    api.service.reasons = ["far behind"]
    assert (await client.ready()).reasons == ["far behind"]


async def test_problems_come_back_as_the_errors_that_the_service_raised(api, client):
    with pytest.raises(UnknownStreamError, match="does not follow stream 'llama'"):
        await client.status("llama")
    with pytest.raises(UnknownStreamError, match=r"'what/ever\?#%2F'"):
        await client.status("what/ever?#%2F")
    with pytest.raises(VersionNotReadyError):
        await client.version(STREAM)


async def test_waiting_ends_with_the_version_or_in_vain(api, client):
    waiting = asyncio.ensure_future(client.wait(STREAM, at_least=2))
    await until(api, lambda service: service.waiters == 1)
    api.commit(2)
    assert (await waiting).version == 2
    assert await client.wait(STREAM, at_least=3, timeout_s=0.01) is None


async def test_a_cancelled_wait_ends_at_the_daemon_too(api, client):
    waiting = asyncio.ensure_future(client.wait(STREAM, at_least=2))
    await until(api, lambda service: service.waiters == 1)
    waiting.cancel()
    await until(api, lambda service: service.waiters == 0)


async def test_following_gives_each_newer_version(api, client):
    following = client.follow(STREAM)
    api.commit(1)
    assert (await anext(following)).version == 1
    api.commit(5)
    assert (await anext(following)).version == 5
    await following.aclose()


async def test_a_lease_is_renewed_and_let_go_of(api, client):
    api.commit(1)
    async with client.lease(STREAM, ttl_s=0.03) as lease:
        assert (lease.path / "config.json").is_file()
        assert (lease.version, lease.proven) == (1, True)
        await until(api, lambda service: len(service.renewals) >= 3)
        lease.check()
    assert api.service.leases[lease.info.lease].gone


async def test_a_lost_lease_is_an_error_for_whoever_relied_on_it(api, client):
    api.commit(1)
    with pytest.raises(LeaseGoneError):
        async with client.lease(STREAM) as lease:
            api.service.leases[lease.info.lease].gone = True


async def test_the_readers_own_error_comes_out_as_it_is(api, client):
    async def read():
        async with client.lease(STREAM) as lease:
            api.service.leases[lease.info.lease].gone = True
            raise ZeroDivisionError

    api.commit(1)
    with pytest.raises(ZeroDivisionError):
        await read()


async def test_publish_tells_progress_and_gives_the_result(api, client):
    result = PublishResult(
        stream=STREAM,
        epoch=1,
        version=8,
        label="",
        manifest="ab" * 32,
        changed_fraction=0.01,
        changed_elements=12,
        full_bytes=1000,
        patch_bytes=10,
        ratio=100.0,
        chunks=1,
        seconds={},
    )

    async def publishing(request, progress):
        progress(PublishProgress(stage="read", done_bytes=1, total_bytes=2))
        if request.label == "bad":
            raise BadSourceError(f"{request.directory}: no such directory")
        return result

    api.service.publishing = publishing
    told = []
    assert await client.publish("/m", stream=STREAM, progress=told.append) == result
    assert [progress.stage for progress in told] == ["read"]
    with pytest.raises(BadSourceError, match="/m: no such directory"):
        await client.publish("/m", stream=STREAM, label="bad")


async def test_nobody_on_the_socket_is_one_clear_error(tmp_path):
    async with AsyncClient(tmp_path / "none.sock") as client:
        with pytest.raises(NotRunningError, match=r"none\.sock: no daemon answers here") as raised:
            await client.streams()
    assert raised.value.exit is Exit.NOT_RUNNING


async def test_over_tcp_the_token_opens_the_door(api):
    host, port = api.api.tcp
    async with AsyncClient(f"http://{host}:{port}", token="a-token-for-tests-only") as client:
        assert (await client.ready()).ready
    async with AsyncClient(f"http://{host}:{port}", token="wrong") as client:
        with pytest.raises(UnauthorizedError):
            await client.ready()
    with pytest.raises(BadInputError):
        AsyncClient("https://localhost:1")


async def test_a_version_is_found_by_its_label(api, client):
    api.commit(1, label="first")
    assert (await client.find(STREAM, "first")).version == 1
    assert await client.find(STREAM, "second") is None
    waiting = asyncio.create_task(client.find(STREAM, "second", 60))
    await until(api, lambda service: service.waiters == 1)
    api.commit(2, label="second")
    assert (await waiting).version == 2
