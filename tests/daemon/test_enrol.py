"""Joining over real connections: one line lets one node in, and nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from daemon.nodes import UTC_NOW, Head, free_port, listening, make_head, make_member
from support.logs import logging_restored

from patchswarm.daemon.config import Config
from patchswarm.daemon.errors import BadInputError, HomeError, RefusedError, UnreachableError
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.fleet import authority, enrol, invites, tls
from patchswarm.daemon.fleet.enrol import Issuer
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.home import Home
from patchswarm.protocol.framing import encode_frame
from patchswarm.protocol.ids import digest
from patchswarm.protocol.join import (
    Authority,
    Enrol,
    Possession,
    Reason,
    Refusal,
    Welcome,
    decode_token,
    encode_join,
    encode_token,
)
from patchswarm.protocol.manifest import Membership, StreamRecord
from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.signed import sign, verify
from patchswarm.storage.catalog import Catalog

HOUR_S = 3600.0


@pytest.fixture
def head(tmp_path):
    return make_head(tmp_path / "head")


@pytest.fixture
def home(tmp_path):
    return Home.at(tmp_path / "joiner")


def invite(head, *, ttl_s=HOUR_S, uses=1):
    return enrol.invite(head.home, head.identity, head.config, ttl_s=ttl_s, uses=uses)


def serving(head, issuer=None, port=None):
    """The head's listener, answering joiners."""
    issuer = issuer or Issuer.of(head.home, head.identity, head.config)

    async def answer(reader, writer):
        await enrol.serve_join(reader, writer, issuer)

    return listening(head.identity, head.port if port is None else port, answer)


@contextlib.asynccontextmanager
async def eavesdropping(head, own):
    """Someone else on the head's address, showing the head's CA certificate; gives what joiners send there."""
    heard = asyncio.Queue()

    async def answer(reader, writer):
        writer.write(encode_frame(encode_join(Authority(head.identity.ca_der, bytes(32)))))
        try:
            heard.put_nowait(await reader.read())
        except OSError:
            heard.put_nowait(b"")

    async with listening(own, head.port, answer):
        yield heard


def uses_left(head):
    return [held.uses_left for held in invites.listing(head.home.invites)]


async def refused(token, home, kind=RefusedError, **options):
    """The one line that a failed join ends with; nothing of the home is left."""
    with pytest.raises(kind) as caught:
        await enrol.join(token, home, site="eu-west/b", **options)
    assert not home.root.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_one_line_makes_a_host_a_member(head, home):
    token = invite(head)
    assert "\n" not in token
    async with serving(head) as listener:
        joined = await enrol.join(token, home, site="eu-west/b", listen="127.0.0.1:7777")
        home.check()
        own = Identity.load(home)
        own.check_valid(UTC_NOW)
        assert own.node_id == joined.node_id
        assert own.ca_public_key == head.identity.ca_public_key
        assert own.ca_key is own.publisher_key is None
        assert joined.config == Config.load(home)
        assert joined.config.node.site == "eu-west/b"
        assert joined.config.node.addresses == ("127.0.0.1:7777",)
        assert joined.config.node.seeds == (head.config.node.listen,)
        # and it is let in as one
        _, writer = await asyncio.open_connection("127.0.0.1", head.port, ssl=own.client_tls())
        classes = [await listener.accepted.get() for _ in range(3)]
        writer.close()
        assert classes == [tls.Joiner(), tls.Joiner(), tls.Member(own.node_public_key)]


RECORD = ObjectKind.STREAM, sign(StreamRecord("qwen", 1, bytes(32)), Ed25519PrivateKey.generate())


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ([RECORD], [RECORD]),
        ([RECORD, (ObjectKind.STREAM, bytes(1025))], [RECORD]),
        ([(ObjectKind.NODE, RECORD[1]), RECORD], [RECORD]),
        ([RECORD] * 1000, [RECORD]),
    ],
    ids=["a record", "one that is too long behind it", "one of a kind that is told by gossip", "too many"],
)
async def test_what_the_head_tells_of_besides_is_kept_for_the_daemon_to_judge(head, home, told, kept):
    issuer = replace(Issuer.of(head.home, head.identity, head.config), introduce=lambda: told)
    async with serving(head, issuer):
        await enrol.join(invite(head), home, site="b")
    catalog = Catalog(home.catalog)
    assert [(kind, data) for kind, _, data in catalog.objects()] == kept
    catalog.close()


