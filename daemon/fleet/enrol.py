"""Enrolment over the wire: the issuer's side of `protocol.join`, and the joiner's.

The issuer talks to strangers here, so it reads one short frame, within a time limit, and answers once.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from ...protocol.errors import MessageError, ProtocolError
from ...protocol.framing import FrameDecoder, encode_frame
from ...protocol.ids import digest, short
from ...protocol.join import (
    MAX_INTRODUCTIONS,
    Authority,
    Enrol,
    Introduction,
    JoinMessage,
    Possession,
    Reason,
    Refusal,
    Token,
    TokenError,
    Welcome,
    decode_join,
    decode_token,
    encode_join,
    encode_token,
)
from ...protocol.manifest import MirrorRecord, StreamRecord
from ...protocol.members import verify_membership
from ...protocol.messages import ObjectKind
from ...protocol.signed import Signable, object_digest, peek, sign, verify
from ...storage.catalog import Catalog
from ...storage.errors import StorageError
from .. import config as configuration
from ..config import Config
from ..errors import BadInputError, DaemonError, RefusedError, UnreachableError
from ..home import Home
from ..units import format_address, parse_address
from . import authority, identity, invites, tls
from .identity import Identity

EXCHANGE_TIMEOUT_S: Final = 10.0
"""Longest that either side waits for the other to finish the exchange."""

TAIL_TIMEOUT_S: Final = 2.0
"""How long a new member waits for what follows its Welcome."""

_READ_BYTES: Final = 4096
_ATTEMPTS: Final = 3
_OUT_OF_TIME: Final = {9, 10}  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED

_log: Final = structlog.get_logger(__name__)

_SEE: Final = "see whether the head's daemon is ready, and its port open"
_REFUSALS: Final[dict[Reason, str]] = {
    Reason.MALFORMED: "the head could not read the request; run the same patchswarm version at both ends",
    Reason.NOT_ISSUER: "the node at this address cannot enrol others; make the token on the head",
    Reason.UNKNOWN: "the head does not know this token, of another cluster or withdrawn; make a new one on the head",
    Reason.EXPIRED: "the token has expired; make a new one with 'patchswarm invite' on the head",
    Reason.USED: "the token was used already; make a new one with 'patchswarm invite' on the head",
}


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True)
class Issuer:
    """What answering joiners takes. `seeds` are the addresses that a new node is told to dial."""

    identity: Identity
    invites: Path
    seeds: tuple[str, ...]
    now: Callable[[], dt.datetime] = _utc_now
    introduce: Callable[[], list[tuple[ObjectKind, bytes]]] = list
    """What a new member is told of besides: signed objects, in the order in which it can believe them."""

    @classmethod
    def of(cls, home: Home, identity: Identity, config: Config) -> Issuer:
        """The issuer that a daemon runs."""
        return cls(identity, home.invites, (*config.node.addresses, *config.node.seeds)[:16])

    def answer(self, request: JoinMessage, challenge: bytes) -> Welcome | Refusal:
        """What the joiner gets; its invite is spent, durably, when that is a Welcome. Blocks on the disk."""
        own = self.identity
        if own.issuing is None:
            return Refusal(Reason.NOT_ISSUER)
        if not isinstance(request, Enrol):
            return Refusal(Reason.MALFORMED)
        try:
            node_key = peek(request.proof, Possession).node_key
            proof = verify(request.proof, Possession, node_key)
        except ProtocolError:
            return Refusal(Reason.MALFORMED)
        meant = Possession(challenge, digest(own.ca_der), own.node_id, request.invite, node_key)
        if proof != meant or authority.is_weak(node_key):
            return Refusal(Reason.MALFORMED)
        now = self.now()
        try:
            invites.redeem(
                self.invites, request.invite, request.secret, authority.node_id(node_key), now_s=now.timestamp()
            )
        except invites.InviteRefusedError as error:
            return Refusal(error.reason)
        certificates, membership = own.issuing.issue(node_key, now)
        _log.info("node enrolled", node=short(authority.node_id(node_key)), invite=request.invite.hex())
        return Welcome(authority.to_der(certificates), membership, self.seeds)


def invite(home: Home, own: Identity, config: Config, *, ttl_s: float, uses: int = 1) -> str:
    """Make an invite on this node; returns its one-line token. Raises DaemonError."""
    if own.issuing is None:
        raise RefusedError("this node cannot enrol others; run 'patchswarm invite' on the head")
    if not config.node.addresses:
        raise BadInputError(
            f"{home.config}: this node has no address that a new node could dial; "
            'set node.advertise = ["HOST:PORT"], restart its daemon, and invite again'
        )
    made, secret = invites.create(home.invites, ttl_s=ttl_s, uses=uses, now_s=_utc_now().timestamp())
    return encode_token(Token(digest(own.ca_der), own.node_id, made, secret, config.node.addresses))


async def serve_join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, issuer: Issuer) -> None:
    """Answer one joiner on a connection that `tls.classify` found to be one, and close it.

    Whatever the stranger does, this returns within EXCHANGE_TIMEOUT_S and raises nothing of theirs.
    """
    challenge = secrets.token_bytes(32)
    try:
        async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
            await _send(writer, Authority(issuer.identity.ca_der, challenge))
            request = await _receive(reader)
            if request is not None:  # else it only came for the certificate
                answer = await asyncio.to_thread(issuer.answer, request, challenge)
                await _send(writer, answer)
                if isinstance(answer, Welcome):
                    for kind, data in issuer.introduce()[:MAX_INTRODUCTIONS]:
                        await _send(writer, Introduction(kind, data))
                if isinstance(answer, Refusal):
                    _log.warning("join refused", why=answer.reason.name.lower())
            writer.close()
            await writer.wait_closed()
    except (ProtocolError, OSError, TimeoutError) as error:
        _log.info("join attempt failed", why=str(error) or type(error).__name__)
    except DaemonError as error:
        _log.error("cannot answer a joiner", why=str(error))
    finally:
        writer.transport.abort()  # does nothing when it is closed


@dataclass(frozen=True)
class Joined:
    """A new member."""

    node_id: bytes
    config: Config
    issuer: str
    """HOST:PORT that answered."""


async def join(
    text: str,
    home: Home,
    *,
    site: str,
    listen: str | None = None,
    advertise: tuple[str, ...] = (),
    storage: Mapping[str, object] | None = None,
    told: Callable[[str], object] = lambda _step: None,
) -> Joined:
    """Enrol with a token and write the new home; on any failure nothing of it is left. `told` hears of each step.

    `listen` None means every interface on the default port. Without `advertise`, a wildcard is advertised as
    the address from which this host reached the issuer. `storage` are settings of that section.
    Raises DaemonError, one clear line.
    """
    try:
        token = decode_token(text)
    except TokenError as error:
        raise BadInputError(str(error)) from None
    with home.making():
        joined, introductions = await _join(token, home, site, listen, advertise, storage or {}, told)
    await asyncio.to_thread(_remember, home, introductions)
    return joined


def _remember(home: Home, introductions: list[Introduction]) -> None:
    """Have the daemon find in its catalog what this node was told of; it verifies everything that it finds there."""
    kinds: dict[ObjectKind, type[Signable]] = {ObjectKind.STREAM: StreamRecord, ObjectKind.MIRROR: MirrorRecord}
    with contextlib.suppress(StorageError):  # gossip brings it as well
        catalog = Catalog(home.catalog)
        try:
            known = [each for each in introductions if each.kind in kinds]
            catalog.put_objects([(each.kind, object_digest(each.data, kinds[each.kind]), each.data) for each in known])
        finally:
            catalog.close()


async def _join(
    token: Token,
    home: Home,
    site: str,
    listen: str | None,
    advertise: tuple[str, ...],
    storage: Mapping[str, object],
    told: Callable[[str], object],
) -> tuple[Joined, list[Introduction]]:
    settings: dict[str, object] = {"site": site}
    if listen is not None:
        settings["listen"] = listen
    if advertise:
        settings["advertise"] = advertise
    config = configuration.write(
        home, {"node": settings, "storage": storage}
    )  # first: what is wrong in it must not cost the invite
    node_key = Ed25519PrivateKey.generate()
    address, ca_certificate = await _find_issuer(token, told)
    told(f"enrolling at {address}")
    welcome, introductions, own_host = await _enrol(token, address, ca_certificate, node_key)
    certificates = check_issued(
        welcome.certificate, welcome.membership, node_key.public_key().public_bytes_raw(), ca_certificate
    )
    identity.write_member(home, node_key, certificates, welcome.membership, ca_certificate)
    if config.node.listen and not config.node.addresses:
        settings["advertise"] = (format_address(own_host, parse_address(config.node.listen)[1]),)
    settings["seeds"] = welcome.seeds or token.addresses
    config = configuration.write(home, {"node": settings, "storage": storage})
    return Joined(authority.node_id(node_key.public_key().public_bytes_raw()), config, address), introductions


async def _find_issuer(token: Token, told: Callable[[str], object]) -> tuple[str, x509.Certificate]:
    """The first address of the token that answers, and the CA's certificate, checked against the token."""
    failures = []
    for address in token.addresses:
        told(f"looking for the head at {address}")
        try:
            async with _exchange(address, tls.joiner_context(None)) as (_, _, greeting):
                pass
        except UnreachableError as error:
            failures.append(str(error.args[0]))
            continue
        if digest(greeting.certificate) != token.authority:
            raise RefusedError(
                f"{address}: belongs to another cluster than the token; "
                "see whether the address is still the head's, or get a new invite"
            )
        return address, x509.load_der_x509_certificate(greeting.certificate)
    raise UnreachableError("; ".join(failures), remedy=_SEE)


