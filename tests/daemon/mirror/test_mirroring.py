"""A stream in a mirror: filled behind the publishes, read by who reaches nobody, and trusted by no one."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys

import msgspec
import pytest
from daemon.nodes import Head, make_head, make_member
from daemon.single import Single, until
from support.mirrors import S3_BUCKET, nginx, s3_server, web_server
from support.streams import model, read_tree, write_tree

from patchswarm.daemon import beacons
from patchswarm.daemon import node as node_module
from patchswarm.daemon.config import Config, Mirror
from patchswarm.daemon.errors import BadInputError
from patchswarm.daemon.fleet import enrol
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.fleet.traffic import Kept
from patchswarm.daemon.home import Home
from patchswarm.daemon.mirror import reader, writer
from patchswarm.protocol import mirrored
from patchswarm.protocol.errors import SealError
from patchswarm.protocol.manifest import Revocation
from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.mirror import open_list
from patchswarm.protocol.signed import sign

STREAM = "secret-run"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Turns come often: what waits in these tests waits for a mirror, not for a clock."""
    for module in (reader, writer):
        monkeypatch.setattr(module, "TURN_S", 0.02)
    monkeypatch.setattr(mirrored, "RETRY_S", 0.2)
    monkeypatch.setattr(mirrored, "PATIENCE_S", 0.2)
    monkeypatch.setattr(node_module, "RETENTION_S", 0.05)


class Place:
    """A folder that is the mirror, as the publisher writes it and as others read it."""

    def __init__(self, folder, write="", read=""):
        self.folder = folder
        self.write = write or f"file://{folder}"
        self.read = read or self.write

    @property
    def files(self):
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    @property
    def chunks(self):
        return {path: data for path, data in self.files.items() if path.parent.parent.name == "chunks"}

    @property
    def list(self):
        (path,) = self.folder.glob("*/objects")
        return path


@pytest.fixture
def place(root):
    (root / "mirror").mkdir()
    return Place(root / "mirror")


def mirroring(config: Config, url, **storage) -> Config:
    return msgspec.structs.replace(
        config,
        mirror=Mirror(url, 0.1),
        storage=msgspec.structs.replace(config.storage, **storage),
    )


def a_head(root, place, **storage):
    made = make_head(root / "head")
    return made.home, mirroring(made.config, place.write, **storage)


def a_member(root, head_home, head_config, place, name="member"):
    """The home and configuration of a member that dials the head, and accepts nobody."""
    home = make_member(Head(head_home, head_config, Identity.load(head_home)), root / name)
    replace = msgspec.structs.replace
    config = replace(
        head_config,
        node=replace(head_config.node, site="b", listen="", advertise=(), seeds=(head_config.node.listen,)),
        local=replace(head_config.local, socket=home.root / "s"),
        storage=replace(head_config.storage, slot_dir=home.root / "slots"),
        mirror=Mirror(place.read, 0.1),
    )
    return home, config


async def published(head, root, steps):
    directory = write_tree(root / "trainer" / str(steps), model(1, steps))
    made = await head.publish(STREAM, directory)
    return made.slot.version


async def mirrored_up_to(head, version):
    """Wait until the mirror's list holds a version."""
    (writing,) = [head.node._mirroring._writer]

    def holds():
        place = writing._places.get(STREAM)
        routes = head.fleet.swarm.gossip.routes(STREAM)
        made = {each.attempt for each in routes if each.version == version}
        return made and place is not None and place.said is not None and made <= place.said

    await until(holds)


async def knows_the_mirror(member):
    """Wait until a member has it in its catalog where the stream lies, and under which key."""
    await until(lambda: {ObjectKind.STREAM, ObjectKind.MIRROR} <= {kind for kind, _, _ in member.catalog.objects()})


def dials_nobody(member, monkeypatch):
    """The member, cut off from a fleet that is alive."""
    monkeypatch.setattr(member.fleet.doors, "dial", lambda _: asyncio.sleep(0))
    return member