async def test_a_head_that_stays_on_the_line_after_its_welcome_is_hung_up_on(head, home, monkeypatch):
    monkeypatch.setattr(enrol, "TAIL_TIMEOUT_S", 0.05)
    issuer, stays = Issuer.of(head.home, head.identity, head.config), asyncio.Event()

    async def answer(reader, writer):
        monkeypatch.setattr(writer, "wait_closed", stays.wait)
        monkeypatch.setattr(writer, "close", lambda: None)
        await enrol.serve_join(reader, writer, issuer)

    async with listening(head.identity, head.port, answer):
        await enrol.join(invite(head), home, site="b")
        stays.set()
    assert home.is_initialised()


async def test_the_private_key_never_leaves_the_joiner(head, home):
    seen = []

    class Watching(Issuer):
        def answer(self, request, challenge):
            seen.append(encode_join(request))
            return super().answer(request, challenge)

    async with serving(head, Watching(head.identity, head.home.invites, ())):
        await enrol.join(invite(head), home, site="b")
    assert len(seen) == 1
    assert Identity.load(home).node_key.private_bytes_raw() not in seen[0]


async def test_a_wildcard_is_advertised_as_the_address_that_reaches_the_head(head, home):
    async with serving(head):
        joined = await enrol.join(invite(head), home, site="b", listen="0.0.0.0:7341")
    assert joined.config.node.addresses == ("127.0.0.1:7341",)


async def test_a_host_behind_nat_listens_nowhere(head, home):
    async with serving(head):
        joined = await enrol.join(invite(head), home, site="b", listen="")
    assert joined.config.node.listen == ""
    assert joined.config.node.addresses == ()


async def test_an_advertised_address_is_kept_as_given(head, home):
    async with serving(head):
        joined = await enrol.join(invite(head), home, site="b", listen="0.0.0.0:1", advertise=("nat.example:9",))
    assert joined.config.node.addresses == ("nat.example:9",)


async def test_the_first_reachable_address_of_a_token_is_used(tmp_path, home):
    dead, live = free_port(), free_port()
    head = make_head(tmp_path / "head", f"127.0.0.1:{live}")
    token = msgspec.structs.replace(decode_token(invite(head)), addresses=(f"127.0.0.1:{dead}", f"127.0.0.1:{live}"))
    async with serving(head):
        joined = await enrol.join(encode_token(token), home, site="b")
    assert joined.issuer == f"127.0.0.1:{live}"


async def test_a_single_use_token_lets_one_node_in(head, home, tmp_path):
    token = invite(head)
    async with serving(head):
        await enrol.join(token, home, site="b")
        message = await refused(token, Home.at(tmp_path / "second"))
    assert message == "the token was used already; make a new one with 'patchswarm invite' on the head"


async def test_a_counted_token_lets_so_many_in_at_once(head, tmp_path):
    token = invite(head, uses=3)
    async with serving(head):
        results = await asyncio.gather(
            *(enrol.join(token, Home.at(tmp_path / f"n{n}"), site="b") for n in range(5)), return_exceptions=True
        )
    assert sum(isinstance(result, enrol.Joined) for result in results) == 3
    assert sum(isinstance(result, RefusedError) for result in results) == 2
    assert uses_left(head) == [0]


async def test_an_expired_token_is_refused(head, home):
    token = invite(head)
    later = Issuer(head.identity, head.home.invites, (), now=lambda: UTC_NOW + dt.timedelta(hours=2))
    async with serving(head, later):
        message = await refused(token, home)
    assert message == "the token has expired; make a new one with 'patchswarm invite' on the head"
    assert uses_left(head) == [1]


async def test_a_withdrawn_token_is_refused(head, home):
    token = invite(head)
    assert invites.withdraw(head.home.invites, decode_token(token).invite.hex())
    async with serving(head):
        assert "does not know this token, of another cluster or withdrawn" in await refused(token, home)


async def test_a_token_of_another_cluster_is_refused_before_anything_is_sent(head, home, tmp_path):
    foreign = make_head(tmp_path / "foreign", head.config.node.listen)
    async with serving(head) as listener:
        message = await refused(invite(foreign), home)
        assert "belongs to another cluster than the token" in message
        assert await listener.accepted.get() == tls.Joiner()
        assert listener.accepted.empty()  # it never came back to enrol


