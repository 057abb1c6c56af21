"""Who gets through the handshake between two nodes, and as what."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl

import pytest
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from daemon.nodes import UTC_NOW, listening, make_head, make_member

from patchswarm.daemon.errors import HomeError
from patchswarm.daemon.fleet import tls
from patchswarm.daemon.fleet.identity import Identity

DAY = dt.timedelta(days=1)


@pytest.fixture
def head(tmp_path):
    return make_head(tmp_path / "head")


async def outcome(port, context):
    """What a client meets: the server's node key, or the name of what ended the connection."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except ssl.SSLCertVerificationError:
        return "server not verified"
    except OSError:
        return "cut"
    try:
        server_key = tls.peer_node_key(writer.get_extra_info("ssl_object"))
        with contextlib.suppress(ConnectionError):
            await reader.read()  # in TLS 1.3 the server's verdict on our certificate comes only now
    except ssl.SSLError:
        return "cut"
    else:
        return server_key
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def verdict(head, context):
    """The server's classification of a client, or None when the handshake did not pass."""
    async with listening(head.identity) as listener:
        await outcome(listener.port, context)
        # a member that comes afterwards is the sign that the first one has been dealt with
        await outcome(listener.port, head.identity.client_tls())
        first = await listener.accepted.get()
        return None if listener.accepted.empty() and first == tls.Member(head.identity.node_public_key) else first


async def test_two_members_prove_their_keys_to_each_other(head, tmp_path):
    other = Identity.load(make_member(head, tmp_path / "other"))
    async with listening(head.identity) as listener:
        assert await outcome(listener.port, other.client_tls()) == head.identity.node_public_key
        assert await listener.accepted.get() == tls.Member(other.node_public_key)


async def test_a_connection_is_tls_1_3_and_never_resumed(head):
    async with listening(head.identity) as listener:
        context = head.identity.client_tls()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context)
        await reader.read()
        connection = writer.get_extra_info("ssl_object")
        assert connection.version() == "TLSv1.3"
        assert not connection.session.has_ticket
        writer.close()


async def test_a_client_without_certificate_is_refused(head):
    context = tls.joiner_context(head.identity.ca_der)
    context.set_alpn_protocols([tls.ALPN])
    assert await verdict(head, context) == tls.Refused("shows no certificate")


async def test_a_client_without_certificate_may_ask_to_join(head):
    assert await verdict(head, tls.joiner_context(head.identity.ca_der)) == tls.Joiner()


@pytest.mark.parametrize("protocols", [[], ["h2", "http/1.1"]])
async def test_a_client_that_speaks_something_else_is_refused(head, protocols):
    context = tls.joiner_context(head.identity.ca_der)
    if protocols:
        context.set_alpn_protocols(protocols)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    assert await verdict(head, context) == tls.Refused("speaks no protocol of ours")


async def test_a_certificate_of_another_cluster_does_not_pass(head, tmp_path):
    foreign = make_head(tmp_path / "foreign")
    context = tls.joiner_context(None)  # believes any server
    context.set_alpn_protocols([tls.ALPN])
    context.load_cert_chain(foreign.home.keys / "node.crt", foreign.home.keys / "node.key")
    assert await verdict(head, context) is None


async def test_a_foreign_certificate_does_not_pass_as_a_joiner_either(head, tmp_path):
    foreign = make_head(tmp_path / "foreign")
    context = tls.joiner_context(None)
    context.load_cert_chain(foreign.home.keys / "node.crt", foreign.home.keys / "node.key")
    assert await verdict(head, context) is None


@pytest.mark.parametrize("now", [UTC_NOW - 91 * DAY, UTC_NOW + 2 * DAY], ids=["expired", "not yet valid"])
async def test_a_certificate_out_of_its_time_does_not_pass(head, tmp_path, now):
    other = Identity.load(make_member(head, tmp_path / "other", now=now))
    assert await verdict(head, other.client_tls()) is None
    with pytest.raises(HomeError, match=r"expired on|begins on"):
        other.check_valid(UTC_NOW)


async def test_a_forged_ca_of_the_same_name_does_not_pass(head, tmp_path):
    home = make_member(head, tmp_path / "other", signer=Ed25519PrivateKey.generate())
    with pytest.raises(HomeError, match=r"not by ca\.crt"):
        Identity.load(home)
    context = tls.client_context(head.identity.ca_der, home.keys / "node.crt", home.keys / "node.key")
    assert await verdict(head, context) is None


async def test_a_member_cannot_enrol_others(head, tmp_path):
    middle = Identity.load(make_member(head, tmp_path / "middle"))
    home = make_member(head, tmp_path / "other", signer=middle.node_key, ca=middle.certificate)
    chain = home.keys / "node.crt"
    chain.write_bytes(chain.read_bytes() + middle.certificate.public_bytes(Encoding.PEM))
    context = tls.client_context(head.identity.ca_der, chain, home.keys / "node.key")
    assert await verdict(head, context) is None


async def test_tls_1_2_does_not_pass(head):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(head.home.keys / "node.crt", head.home.keys / "node.key")
    context.set_alpn_protocols([tls.ALPN])
    assert await verdict(head, context) is None


@pytest.mark.parametrize(
    "send", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\xff\xff" + b"x" * 9]
)
async def test_plaintext_is_cut_off_and_never_reaches_the_node(head, send):
    async with listening(head.identity) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert answer[:1] in {b"", b"\x15"}  # nothing, or a TLS alert
        writer.close()
        assert await outcome(listener.port, head.identity.client_tls()) == head.identity.node_public_key
        assert listener.accepted.get_nowait() == tls.Member(head.identity.node_public_key)
        assert listener.accepted.empty()


async def test_a_member_does_not_talk_to_a_server_of_another_cluster(head, tmp_path):
    foreign = make_head(tmp_path / "foreign")
    async with listening(foreign.identity) as listener:
        assert await outcome(listener.port, head.identity.client_tls()) == "server not verified"


async def test_a_member_does_not_talk_to_an_expired_server(head, tmp_path):
    expired = Identity.load(make_member(head, tmp_path / "expired", now=UTC_NOW - 91 * DAY))
    async with listening(expired) as listener:
        assert await outcome(listener.port, head.identity.client_tls()) == "server not verified"


async def test_a_member_does_not_talk_to_a_server_without_tls(head):
    async def parrot(reader, writer):
        writer.write(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(parrot, "127.0.0.1", 0)
    async with server:
        assert await outcome(server.sockets[0].getsockname()[1], head.identity.client_tls()) == "cut"


def test_classify_needs_no_event_loop(head):
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = head.identity.server_tls().wrap_bio(to_server, to_client, server_side=True)
    client = head.identity.client_tls().wrap_bio(to_client, to_server)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert tls.classify(server) == tls.Member(head.identity.node_public_key)
    assert tls.peer_node_key(client) == head.identity.node_public_key


@pytest.mark.parametrize(
    "handshake",
    [
        test_two_members_prove_their_keys_to_each_other,
        test_a_certificate_of_another_cluster_does_not_pass,
        test_a_member_does_not_talk_to_a_server_of_another_cluster,
    ],
)
def test_the_same_holds_on_uvloop_which_the_daemon_runs_on(head, tmp_path, handshake):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(handshake(head, tmp_path))


def test_clients_without_certificate_are_told_apart_on_uvloop_too(head):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_a_client_without_certificate_is_refused(head))
        runner.run(test_a_client_without_certificate_may_ask_to_join(head))
