"""Who a node is: its key, its certificate, its cluster's CA; made by `init`, read back at every start."""

from __future__ import annotations

import datetime as dt
import secrets
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from ...protocol.errors import ProtocolError
from ...protocol.manifest import Membership
from ...protocol.signed import verify
from .. import config as configuration
from ..config import Config
from ..errors import HomeError
from ..home import Home, write_private
from . import authority, tls

NODE_KEY: Final = "node.key"
NODE_CERTIFICATE: Final = "node.crt"
CA_KEY: Final = "ca.key"
CA_CERTIFICATE: Final = "ca.crt"
PUBLISHER_KEY: Final = "publisher.key"
MEMBERSHIP: Final = "membership"


@dataclass(frozen=True)
class Identity:
    """A node's keys and what the CA says of them. `ca_key` and `publisher_key` are None where they are not held."""

    node_id: bytes
    node_key: Ed25519PrivateKey = field(repr=False)
    certificate: x509.Certificate
    membership: bytes
    """Signed `protocol.manifest.Membership` of this node."""
    ca_certificate: x509.Certificate
    ca_public_key: bytes
    ca_key: Ed25519PrivateKey | None = field(repr=False)
    publisher_key: Ed25519PrivateKey | None = field(repr=False)
    keys: Path
    """Folder of the key files: TLS reads them itself."""

    @property
    def node_public_key(self) -> bytes:
        """Raw 32 bytes."""
        return self.node_key.public_key().public_bytes_raw()

    @property
    def ca_der(self) -> bytes:
        """The CA's certificate, DER."""
        return self.ca_certificate.public_bytes(Encoding.DER)

    @property
    def not_after(self) -> dt.datetime:
        """When the certificate and the membership end."""
        return self.certificate.not_valid_after_utc

    def server_tls(self) -> ssl.SSLContext:
        """Context for accepting members and joiners; see `tls.classify`."""
        return tls.server_context(self.ca_der, self.keys / NODE_CERTIFICATE, self.keys / NODE_KEY)

    def client_tls(self) -> ssl.SSLContext:
        """Context for dialling members."""
        return tls.client_context(self.ca_der, self.keys / NODE_CERTIFICATE, self.keys / NODE_KEY)

    @classmethod
    def load(cls, home: Home) -> Identity:
        """The identity in a home. Raises HomeError naming the file that is missing, open to others, or does not fit."""
        keys = home.keys
        node_key = read_key(keys / NODE_KEY)
        certificate = read_certificate(keys / NODE_CERTIFICATE)
        ca_certificate = read_certificate(keys / CA_CERTIFICATE)
        ca_key = read_key(keys / CA_KEY) if (keys / CA_KEY).exists() else None
        publisher_key = read_key(keys / PUBLISHER_KEY) if (keys / PUBLISHER_KEY).exists() else None
        public_key = node_key.public_key().public_bytes_raw()
        identity = cls(
            node_id=authority.node_id(public_key),
            node_key=node_key,
            certificate=certificate,
            membership=_read(keys / MEMBERSHIP),
            ca_certificate=ca_certificate,
            ca_public_key=_key_in(ca_certificate, keys / CA_CERTIFICATE),
            ca_key=ca_key,
            publisher_key=publisher_key,
            keys=keys,
        )
        identity._check()
        return identity

    def _check(self) -> None:
        certificate_file = self.keys / NODE_CERTIFICATE
        if _key_in(self.certificate, certificate_file) != self.node_public_key:
            raise HomeError(f"{certificate_file}: is not the certificate of {NODE_KEY} beside it")
        if self.ca_key and self.ca_key.public_key().public_bytes_raw() != self.ca_public_key:
            raise HomeError(f"{self.keys / CA_KEY}: is not the key of {CA_CERTIFICATE} beside it")
        try:
            self.certificate.verify_directly_issued_by(self.ca_certificate)
            member = verify(self.membership, Membership, self.ca_public_key)
        except (ValueError, TypeError, InvalidSignature, ProtocolError):
            raise HomeError(
                f"{self.keys}: the certificate or membership is not by {CA_CERTIFICATE} beside it"
            ) from None
        if member.node_key != self.node_public_key:
            raise HomeError(f"{self.keys / MEMBERSHIP}: is the membership of another node")

    def check_valid(self, now: dt.datetime) -> None:
        """Raise HomeError when the certificate has ended or not yet begun."""
        if now >= self.not_after:
            raise HomeError(
                f"{self.keys / NODE_CERTIFICATE}: expired on {self.not_after:%Y-%m-%d}; get a new invite and join again"
            )
        if now < self.certificate.not_valid_before_utc:
            raise HomeError(
                f"{self.keys / NODE_CERTIFICATE}: begins on {self.certificate.not_valid_before_utc:%Y-%m-%d}; "
                "set this host's clock right"
            )


def init(
    home: Home,
    *,
    site: str,
    listen: str,
    advertise: tuple[str, ...] = (),
    storage: Mapping[str, object] | None = None,
    now: dt.datetime | None = None,
) -> Config:
    """Make a new cluster and the home of its first node, the head. Raises DaemonError, leaving nothing.

    `storage` are settings of that section.
    """
    now = now or dt.datetime.now(dt.UTC)
    settings: dict[str, object] = {"site": site, "listen": listen}
    if advertise:
        settings["advertise"] = advertise
    with home.making():
        config = configuration.write(home, {"node": settings, "storage": storage or {}})
        ca_key, ca_certificate = authority.make_authority(now)
        node_key = Ed25519PrivateKey.generate()
        certificate, membership = authority.issue(ca_key, ca_certificate, node_key.public_key().public_bytes_raw(), now)
        write_key(home.keys / CA_KEY, ca_key)
        write_key(home.keys / PUBLISHER_KEY, Ed25519PrivateKey.generate())
        write_member(home, node_key, certificate, membership, ca_certificate)
    return config


def write_member(
    home: Home,
    node_key: Ed25519PrivateKey,
    certificate: x509.Certificate,
    membership: bytes,
    ca_certificate: x509.Certificate,
) -> None:
    """Write what every node of a cluster holds into a begun home."""
    write_key(home.keys / NODE_KEY, node_key)
    write_private(home.keys / CA_CERTIFICATE, ca_certificate.public_bytes(Encoding.PEM))
    write_private(home.keys / NODE_CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    write_private(home.keys / MEMBERSHIP, membership)
    write_private(home.root / "token", f"{secrets.token_urlsafe(32)}\n".encode())


def write_key(path: Path, key: Ed25519PrivateKey) -> None:
    """Write a private key, PKCS #8 PEM, mode 0600."""
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def read_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a file. Raises HomeError, also when others than the owner may read it."""
    data = _read(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise HomeError(f"{path}: others may read this key; run 'chmod 600 {path}', and replace it if they did")
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise HomeError(f"{path}: not an Ed25519 private key in PEM")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file. Raises HomeError."""
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        raise HomeError(f"{path}: not a certificate in PEM") from None


def _key_in(certificate: x509.Certificate, path: Path) -> bytes:
    try:
        return authority.public_key_of(certificate)
    except ValueError as error:
        raise HomeError(f"{path}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise HomeError(f"{path}: missing; restore it from a backup, or make a new home") from None
    except OSError as error:
        raise HomeError(f"{path}: cannot read it: {error.strerror}") from None
