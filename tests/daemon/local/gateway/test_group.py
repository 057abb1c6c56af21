"""An engine over two hosts: both hold the version at one path before it is paused, or nothing moves."""

import asyncio
import contextlib

import pytest

from daemon.local.gateway import host

TOKEN = "the-secret-of-the-group"


@pytest.fixture
async def second(tmp_path):
    """The other host's daemon, with slots at the same path, as every host has."""
    folder = tmp_path / "second"
    folder.mkdir()
    async with host.daemon(folder, tmp_path / "slots") as (service, socket):
        yield service, socket


@pytest.fixture
async def member(second):
    async with host.gateway(second[1], engine="none", stream="", token=TOKEN) as running:
        yield running


@pytest.fixture
async def leader(open_gateway, member, sglang):
    return await open_gateway(sglang, group=(member.url.removeprefix("http://"),), token=TOKEN)


async def both(node, second, version, **options):
    await node.commit(version, **options)
    await second[0].commit(version, **options)


async def test_the_engine_is_paused_only_when_every_host_holds_the_version(leader, member, node, second, sglang):
    await both(node, second, 1)
    await leader.at(1)
    calls = len(sglang.calls)
    await node.commit(2)
    await node.until(lambda: node.log[-1] == "leased qwen 2")
    assert len(sglang.calls) == calls
    assert leader.status.applied.version == 1
    assert (await leader.generate()).json()["meta_info"]["weight_version_end"] == 1
    await second[0].commit(2)
    await leader.at(2)


async def test_both_hosts_hold_it_for_as_long_as_the_load_takes(leader, member, node, second, sglang):
    sglang.faults["/update_weights_from_disk"] = ["hang"]
    await both(node, second, 1)
    await leader.until(lambda s: s.state == "loading")
    assert node.open_leases == second[0].open_leases == 1
    assert member.status.holds == 1


async def test_afterwards_nobody_holds_it(leader, member, node, second):
    await both(node, second, 1)
    await leader.at(1)
    assert node.open_leases == second[0].open_leases == member.status.holds == 0


async def test_a_host_that_cannot_be_asked_keeps_the_group_where_it_is(open_gateway, node, second, sglang):
    async with host.gateway(second[1], engine="none", stream="", token=TOKEN) as member:
        leader = await open_gateway(sglang, group=(member.url.removeprefix("http://"),), token=TOKEN)
        await both(node, second, 1)
        await leader.at(1)
    await both(node, second, 2)
    status = await leader.until(lambda s: s.last_error is not None)
    assert "a host of the group, cannot be asked" in status.last_error
    assert status.applied.version == 1
    assert sglang.count("/pause_generation") == 1
    assert node.open_leases == 0
    assert (await leader.generate()).json()["output_ids"][0] == 1


async def test_a_host_with_another_version_under_that_number_is_refused(leader, node, second, sglang):
    await node.commit(1)
    await second[0].commit(1, epoch=1)
    info = second[0].books["qwen"].held[1, 1]
    import msgspec

    second[0].books["qwen"].held[1, 1] = msgspec.structs.replace(info, manifest="another")
    status = await leader.until(lambda s: s.last_error is not None)
    assert "another" in status.last_error
    assert not sglang.count("/pause_generation")
    assert second[0].open_leases == 0


async def test_hosts_with_the_version_at_different_paths_are_told_so(open_gateway, node, tmp_path, sglang):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with (
        host.daemon(elsewhere) as (other, socket),
        host.gateway(socket, engine="none", stream="", token=TOKEN) as member,
    ):
        leader = await open_gateway(sglang, group=(member.url.removeprefix("http://"),), token=TOKEN)
        await both(node, (other,), 1)
        status = await leader.until(lambda s: s.last_error is not None)
        assert "same storage.slot_dir" in status.last_error
        assert other.open_leases == 0


async def test_a_hold_lost_during_the_load_means_that_the_weights_are_unknown(leader, member, node, second, sglang):
    loading, go_on = asyncio.Event(), asyncio.Event()
    load = sglang.update_weights_from_disk

    async def slow(request):
        loading.set()
        await go_on.wait()
        return await load(request)

    await sglang.stop()
    sglang.update_weights_from_disk = slow
    await sglang.start()
    await both(node, second, 1)
    await loading.wait()
    second[0].end_leases()
    go_on.set()
    status = await leader.until(lambda s: s.last_error is not None)
    assert "hold was lost" in status.last_error
    assert status.applied is None


async def test_a_member_moves_on_and_the_leader_follows(leader, node, second, sglang):
    await both(node, second, 1)
    await leader.at(1)
    await second[0].commit(3, keep=False)
    await node.commit(2)
    await leader.until(lambda s: s.last_error is not None)
    await node.commit(3)
    await leader.at(3)


async def test_who_does_not_know_the_secret_holds_nothing(member, second):
    await second[0].commit(1)
    ask = {"stream": "qwen", "epoch": 1, "version": 1, "manifest": "x"}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer \xfc"}):
        answer = await member.ask("/patchswarm/holds", ask, headers=headers)
        assert answer.status == 401
    assert not second[0].leases


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"stream":"qwen"}', b'{"stream":"qwen","epoch":1,"version":-1}'])
async def test_a_malformed_hold_is_refused(member, body):
    answer = await member.ask("/patchswarm/holds", data=body, headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status == 400


async def test_a_hold_that_is_not_renewed_ends_by_itself(member, second):
    await second[0].commit(1)
    manifest = second[0].books["qwen"].held[1, 1].manifest
    ask = {"stream": "qwen", "epoch": 1, "version": 1, "manifest": manifest, "ttl_s": 0.05}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    held = (await member.ask("/patchswarm/holds", ask, headers=headers)).json()
    assert held["path"].endswith("v1")
    await second[0].until(lambda: second[0].log[-1] == "released qwen 1")
    for method in ("PUT", "DELETE"):
        path = f"/patchswarm/holds/{held['hold']}"
        assert (await member.ask(path, {}, method=method, headers=headers)).status == 404


async def test_a_renewed_hold_lasts(member, second):
    await second[0].commit(1)
    manifest = second[0].books["qwen"].held[1, 1].manifest
    ask = {"stream": "qwen", "epoch": 1, "version": 1, "manifest": manifest, "ttl_s": 0.2}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    path = "/patchswarm/holds/" + (await member.ask("/patchswarm/holds", ask, headers=headers)).json()["hold"]
    assert (await member.ask(path, {"ttl_s": 60}, method="PUT", headers=headers)).status == 200
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await second[0].until(lambda: second[0].log[-1] == "released qwen 1")
    assert member.status.holds == 1
    assert (await member.ask(path, method="DELETE", headers=headers)).status == 200
    assert second[0].log[-1] == "released qwen 1"
