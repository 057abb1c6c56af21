"""TLS between nodes: 1.3 only, both sides verified against the cluster's CA and nothing else.

A joiner has no certificate yet, so the server must let the handshake pass without one; `classify` then says
what an accepted connection may carry. Names and addresses are not checked: a node is its key.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509

from .authority import public_key_of

ALPN: Final = "patchswarm/1"
ALPN_JOIN: Final = "patchswarm-join/1"


@dataclass(frozen=True)
class Member:
    """The other side proved, under the cluster's CA, that it holds this raw 32-byte public key."""

    node_key: bytes


@dataclass(frozen=True)
class Joiner:
    """The other side proved nothing: the connection may carry the join exchange only."""


@dataclass(frozen=True)
class Refused:
    """The connection is to be closed at once."""

    why: str


def server_context(authority_der: bytes, certificate: Path, key: Path) -> ssl.SSLContext:
    """For accepting members and joiners. A certificate that is shown but does not verify ends the handshake."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, authority_der)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols([ALPN, ALPN_JOIN])
    context.num_tickets = 0  # no resumption: every connection proves its key afresh
    return context


def show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Show another certificate in handshakes from now on."""
    context.load_cert_chain(certificate, key)


def client_context(authority_der: bytes, certificate: Path, key: Path) -> ssl.SSLContext:
    """For dialling members, as a member."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, authority_der)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols([ALPN])
    return context


def joiner_context(authority_der: bytes | None) -> ssl.SSLContext:
    """For dialling the issuer without a certificate; with None the server is not verified (see protocol.join)."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, authority_der)
    context.set_alpn_protocols([ALPN_JOIN])
    return context


def classify(tls: ssl.SSLObject | ssl.SSLSocket) -> Member | Joiner | Refused:
    """What an accepted connection may carry, its handshake done."""
    protocol = tls.selected_alpn_protocol()
    if protocol == ALPN_JOIN:
        return Joiner()
    if protocol != ALPN:
        return Refused("speaks no protocol of ours")
    try:
        return Member(peer_node_key(tls))
    except ValueError as error:
        return Refused(str(error))


def peer_node_key(tls: ssl.SSLObject | ssl.SSLSocket) -> bytes:
    """The raw 32-byte public key that the other side proved. Raises ValueError when it showed no certificate."""
    der = tls.getpeercert(binary_form=True)
    if der is None:
        raise ValueError("shows no certificate")
    return public_key_of(x509.load_der_x509_certificate(der))


def _context(purpose: int, authority_der: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    if authority_der is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(cadata=authority_der)
    return context