def whole(root, steps, slot):
    return read_tree(slot.path) == read_tree(root / "trainer" / str(steps))


async def with_one_version(root, place, **storage):
    """A head that published one version, and a member that got it from the head; both have ended."""
    head_home, head_config = a_head(root, place, **storage)
    async with Single(head_home, head_config).running() as head:
        await published(head, root, 0)
        await mirrored_up_to(head, 1)
        member_home, member_config = a_member(root, head_home, head_config, place)
        async with Single(member_home, member_config).running() as member:
            await member.committed(STREAM, 1)
            await knows_the_mirror(member)
    return (head_home, head_config), (member_home, member_config)


async def publish_more(head, root, *steps):
    """Start the head again, publish, mirror, end."""
    async with Single(*head).running() as running:
        for step in steps:
            await published(running, root, step)
        await mirrored_up_to(running, running.fleet.swarm.gossip.head(STREAM).version)


# -- reading -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["file", "web", "nginx", "s3"])
def anywhere(request, root, place, monkeypatch):
    """The mirror in each kind of store."""
    with contextlib.ExitStack() as stack:
        match request.param:
            case "web":
                place.read = stack.enter_context(web_server(place.folder))
            case "nginx":
                place.read = stack.enter_context(nginx(place.folder, root / "nginx"))
            case "s3":
                for name, value in stack.enter_context(s3_server(root / "s3")).items():
                    monkeypatch.setenv(name, value)
                place.write = place.read = f"s3://{S3_BUCKET}/fleet"
        yield place


async def test_a_member_that_reaches_nobody_catches_up_from_any_kind_of_mirror(root, anywhere):
    head, member = await with_one_version(root, anywhere)
    await publish_more(head, root, 1, 2)
    async with Single(*member).running() as cut_off:
        slot = await cut_off.committed(STREAM, 3)
        assert whole(root, 2, slot)
        assert not list(cut_off.fleet.swarm.connected())


async def test_a_member_that_kept_nothing_but_its_catalog_gets_the_weights_from_nothing(root, place):
    head, member = await with_one_version(root, place)
    await publish_more(head, root, 1)
    for lost in ("chunks", "slots"):
        shutil.rmtree(member[0].root / lost)
    async with Single(*member).running() as cut_off:
        assert whole(root, 1, await cut_off.committed(STREAM, 2))


async def test_a_node_that_joined_and_never_reached_anybody_gets_the_weights(root, place):
    head_home, head_config = a_head(root, place)
    async with Single(head_home, head_config).running() as head:
        await published(head, root, 0)
        await mirrored_up_to(head, 1)
        home = Home.at(root / "newcomer")
        token = enrol.invite(head_home, head.identity, head_config, ttl_s=60)
        joined = await enrol.join(token, home, site="b", listen="", storage={"slot_dir": str(root / "slots")})
        await published(head, root, 1)
        await mirrored_up_to(head, 2)
    async with Single(home, mirroring(joined.config, place.read)).running() as newcomer:
        assert whole(root, 1, await newcomer.committed(STREAM, 2))
        assert not list(newcomer.fleet.swarm.connected())


async def test_a_member_that_runs_hears_of_new_versions_when_it_is_cut_off(root, place, monkeypatch):
    head, member = await with_one_version(root, place)
    async with dials_nobody(Single(*member), monkeypatch).running() as cut_off, Single(*head).running() as running:
        for step in (1, 2):
            slot = await cut_off.committed(STREAM, await published(running, root, step))
            assert whole(root, step, slot)
            assert not list(cut_off.fleet.swarm.connected())


async def test_peers_are_asked_and_not_the_mirror_when_there_are_some(root, place, monkeypatch):
    async def never(*_):
        raise AssertionError("a chunk was taken from the mirror")

    head, member = await with_one_version(root, place)
    monkeypatch.setattr(reader.Reader, "_take", never)
    async with Single(*head).running() as running, Single(*member).running() as linked:
        for step in (1, 2):
            await linked.committed(STREAM, await published(running, root, step))


