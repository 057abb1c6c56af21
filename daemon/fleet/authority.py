"""The cluster's certificate authority: an Ed25519 key, its certificate, and what it issues to nodes.

Each node gets two things that say the same: an X.509 certificate, for TLS, and a signed membership, which
travels in its node record so that peers it never met can check it. Both end on the same second.

The CA may be offline: it then certifies an issuing key, an intermediate certificate and a signed `Issuer` record.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...protocol.ids import digest
from ...protocol.manifest import IssuedMembership, Issuer, Membership
from ...protocol.signed import sign

NODE_VALIDITY: Final = dt.timedelta(days=90)
ISSUER_VALIDITY: Final = dt.timedelta(days=400)
_CA_VALIDITY: Final = dt.timedelta(days=3650)
_CLOCK_SKEW: Final = dt.timedelta(hours=1)
"""Certificates begin this much in the past: rented machines' clocks are off."""

_WEAK_KEYS: Final = frozenset(
    int(y, 16)
    for y in (
        "00",
        "01",
        "05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826",
        "7a03ac9277fdc74ec6cc392cfa53202a0f67100d760b3cba4fd84d3d706a17c7",
        "7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffec",
        "7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffed",
        "7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffee",
    )
)
"""y of the points of small order, and of the two encodings past the field's end that mean the same (RFC 7748, 8032)."""


@dataclass(frozen=True)
class Issuing:
    """A key that enrols and renews: the CA's own, or one that the CA has certified."""

    key: Ed25519PrivateKey = field(repr=False)
    certificate: x509.Certificate
    record: bytes = b""
    """Signed `Issuer`; empty for the CA's own key."""

    @property
    def not_after(self) -> dt.datetime:
        """What it issues ends by then."""
        return self.certificate.not_valid_after_utc

    def issue(
        self, node_key: bytes, now: dt.datetime, validity: dt.timedelta = NODE_VALIDITY
    ) -> tuple[list[x509.Certificate], bytes]:
        """Certificates, the node's own first, and signed membership for this raw 32-byte public key."""
        certificate, membership = issue(self.key, self.certificate, node_key, now, validity, self.record)
        return ([certificate, self.certificate] if self.record else [certificate]), membership


def is_weak(public_key: bytes) -> bool:
    """Whether others than its owner can sign for this raw Ed25519 key: OpenSSL verifies under such keys too."""
    return int.from_bytes(public_key, "little") & (2**255 - 1) in _WEAK_KEYS


def node_id(public_key: bytes) -> bytes:
    """The id of the node with this raw 32-byte public key."""
    return digest(public_key)


def make_authority(now: dt.datetime) -> tuple[Ed25519PrivateKey, x509.Certificate]:
    """A new CA: its key and self-signed certificate. One intermediate may stand below it, for an offline CA."""
    key = Ed25519PrivateKey.generate()
    name = _name(f"patchswarm cluster {secrets.token_hex(8)}")
    certificate = (
        _builder(name, name, key.public_key(), now, _CA_VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, algorithm=None)
    )
    return key, certificate


def make_issuer(ca_key: Ed25519PrivateKey, ca: x509.Certificate, now: dt.datetime) -> Issuing:
    """A new issuing key under the CA."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key()
    certificate = (
        _builder(_name(f"patchswarm issuer {secrets.token_hex(8)}"), ca.subject, public, now, ISSUER_VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, algorithm=None)
    )
    record = Issuer(public.public_bytes_raw(), int(certificate.not_valid_after_utc.timestamp()))
    return Issuing(key, certificate, sign(record, ca_key))


def issue(
    authority_key: Ed25519PrivateKey,
    authority: x509.Certificate,
    node_key: bytes,
    now: dt.datetime,
    validity: dt.timedelta = NODE_VALIDITY,
    record: bytes = b"",
) -> tuple[x509.Certificate, bytes]:
    """Certificate and signed membership for the node with this raw 32-byte public key.

    `record` is the signed Issuer of an authority that is not the CA itself. Nothing outlives its issuer.
    """
    validity = min(validity, authority.not_valid_after_utc - now)
    certificate = (
        _builder(
            _name(node_id(node_key).hex()),
            authority.subject,
            Ed25519PublicKey.from_public_bytes(node_key),
            now,
            validity,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, algorithm=None)
    )
    not_after = int(certificate.not_valid_after_utc.timestamp())
    if record:
        return certificate, sign(IssuedMembership(node_key, not_after, record), authority_key)
    return certificate, sign(Membership(node_key=node_key, not_after=not_after), authority_key)


def to_der(certificates: Sequence[x509.Certificate]) -> bytes:
    """Certificates one after the other; DER says itself where each ends."""
    return b"".join(each.public_bytes(Encoding.DER) for each in certificates)


def to_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """Certificates one after the other, as a file holds them."""
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def from_der(data: bytes) -> list[x509.Certificate]:
    """One or two certificates: a node's, and the one that issued it when that is not the CA. Raises ValueError."""
    certificates: list[x509.Certificate] = []
    while data:
        # X.690, section 8.1.3: a SEQUENCE whose length takes two bytes, as every certificate's of ours does.
        if len(certificates) == 2 or len(data) < 4 or data[:2] != b"\x30\x82":
            raise ValueError("not one or two certificates in DER")
        end = 4 + int.from_bytes(data[2:4], "big")
        try:
            certificates.append(x509.load_der_x509_certificate(data[:end]))
        except (x509.InvalidVersion, UnsupportedAlgorithm) as error:  # neither is a ValueError
            raise ValueError(str(error)) from None
        data = data[end:]
    if not certificates:
        raise ValueError("no certificate")
    return certificates


def check_chain(certificates: Sequence[x509.Certificate], ca: x509.Certificate) -> None:
    """Raise ValueError unless each certificate was issued by the next one, and the last by the CA."""
    try:
        for certificate, issuer in zip(certificates, [*certificates[1:], ca], strict=True):
            certificate.verify_directly_issued_by(issuer)
    except (TypeError, InvalidSignature):
        raise ValueError("a certificate is not by the one that should have issued it") from None


def public_key_of(certificate: x509.Certificate) -> bytes:
    """The raw 32-byte Ed25519 public key in a certificate. Raises ValueError for any other kind of key."""
    key = certificate.public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("the certificate's key is not Ed25519")  # noqa: TRY004 -- about bytes, not a caller's type
    return key.public_bytes_raw()


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: Ed25519PublicKey,
    now: dt.datetime,
    validity: dt.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