async def test_another_member_at_the_heads_address_never_sees_the_secret(head, home, tmp_path):
    other = Identity.load(make_member(head, tmp_path / "other"))
    async with eavesdropping(head, other) as heard:
        assert "is not the node that made the token" in await refused(invite(head), home)
        assert [await heard.get(), await heard.get()] == [b"", b""]


async def test_an_outsider_that_shows_the_true_ca_certificate_never_sees_the_secret(head, home, tmp_path):
    outsider = make_head(tmp_path / "outsider").identity
    async with eavesdropping(head, outsider) as heard:
        assert "its certificate does not hold in the token's cluster" in await refused(invite(head), home)
        assert await heard.get() == b""
        assert heard.empty()


async def test_a_wrong_secret_is_told_no_more_than_an_unknown_invite(head, home):
    token = decode_token(invite(head))
    async with serving(head):
        wrong = await refused(encode_token(msgspec.structs.replace(token, secret=bytes(32))), home)
        unknown = await refused(encode_token(msgspec.structs.replace(token, invite=bytes(8))), home)
    assert wrong == unknown
    assert uses_left(head) == [1]


@pytest.mark.parametrize("text", ["", "nonsense", "patchswarm1_AAAA"])
async def test_what_is_no_token_costs_no_connection(home, text):
    with pytest.raises(BadInputError) as caught:
        await enrol.join(text, home, site="b")
    assert caught.value.exit is Exit.BAD_INPUT
    assert not home.root.exists()


async def test_a_head_that_is_down_is_named(head, home):
    message = await refused(invite(head), home, UnreachableError)
    assert message.startswith(f"{head.config.node.listen}: ")
    assert message.endswith("see whether the head's daemon is ready, and its port open")