async def test_a_head_that_lost_its_chunks_is_helped_out_by_the_mirror(root, place):
    """A peer is there, and has nothing to give."""
    head, member = await with_one_version(root, place)
    await publish_more(head, root, 1)
    shutil.rmtree(head[0].root / "chunks")
    async with Single(*head).running(), Single(*member).running() as linked:
        assert whole(root, 1, await linked.committed(STREAM, 2))


# -- trusting nobody -----------------------------------------------------------------------------------------


async def test_wrong_bytes_are_refused_and_reported_and_right_ones_taken_later(root, place):
    head, member = await with_one_version(root, place)
    before = set(place.chunks)
    await publish_more(head, root, 1)
    truth = {path: data for path, data in place.chunks.items() if path not in before}
    for path, data in truth.items():
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    async with Single(*member).running() as cut_off:
        await until(lambda: "refused" in str(cut_off.node.service.status(STREAM).last_error))
        assert cut_off.node.service.status(STREAM).current.version == 1
        assert not any(cut_off.store.has(bytes.fromhex(path.name)) for path in truth)
        for path, data in truth.items():
            path.write_bytes(data)
        assert whole(root, 1, await cut_off.committed(STREAM, 2))


async def test_chunks_that_are_too_long_or_missing_are_waited_for(root, place):
    head, member = await with_one_version(root, place)
    before = set(place.chunks)
    await publish_more(head, root, 1)
    truth = {path: data for path, data in place.chunks.items() if path not in before}
    for path in truth:
        path.write_bytes(bytes(10_000_000))
    async with Single(*member).running() as cut_off:
        await until(lambda: "lacks a chunk" in str(cut_off.node.service.status(STREAM).last_error))
        for path in truth:
            path.unlink()
        assert cut_off.node.service.status(STREAM).current.version == 1
        for path, data in truth.items():
            path.write_bytes(data)
        assert whole(root, 1, await cut_off.committed(STREAM, 2))


async def test_an_old_list_takes_nobody_back(root, place):
    head, member = await with_one_version(root, place)
    old = place.list.read_bytes()
    await publish_more(head, root, 1)
    async with Single(*member).running() as cut_off:
        await cut_off.committed(STREAM, 2)
        place.list.write_bytes(old)
        looked = cut_off.node._mirroring._reader._looked_s[STREAM]
        await until(lambda: cut_off.node._mirroring._reader._looked_s[STREAM] > looked)
        await until(lambda: len(cut_off.fleet.swarm.fetch.routing.mirrored[STREAM]) == 1)
        assert cut_off.node.service.status(STREAM).current.version == 2
        assert cut_off.fleet.swarm.gossip.head(STREAM).version == 2


async def test_a_beacon_in_the_list_tells_a_quiet_publisher_from_an_old_list(root, place, monkeypatch):
    monkeypatch.setattr(writer, "BEACON_S", 0.0)
    monkeypatch.setattr(beacons, "EVERY_S", 0.05)
    head, member = await with_one_version(root, place)
    async with Single(*head).running(), dials_nobody(Single(*member), monkeypatch).running() as cut_off:
        known = cut_off.fleet.swarm.gossip.beacons
        await until(lambda: STREAM in known)
        first, _ = known[STREAM]
        await until(lambda: known[STREAM][0].at > first.at)
        assert known[STREAM][0].version == 1
        assert not list(cut_off.fleet.swarm.connected())


async def test_a_list_that_does_not_open_is_reported(root, place):
    head, member = await with_one_version(root, place)
    await publish_more(head, root, 1)
    place.list.write_bytes(place.list.read_bytes()[:-1])
    async with Single(*member).running() as cut_off:
        await until(lambda: "damaged" in str(cut_off.node.service.status(STREAM).last_error))
        assert any("cannot be read from the mirror" in each for each in cut_off.node.service.node().problems)
    await publish_more(head, root)  # its publisher finds it so, and writes it anew
    async with Single(*member).running() as cut_off:
        await cut_off.committed(STREAM, 2)