async def _enrol(
    token: Token, address: str, ca_certificate: x509.Certificate, node_key: Ed25519PrivateKey
) -> tuple[Welcome, list[Introduction], str]:
    """The issuer's Welcome, what it tells of besides, and this host's own address on that connection.

    A connection that breaks is tried again: the issuer answers the same key again without spending the invite.
    """
    context = tls.joiner_context(ca_certificate.public_bytes(Encoding.DER))
    for left in reversed(range(_ATTEMPTS)):
        try:
            async with _exchange(address, context) as (reader, writer, greeting):
                if authority.node_id(tls.peer_node_key(writer.get_extra_info("ssl_object"))) != token.issuer:
                    raise RefusedError(
                        f"{address}: is not the node that made the token; "
                        "see whether the address is still the head's, or get a new invite"
                    )
                public_key = node_key.public_key().public_bytes_raw()
                possession = Possession(greeting.challenge, token.authority, token.issuer, token.invite, public_key)
                await _send(writer, Enrol(token.invite, token.secret, sign(possession, node_key)))
                answers = await _receive_all(reader)
                if not answers:
                    raise ConnectionResetError("it hung up without an answer")
                own_host = str(writer.get_extra_info("sockname")[0])
        except UnreachableError:
            if not left:
                raise
            continue
        answer = answers[0]
        if isinstance(answer, Welcome):
            return answer, [each for each in answers if isinstance(each, Introduction)], own_host
        reason = answer.reason if isinstance(answer, Refusal) else Reason.MALFORMED
        raise RefusedError(_REFUSALS[reason])
    raise AssertionError("unreachable")


