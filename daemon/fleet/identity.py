"""Who a node is: its key, its certificate, its cluster's CA; made by `init`, read back at every start.

`ca.key` and `publisher.key` are on the head only; with an offline CA, `issuer.*` stands there in place of `ca.key`.
"""

from __future__ import annotations

import datetime as dt
import secrets
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from ...protocol.errors import ProtocolError
from ...protocol.members import verify_issuer, verify_membership
from .. import config as configuration
from ..config import Config
from ..errors import HomeError, RefusedError
from ..home import TOKENS, Home, write_private
from . import authority, offline, tls
from .keyfiles import read_certificate, read_certificates, read_file, read_key, write_key
from .offline import CA_CERTIFICATE, CA_KEY

NODE_KEY: Final = "node.key"
NODE_CERTIFICATE: Final = "node.crt"
PUBLISHER_KEY: Final = "publisher.key"
MEMBERSHIP: Final = "membership"
ISSUER_KEY: Final = "issuer.key"
ISSUER_CERTIFICATE: Final = "issuer.crt"
ISSUER_RECORD: Final = "issuer"


@dataclass(frozen=True)
class Identity:
    """A node's keys and what the CA says of them. `ca_key` and `publisher_key` are None where they are not held."""

    node_id: bytes
    node_key: Ed25519PrivateKey = field(repr=False)
    certificates: tuple[x509.Certificate, ...]
    """This node's, and that of the issuing key that signed it, if the CA did not itself."""
    membership: bytes
    """Signed membership of this node; see `protocol.members`."""
    ca_certificate: x509.Certificate
    ca_public_key: bytes
    ca_key: Ed25519PrivateKey | None = field(repr=False)
    publisher_key: Ed25519PrivateKey | None = field(repr=False)
    keys: Path
    """Folder of the key files: TLS reads them itself."""
    issuing: authority.Issuing | None = field(repr=False)
    """What this node enrols others with: the CA's key, or an issuing key, if it holds either."""

    def authority_key(self, ca_dir: Path | None) -> Ed25519PrivateKey:
        """The CA's own key, from `ca_dir` or from this home. Raises DaemonError when it is in neither."""
        if ca_dir is not None:
            return offline.load(ca_dir, self.ca_certificate)
        if self.ca_key is None:
            raise RefusedError("the key of the cluster's CA is not in this home; give its folder with --ca-dir")
        return self.ca_key

    @property
    def certificate(self) -> x509.Certificate:
        """The node's own certificate."""
        return self.certificates[0]

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
        certificates = read_certificates(keys / NODE_CERTIFICATE)
        ca_certificate = read_certificate(keys / CA_CERTIFICATE)
        ca_key = read_key(keys / CA_KEY) if (keys / CA_KEY).exists() else None
        publisher_key = read_key(keys / PUBLISHER_KEY) if (keys / PUBLISHER_KEY).exists() else None
        public_key = node_key.public_key().public_bytes_raw()
        identity = cls(
            node_id=authority.node_id(public_key),
            node_key=node_key,
            certificates=tuple(certificates),
            membership=read_file(keys / MEMBERSHIP),
            ca_certificate=ca_certificate,
            ca_public_key=_key_in(ca_certificate, keys / CA_CERTIFICATE),
            ca_key=ca_key,
            publisher_key=publisher_key,
            keys=keys,
            issuing=authority.Issuing(ca_key, ca_certificate) if ca_key else read_issuer(keys),
        )
        identity._check()
        return identity

    def _check(self) -> None:
        certificate_file = self.keys / NODE_CERTIFICATE
        if _key_in(self.certificate, certificate_file) != self.node_public_key:
            raise HomeError(
                f"{certificate_file}: is not the certificate of {NODE_KEY} beside it; restore both from one backup"
            )
        if self.ca_key and self.ca_key.public_key().public_bytes_raw() != self.ca_public_key:
            raise HomeError(
                f"{self.keys / CA_KEY}: is not the key of {CA_CERTIFICATE} beside it; restore both from one backup"
            )
        try:
            authority.check_chain(self.certificates, self.ca_certificate)
            member = verify_membership(self.membership, self.ca_public_key)
        except (ValueError, ProtocolError):
            raise HomeError(
                f"{self.keys}: the certificate or membership is not by {CA_CERTIFICATE} beside it; "
                "restore the keys from one backup"
            ) from None
        if member.node_key != self.node_public_key:
            raise HomeError(
                f"{self.keys / MEMBERSHIP}: is the membership of another node; restore the keys from one backup"
            )
        if self.issuing is not None and self.issuing.record:
            self._check_issuer(self.issuing)

    def _check_issuer(self, issuing: authority.Issuing) -> None:
        public = issuing.key.public_key().public_bytes_raw()
        try:
            authority.check_chain([issuing.certificate], self.ca_certificate)
            fits = verify_issuer(issuing.record, self.ca_public_key).key == public
        except (ValueError, ProtocolError):
            fits = False
        if not fits or authority.public_key_of(issuing.certificate) != public:
            raise HomeError(
                f"{self.keys / ISSUER_KEY}: is not certified by {CA_CERTIFICATE} beside it; "
                "run 'patchswarm issuer --ca-dir DIR'"
            )

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
    ca_dir: Path | None = None,
    now: dt.datetime | None = None,
) -> Config:
    """Make a new cluster and the home of its first node, the head. Raises DaemonError, leaving nothing.

    `storage` are settings of that section. With `ca_dir` the CA's key goes there and not into the home, which gets
    an issuing key instead.
    """
    now = now or dt.datetime.now(dt.UTC)
    if ca_dir is not None:
        offline.check_free(ca_dir)
    settings: dict[str, object] = {"site": site, "listen": listen}
    if advertise:
        settings["advertise"] = advertise
    with home.making():
        config = configuration.write(home, {"node": settings, "storage": storage or {}})
        ca_key, ca_certificate = authority.make_authority(now)
        if ca_dir is None:
            issuing = authority.Issuing(ca_key, ca_certificate)
            write_key(home.keys / CA_KEY, ca_key)
        else:
            issuing = authority.make_issuer(ca_key, ca_certificate, now)
            write_issuer(home, issuing)
        node_key = Ed25519PrivateKey.generate()
        certificates, membership = issuing.issue(node_key.public_key().public_bytes_raw(), now)
        write_key(home.keys / PUBLISHER_KEY, Ed25519PrivateKey.generate())
        write_member(home, node_key, certificates, membership, ca_certificate)
        if ca_dir is not None:  # last: it is not ours to remove when something before went wrong
            offline.create(ca_dir, ca_key, ca_certificate)
    return config