async def test_what_lies_in_a_mirror_says_nothing(root, place):
    head, _ = await with_one_version(root, place)
    await publish_more(head, root, 1)
    async with Single(*head).running() as running:
        gossip = running.fleet.swarm.gossip
        secrets = [STREAM.encode(), running.identity.node_id, gossip.streams[STREAM].publisher]
        secrets += [part.key for each in gossip.routes(STREAM) for part in each.parts]
        secrets += [ref.key for each in gossip.routes(STREAM) for part in each.parts for ref in part.blobs]
        secrets += [gossip.mirrors[STREAM].key]
    for path, data in place.files.items():
        assert not any(secret in data or secret.hex() in str(path) for secret in secrets), path
        assert STREAM not in str(path)


async def test_a_member_that_is_shut_out_cannot_open_what_is_written_afterwards(root, place):
    head, _ = await with_one_version(root, place)
    async with Single(*head).running() as running:
        gossip = running.fleet.swarm.gossip
        before = gossip.mirrors[STREAM]
        open_list(place.list.read_bytes(), before)
        revocation = sign(Revocation(bytes(32), 1_800_000_000, b""), running.identity.ca_key)
        running.fleet.publish(ObjectKind.REVOCATION, revocation)
        await until(lambda: gossip.mirrors[STREAM] != before)
        after = gossip.mirrors[STREAM]
        assert after.place == before.place
        assert after.key != before.key

        def is_sealed_anew():
            with contextlib.suppress(SealError):
                return open_list(place.list.read_bytes(), after)

        await until(is_sealed_anew)
        with pytest.raises(SealError, match="newer key"):
            open_list(place.list.read_bytes(), before)


# -- writing -------------------------------------------------------------------------------------------------


async def test_what_retention_removed_leaves_the_mirror_and_a_way_in_stays(root, place, monkeypatch):
    monkeypatch.setattr(writer, "GRACE_S", 0.0)
    head_home, head_config = a_head(root, place, retain_versions=2)
    async with Single(head_home, head_config).running() as head:
        for steps in range(6):
            version = await published(head, root, steps)
        await mirrored_up_to(head, version)
        complete = head.fleet.view.complete
        await until(lambda: {bytes.fromhex(path.name) for path in place.chunks} == chunks_of(head, complete(STREAM)))
        member = a_member(root, head_home, head_config, place)
        async with Single(*member).running() as linked:
            await knows_the_mirror(linked)
    for lost in ("chunks", "slots"):
        shutil.rmtree(member[0].root / lost)
    async with Single(*member).running() as cut_off:
        assert whole(root, 5, await cut_off.committed(STREAM, 6))


def chunks_of(head, transitions):
    series = head.fleet.swarm.fetch.stock.series
    mine = [series[each.attempt] for each in transitions]
    return {name for each in mine for name, _ in (*each.meta, *each.chunks.values())}


async def test_a_chunk_stays_for_a_while_after_the_list_has_ceased_to_name_it(root, place):
    head_home, head_config = a_head(root, place)
    async with Single(head_home, head_config).running() as head:
        await published(head, root, 0)
        await mirrored_up_to(head, 1)
        orphan = place.folder / place.list.parent.name / "chunks" / "ab" / ("ab" * 32)
        foreign = place.folder / place.list.parent.name / "chunks" / "README"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"left by a publish that nobody remembers")
    foreign.write_bytes(b"not ours")
    async with Single(head_home, head_config).running() as head:
        await mirrored_up_to(head, 1)
        await until(lambda: head.node._mirroring._writer._places[STREAM].unnamed)
        assert orphan.exists()
        unnamed = head.node._mirroring._writer._places[STREAM].unnamed
        unnamed[bytes.fromhex(orphan.name)] -= writer.GRACE_S
        await until(lambda: not orphan.exists())
        assert foreign.exists()