def check_issued(
    certificates: bytes, membership: bytes, node_key: bytes, ca_certificate: x509.Certificate
) -> list[x509.Certificate]:
    """The certificates that an issuer sent. Raises RefusedError unless they and the membership are for this key."""
    try:
        chain = authority.from_der(certificates)
        authority.check_chain(chain, ca_certificate)
        member = verify_membership(membership, authority.public_key_of(ca_certificate))
        keys = {authority.public_key_of(chain[0]), member.node_key}
    except (ValueError, ProtocolError):
        keys = set()
    if keys != {node_key}:
        raise RefusedError("the head sent a certificate that is not this node's; run the same version at both ends")
    return chain


@contextlib.asynccontextmanager
async def _exchange(
    address: str, context: ssl.SSLContext
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Authority]]:
    """A connection to the issuer that has sent its Authority. Whatever breaks in it is an UnreachableError."""
    host, port = parse_address(address)
    writer = None
    try:
        async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            greeting = await _receive(reader)
            if not isinstance(greeting, Authority):
                raise MessageError("the first message is no greeting")
            yield reader, writer, greeting
    except TimeoutError:
        raise UnreachableError(f"{address}: no answer within {EXCHANGE_TIMEOUT_S:.0f} s", remedy=_SEE) from None
    except ssl.SSLCertVerificationError as error:
        step = "set both clocks right" if error.verify_code in _OUT_OF_TIME else "get a new invite from its head"
        raise RefusedError(
            f"{address}: its certificate does not hold in the token's cluster: {error.verify_message}", remedy=step
        ) from None
    except (ssl.SSLError, ProtocolError):
        raise UnreachableError(f"{address}: does not answer like a patchswarm head", remedy=_SEE) from None
    except OSError as error:
        raise UnreachableError(f"{address}: {error.strerror or error}", remedy=_SEE) from None
    finally:
        if writer is not None:
            writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, message: JoinMessage) -> None:
    writer.write(encode_frame(encode_join(message)))
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> JoinMessage | None:
    """The next message, or None at a clean end. Raises ProtocolError or OSError."""
    decoder = FrameDecoder()
    while data := await reader.read(_READ_BYTES):
        if frames := decoder.feed(data):
            return decode_join(frames[0])
    if decoder.at_boundary():
        return None
    raise ConnectionResetError("the connection ended within a message")


async def _receive_all(reader: asyncio.StreamReader) -> list[JoinMessage]:
    """Every message until the end of the connection, none at a clean end. Raises ProtocolError or OSError.

    Only the first one counts: those behind it may be cut short, or take too long, without harm.
    """
    decoder, messages = FrameDecoder(), list[JoinMessage]()
    try:
        async with asyncio.timeout(EXCHANGE_TIMEOUT_S) as limit:
            while len(messages) <= MAX_INTRODUCTIONS and (data := await reader.read(_READ_BYTES)):
                for frame in decoder.feed(data):
                    messages.append(decode_join(frame))  # one by one: what came before a bad one stays
                if messages:
                    limit.reschedule(asyncio.get_running_loop().time() + TAIL_TIMEOUT_S)
    except (ProtocolError, OSError):  # a TimeoutError is an OSError
        if not messages:
            raise
    if not messages and not decoder.at_boundary():
        raise ConnectionResetError("the connection ended within a message")
    return messages
