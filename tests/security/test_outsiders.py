"""Who is not a member gets nothing out of a running daemon and keeps nobody else out."""

import asyncio
import contextlib
import datetime as dt
import secrets
import ssl

import msgspec
import pytest
from daemon.nodes import UTC_NOW, Head, make_head, make_member
from daemon.single import until

from patchswarm.daemon.errors import RefusedError
from patchswarm.daemon.fleet import enrol, listener, tls
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.home import Home
from patchswarm.protocol.framing import encode_frame
from patchswarm.protocol.join import decode_token, encode_token
from patchswarm.protocol.lane import encode_preamble

pytestmark = pytest.mark.timeout(60)


def identity_of(head, root, **options):
    return Identity.load(make_member(Head(head.home, head.config, head.identity), root, **options))


def place(head):
    host, _, port = head.config.node.listen.rpartition(":")
    return host, int(port)


async def answered(head, context=None, said=b""):
    """What the daemon says to this connection before it ends it; nothing it may know of the cluster."""
    try:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*place(head), ssl=context)
            with contextlib.closing(writer):
                writer.write(said)
                return await reader.read()
    except (OSError, asyncio.IncompleteReadError):
        return b""


def unchanged(head):
    return not head.fleet.peers and list(head.fleet.swarm.gossip.nodes) == [head.fleet.node]


async def test_outsider_without_certificate_hears_nothing(head):
    context = tls.joiner_context(head.identity.ca_der)
    context.set_alpn_protocols([tls.ALPN])
    assert await answered(head, context) == b""
    assert unchanged(head)


async def test_outsider_with_a_certificate_of_another_cluster_hears_nothing(head, root):
    stranger = make_head(root / "stranger").identity
    context = stranger.client_tls()
    context.load_verify_locations(cadata=head.identity.ca_der)
    assert await answered(head, context) == b""
    assert unchanged(head)


async def test_outsider_with_a_certificate_that_names_our_ca_but_is_not_signed_by_it_hears_nothing(head, root):
    forger = make_head(root / "forger").identity
    made = Head(head.home, head.config, head.identity)
    keys = make_member(made, root / "forged", signer=forger.ca_key).keys
    context = tls.client_context(head.identity.ca_der, keys / "node.crt", keys / "node.key")
    assert await answered(head, context) == b""
    assert unchanged(head)


async def test_outsider_with_an_expired_certificate_hears_nothing(head, root):
    late = identity_of(head, root / "late", now=UTC_NOW - dt.timedelta(days=91))
    assert await answered(head, late.client_tls()) == b""
    assert unchanged(head)


async def test_certificate_with_an_expired_membership_is_no_way_in_either(head, root):
    """The membership is judged by itself: a renewed certificate beside an old membership opens nothing."""
    late = identity_of(head, root / "late", now=UTC_NOW - dt.timedelta(days=89, hours=23, minutes=59, seconds=58))
    _, writer = await asyncio.open_connection(*place(head), ssl=late.client_tls())
    await until(lambda: (late.not_after - dt.datetime.now(dt.UTC)).total_seconds() < -1)
    await until(lambda: unchanged(head))
    writer.close()


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 64, b"SSH-2.0-x\r\n", encode_frame(b"\x92\x01\x00"), b"\x16\x03"],
    ids=["http", "zeros", "ssh", "a frame without TLS", "half a handshake"],
)
async def test_plaintext_on_the_port_is_hung_up_on(head, said, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_BYTES_S", 0.5)
    assert await answered(head, None, said) == b""
    assert unchanged(head)


async def test_tls_1_2_is_refused(head):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await answered(head, context) == b""


# -- tokens --------------------------------------------------------------------------------------------------


async def join(token, root):
    await enrol.join(token, Home.at(root), site="x", listen="")


async def test_token_replayed_lets_nobody_in(head, root):
    token = enrol.invite(head.home, head.identity, head.config, ttl_s=60)
    await join(token, root / "first")
    with pytest.raises(RefusedError, match="used already"):
        await join(token, root / "second")
    assert not (root / "second").exists()


async def test_token_guessed_lets_nobody_in(head, root):
    token = decode_token(enrol.invite(head.home, head.identity, head.config, ttl_s=60))
    guess = encode_token(msgspec.structs.replace(token, secret=secrets.token_bytes(32)))
    with pytest.raises(RefusedError, match="does not know this token"):
        await join(guess, root / "x")


async def test_token_expired_lets_nobody_in(head, root):
    token = enrol.invite(head.home, head.identity, head.config, ttl_s=0)
    with pytest.raises(RefusedError, match="expired"):
        await join(token, root / "x")


# -- lanes ---------------------------------------------------------------------------------------------------


async def test_lane_guessed_opens_nothing(head, fleet):
    member = await fleet()
    await until(lambda: any(peer.lanes for peer in head.fleet.peers.values()))
    before = sum(len(peer.lanes) for peer in head.fleet.peers.values())
    for _ in range(20):
        assert await answered(head, None, encode_preamble(secrets.token_bytes(16), secrets.token_bytes(32))) == b""
    assert sum(len(peer.lanes) for peer in head.fleet.peers.values()) == before
    assert list(member.fleet.swarm.connected())


async def test_lane_offered_once_is_not_opened_twice_nor_without_its_key(head, fleet):
    await fleet()
    await until(lambda: head.fleet.peers)
    desk, (peer,) = head.fleet._desk, head.fleet.peers.values()
    offers = []
    peer.send = offers.append
    desk.offer(peer)
    (offer,) = offers
    assert await answered(head, None, encode_preamble(offer.lane, bytes(32))) == b""
    await until(lambda: offer.lane in desk._offers)
    right = encode_preamble(offer.lane, offer.key)
    _, writer = await asyncio.open_connection(*place(head))
    writer.write(right)
    await until(lambda: offer.lane not in desk._offers)
    assert await answered(head, None, right) == b"", "the offer ended with its first use"
    writer.close()


# -- floods --------------------------------------------------------------------------------------------------


async def test_half_open_connections_of_one_address_push_out_only_its_own(monkeypatch):
    monkeypatch.setattr(listener, "MAX_HALF_OPEN_EACH", 2)
    accepting = listener.Listener(None, None, None, None)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(accepting._limited("198.51.100.1"))
        first = next(iter(accepting._half_open))
        with contextlib.suppress(TimeoutError):
            async with accepting._limited("203.0.113.9"), accepting._limited("203.0.113.9"):
                oldest = next(each for each, host in accepting._half_open.items() if host == "203.0.113.9")
                async with accepting._limited("203.0.113.9"):
                    assert oldest not in accepting._half_open
                    assert first in accepting._half_open, "another address keeps its place"
                    await asyncio.sleep(1)
        assert first in accepting._half_open


async def test_strangers_that_join_for_ever_keep_no_member_out(head, fleet, monkeypatch):
    monkeypatch.setattr("patchswarm.daemon.fleet.doors.MAX_JOINERS", 2)
    context = tls.joiner_context(None)
    held = [await asyncio.open_connection(*place(head), ssl=context) for _ in range(8)]
    await until(lambda: head.fleet.doors.joiners == 2)
    member = await fleet()
    await until(lambda: list(member.fleet.swarm.connected()))
    for _, writer in held:
        writer.transport.abort()
    await until(lambda: head.fleet.doors.joiners == 0)