async def test_a_restart_copies_only_what_is_not_there_yet(root, place, monkeypatch):
    head, _ = await with_one_version(root, place)
    lost, *_ = place.chunks
    lost.unlink()
    torn = list(place.chunks)[1]
    truth = torn.read_bytes()
    torn.write_bytes(b"")
    put = []
    true_put = writer.Bucket.put

    async def counted(bucket, path, data):
        put.append(path.rpartition("/")[2])
        await true_put(bucket, path, data)

    monkeypatch.setattr(writer.Bucket, "put", counted)
    await publish_more(head, root)
    assert sorted(put[:2]) == sorted([lost.name, torn.name])
    assert set(put[2:]) == {"objects"}
    assert torn.read_bytes() == truth


async def test_a_mirror_that_never_answers_holds_up_no_publish(root, monkeypatch):
    async def forever(*_):
        await asyncio.Event().wait()

    for name in ("get", "put", "sizes"):
        monkeypatch.setattr(writer.Bucket, name, forever)
    head_home, head_config = a_head(root, Place(root, "s3://nowhere/at-all"))
    async with Single(head_home, head_config).running() as head:
        for steps in range(3):
            assert await published(head, root, steps) == steps + 1


async def test_a_mirror_that_is_missing_is_filled_when_it_appears(root, monkeypatch):
    for module in (reader, writer):
        monkeypatch.setattr(module, "MAX_WAIT_S", 0.1)
    place = Place(root / "mount")
    head_home, head_config = a_head(root, place)
    async with Single(head_home, head_config).running() as head:
        await published(head, root, 0)
        await until(lambda: any("is not mirrored" in each for each in head.node.service.node().problems))
        assert all("no such folder" in each for each in head.node.service.node().problems)
        place.folder.mkdir()
        await mirrored_up_to(head, 1)
        await until(lambda: not head.node.service.node().problems)
    assert place.chunks


async def test_a_head_restored_from_a_backup_learns_from_the_mirror_what_it_had_published(root, place):
    """Else it would sign another version under a number that is taken."""
    head, _ = await with_one_version(root, place)
    shutil.copytree(head[0].root, root / "backup")
    await publish_more(head, root, 1)
    shutil.rmtree(head[0].root)
    shutil.copytree(root / "backup", head[0].root)
    async with Single(*head).running() as restored:
        assert whole(root, 1, await restored.committed(STREAM, 2))
        assert await published(restored, root, 2) == 3


async def test_a_head_that_knows_of_no_way_in_touches_nothing(root, place, monkeypatch):
    """A new head in the place of a lost one must not empty the last copy that there is."""
    head, _ = await with_one_version(root, place)
    before = place.files
    for lost in ("chunks", "slots"):
        shutil.rmtree(head[0].root / lost)
    monkeypatch.setattr(writer, "GRACE_S", 0.0)
    monkeypatch.setattr(reader.Reader, "_take", lambda *_: asyncio.sleep(0, Kept.NO_ROOM))
    async with Single(*head).running() as emptied:
        await until(lambda: STREAM in emptied.fleet.swarm.gossip.mirrors)
        for _ in range(3):
            await emptied.node._mirroring._writer._bring(STREAM)
        assert place.files == before


async def test_where_a_web_server_is_the_mirror_its_publisher_only_reads(root, place):
    with web_server(place.folder) as url:
        head_home, head_config = a_head(root, Place(place.folder, url))
        async with Single(head_home, head_config).running() as head:
            await published(head, root, 0)
            assert head.node._mirroring._writer is None
    assert not place.files


async def test_without_the_package_the_daemon_says_what_to_install(root, place, monkeypatch):
    head_home, head_config = a_head(root, place)
    for name in [name for name in sys.modules if name.startswith("patchswarm.daemon.mirror.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(BadInputError, match=r"pip install 'patchswarm\[mirror\]'"):
        Single(head_home, head_config)