async def test_a_head_that_speaks_something_else_is_named(head, home):
    async def parrot(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(parrot, "127.0.0.1", head.port)
    async with server:
        assert "does not answer like a patchswarm head" in await refused(invite(head), home, UnreachableError)


async def test_a_head_that_says_nothing_is_given_up_on(head, home, monkeypatch):
    monkeypatch.setattr(enrol, "EXCHANGE_TIMEOUT_S", 0.1)

    async def silence(reader, _writer):
        await reader.read()

    async with listening(head.identity, head.port, silence):
        assert "no answer within" in await refused(invite(head), home, UnreachableError)


async def test_a_member_without_the_ca_key_enrols_nobody(head, home, tmp_path):
    other = Identity.load(make_member(head, tmp_path / "other"))
    with pytest.raises(RefusedError, match="cannot enrol others; run 'patchswarm invite' on the head"):
        enrol.invite(head.home, other, head.config, ttl_s=1)
    # nor by being asked: a token is bent so that it names this member
    token = msgspec.structs.replace(decode_token(invite(head)), issuer=other.node_id)
    async with serving(Head(head.home, head.config, other)):
        assert "cannot enrol others; make the token on the head" in await refused(encode_token(token), home)
    assert uses_left(head) == [1]


async def test_an_answer_lost_on_its_way_costs_no_second_use(head, home):
    issuer = Issuer.of(head.home, head.identity, head.config)
    answered = []

    async def lose_the_first(reader, writer):
        if answered:
            await enrol.serve_join(reader, writer, issuer)
            return
        challenge = bytes(32)
        writer.write(encode_frame(encode_join(Authority(head.identity.ca_der, challenge))))
        request = await enrol._receive(reader)
        if request is not None:
            answered.append(issuer.answer(request, challenge))
            writer.transport.abort()

    async with listening(head.identity, head.port, lose_the_first):
        joined = await enrol.join(invite(head), home, site="b")
    assert isinstance(answered[0], Welcome)
    assert uses_left(head) == [0]
    assert invites.listing(head.home.invites)[0].spent_by == (joined.node_id.hex(),)


async def test_a_taken_home_or_a_wrong_option_costs_no_use(head, home):
    token = invite(head)
    async with serving(head):
        with pytest.raises(HomeError, match="already a home"):
            await enrol.join(token, head.home, site="b")
        await refused(token, home, BadInputError, listen="nowhere")
        await refused(token, home, BadInputError, advertise=("nowhere",))
        assert uses_left(head) == [1]
        await enrol.join(token, home, site="b")


async def test_a_join_that_is_interrupted_leaves_nothing(head, home):
    reached = asyncio.Event()

    async def stall(reader, _writer):
        reached.set()
        await reader.read()

    async with listening(head.identity, head.port, stall):
        task = asyncio.create_task(enrol.join(invite(head), home, site="b"))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not home.root.exists()


def test_a_head_that_nobody_can_dial_makes_no_token(tmp_path):
    head = make_head(tmp_path / "head", "0.0.0.0:7340")
    with pytest.raises(BadInputError, match=r'set node\.advertise = \["HOST:PORT"\]'):
        invite(head)
    assert uses_left(head) == []


# The issuer's decision, without a connection.


class Asking:
    """A joiner's request, with a way to bend each part of it."""

    def __init__(self, head):
        self.head = head
        self.key = Ed25519PrivateKey.generate()
        self.token = decode_token(invite(head))
        self.challenge = bytes(range(32))

    def request(self, *, signer=None, **bent):
        public_key = self.key.public_key().public_bytes_raw()
        claims = {
            "challenge": self.challenge,
            "authority": self.token.authority,
            "issuer": self.token.issuer,
            "invite": self.token.invite,
            "node_key": public_key,
            **bent,
        }
        return Enrol(self.token.invite, self.token.secret, sign(Possession(**claims), signer or self.key))

    def answer(self, request):
        return Issuer.of(self.head.home, self.head.identity, self.head.config).answer(request, self.challenge)


def test_the_issuer_certifies_the_key_that_was_proved(head):
    asking = Asking(head)
    welcome = asking.answer(asking.request())
    assert isinstance(welcome, Welcome)
    member = verify(welcome.membership, Membership, head.identity.ca_public_key)
    assert member.node_key == asking.key.public_key().public_bytes_raw()


@pytest.mark.parametrize(
    "bent",
    [
        {"challenge": bytes(32)},
        {"authority": bytes(32)},
        {"issuer": bytes(32)},
        {"invite": bytes(8)},
        {"signer": Ed25519PrivateKey.generate()},
        {"node_key": Ed25519PrivateKey.generate().public_key().public_bytes_raw()},
        {"node_key": bytes(32)},
    ],
    ids=["replayed", "other cluster", "other issuer", "other invite", "other signer", "someone's key", "weak key"],
)
def test_a_proof_of_anything_else_is_refused_and_costs_no_use(head, bent):
    asking = Asking(head)
    assert asking.answer(asking.request(**bent)) == Refusal(Reason.MALFORMED)
    assert uses_left(head) == [1]


@pytest.mark.parametrize("message", [Authority(b"x", bytes(32)), Refusal(Reason.USED), Welcome(b"x", bytes(65), ())])
def test_a_message_out_of_turn_is_refused(head, message):
    assert Asking(head).answer(message) == Refusal(Reason.MALFORMED)


def test_an_invite_is_spent_before_the_certificate_exists(head, monkeypatch):
    asking = Asking(head)

    def crash(*_args):
        raise SystemError("the power goes out")

    monkeypatch.setattr(authority, "issue", crash)
    with pytest.raises(SystemError):
        asking.answer(asking.request())
    assert uses_left(head) == [0]


def test_a_weak_public_key_cannot_be_proved(head):
    # the neutral element of the curve: under a careless verifier any signature holds for it
    asking = Asking(head)
    neutral = (1).to_bytes(32, "little")
    body = msgspec.msgpack.encode(
        Possession(asking.challenge, asking.token.authority, asking.token.issuer, asking.token.invite, neutral)
    )
    request = Enrol(asking.token.invite, asking.token.secret, neutral + bytes(32) + body)
    assert asking.answer(request) == Refusal(Reason.MALFORMED)


# Strangers on the join protocol.


async def stranger(head, send, *, end=True):
    """What a client that only speaks TLS gets back after the greeting, until the issuer hangs up."""
    context = tls.joiner_context(head.identity.ca_der)
    reader, writer = await asyncio.open_connection("127.0.0.1", head.port, ssl=context)
    try:
        greeting = await enrol._receive(reader)
        assert isinstance(greeting, Authority)
        with contextlib.suppress(OSError):
            writer.write(send)
            if end and not send:
                writer.close()
            return await reader.read()
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    "send",
    [b"\xff\xff\xff\xff", encode_frame(b"\xc1"), encode_frame(bytes(5000)), b"\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n"],
    ids=["4 GiB frame", "not MessagePack", "over the limit", "empty frame", "HTTP"],
)
async def test_garbage_gets_no_answer(head, send):
    async with serving(head):
        assert await stranger(head, send) in {b"", None}
        await enrol.join(invite(head), Home.at(head.home.root.parent / "next"), site="b")  # the head is still well