def write_issuer(home: Home, issuing: authority.Issuing) -> None:
    """Write an issuing key and what the CA says of it. The key comes last: it stands for the whole."""
    write_private(home.keys / ISSUER_CERTIFICATE, authority.to_pem([issuing.certificate]))
    write_private(home.keys / ISSUER_RECORD, issuing.record)
    write_key(home.keys / ISSUER_KEY, issuing.key)


def read_issuer(keys: Path) -> authority.Issuing | None:
    """The issuing key in a home, if there is one. Raises HomeError."""
    if not (keys / ISSUER_KEY).exists():
        return None
    return authority.Issuing(
        read_key(keys / ISSUER_KEY), read_certificate(keys / ISSUER_CERTIFICATE), read_file(keys / ISSUER_RECORD)
    )


def write_member(
    home: Home,
    node_key: Ed25519PrivateKey,
    certificates: Sequence[x509.Certificate],
    membership: bytes,
    ca_certificate: x509.Certificate,
) -> None:
    """Write what every node of a cluster holds into a begun home."""
    write_key(home.keys / NODE_KEY, node_key)
    write_private(home.keys / CA_CERTIFICATE, authority.to_pem([ca_certificate]))
    write_membership(home.keys, certificates, membership)
    for name in TOKENS:
        write_private(home.root / name, f"{secrets.token_urlsafe(32)}\n".encode())


def write_membership(keys: Path, certificates: Sequence[x509.Certificate], membership: bytes) -> None:
    """Write what says that this node is a member. Each file holds by itself: a crash between them does no harm."""
    write_private(keys / NODE_CERTIFICATE, authority.to_pem(certificates))
    write_private(keys / MEMBERSHIP, membership)


def _key_in(certificate: x509.Certificate, path: Path) -> bytes:
    try:
        return authority.public_key_of(certificate)
    except ValueError as error:
        raise HomeError(f"{path}: {error}; restore it from a backup, or make a new home") from None