async def test_a_stranger_that_trickles_is_hung_up_on(head, monkeypatch):
    monkeypatch.setattr(enrol, "EXCHANGE_TIMEOUT_S", 0.1)
    async with serving(head):
        assert await stranger(head, b"\x00\x00", end=False) in {b"", None}


async def test_every_join_connection_is_closed_by_the_issuer_itself(head):
    issuer = Issuer.of(head.home, head.identity, head.config)
    ended = asyncio.Queue()

    async def accept(reader, writer):
        await enrol.serve_join(reader, writer, issuer)
        ended.put_nowait(writer.transport.is_closing())

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=head.identity.server_tls())
    async with server:
        for send in (encode_frame(b"\xc1"), encode_frame(encode_join(Refusal(Reason.USED)))):
            port = server.sockets[0].getsockname()[1]
            context = tls.joiner_context(head.identity.ca_der)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(send)
            with contextlib.suppress(OSError):
                await reader.read()  # ends although this side never closes
            assert await ended.get()
            writer.transport.abort()


async def test_an_issuer_that_cannot_write_hangs_up_and_lives_on(head, home):
    token = invite(head)
    (path,) = head.home.invites.iterdir()
    good = path.read_bytes()
    path.write_bytes(b"torn")
    with structlog.testing.capture_logs() as logged:
        async with serving(head):
            assert "hung up without an answer" in await refused(token, home, UnreachableError)
            path.write_bytes(good)
            await enrol.join(token, home, site="b")
    told = [entry for entry in logged if entry["log_level"] == "error"]
    assert path.name in told[0]["why"]


async def test_a_head_out_of_time_points_at_the_clocks(tmp_path, home):
    head = make_head(tmp_path / "old", now=UTC_NOW - dt.timedelta(days=91))
    async with serving(head):
        assert (await refused(invite(head), home)).endswith("certificate has expired; set both clocks right")


async def test_no_secret_is_logged(head, home, capsys):
    from patchswarm.daemon import logs

    token = invite(head)
    with logging_restored():
        logs.configure("debug", "json")
        async with serving(head):
            await enrol.join(token, home, site="b")
            await refused(token, Home.at(home.root.parent / "second"))
    written = "".join(capsys.readouterr())
    assert "node enrolled" in written
    assert "join refused" in written
    secret = decode_token(token).secret
    assert token not in written
    assert secret.hex() not in written
    assert secret.decode("latin-1") not in written


# Invites on disk.


def test_an_invites_file_does_not_hold_its_secret(head):
    secret = decode_token(invite(head)).secret
    (path,) = head.home.invites.iterdir()
    assert secret.hex() not in path.read_text()
    assert digest(secret).hex() in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_of_many_at_once_exactly_as_many_as_allowed_redeem(head):
    now_s = time.time()
    invite_id, secret = invites.create(head.home.invites, ttl_s=HOUR_S, uses=2, now_s=now_s)

    def redeem(number):
        try:
            invites.redeem(head.home.invites, invite_id, secret, bytes([number]) * 32, now_s=now_s)
        except invites.InviteRefusedError as error:
            return error.reason
        return None

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(redeem, range(8)))
    assert results.count(None) == 2
    assert results.count(Reason.USED) == 6


def test_long_dead_invites_are_swept_and_recent_ones_kept(tmp_path):
    invites.create(tmp_path, ttl_s=1, uses=1, now_s=0)
    invites.create(tmp_path, ttl_s=1, uses=1, now_s=30 * 86400)
    assert len(invites.listing(tmp_path)) == 1
    invites.create(tmp_path, ttl_s=1, uses=1, now_s=31 * 86400)
    assert len(invites.listing(tmp_path)) == 2


@pytest.mark.parametrize("invite_id", ["", "..", "../victim", "0000"])
def test_withdrawing_takes_no_path_for_an_id(head, invite_id):
    invite(head)
    (head.home.root / "victim.json").write_text("mine")
    assert not invites.withdraw(head.home.invites, invite_id)
    assert uses_left(head) == [1]
    assert (head.home.root / "victim.json").exists()


def test_a_damaged_invite_is_named(head):
    invite(head)
    (path,) = head.home.invites.iterdir()
    path.write_text("{}")
    with pytest.raises(HomeError, match=rf"{path.name}: cannot read this invite"):
        invites.listing(head.home.invites)
